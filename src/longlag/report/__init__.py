"""Records to tables, plots and one page. Nothing is run here."""

from longlag.report.page import results_in as results_in
from longlag.report.page import rows as rows
from longlag.report.page import write as write
