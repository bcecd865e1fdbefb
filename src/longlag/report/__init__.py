"""Records to tables, plots and one page. Nothing is run here."""

from longlag.report.page import rows as rows
from longlag.report.page import write as write
