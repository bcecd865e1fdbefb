"""The report in docs/reproduction is that of the store beside it, and the pages about it say the same."""

import lzma
import re
from pathlib import Path

import pytest

from longlag import report
from longlag.lab.profiles import everything, paper
from longlag.lab.store import Store
from longlag.report import text
from longlag.report.collect import collect
from longlag.report.verdicts import paper_rows, rows_of

NEW_SINCE_0_1 = {
    *(f"1 {net}/fit" for net in ("4x1 lr=0.1", "3x2 lr=0.1", "3x2 lr=0.2", "4x1 lr=0.5", "3x2 lr=0.5")),
    *(f"2a RTRL p=4 lr={lr}/fit" for lr in (1, 4, 10)), "2a p=100/fit", "2b p=100/fit",
    "2c q=1000 p=50/fit", "3b T=1000 N=1/fit", "4 T=100/fit", "4 T=500/fit", "4 T=1000/fit", "6b/fit",
}  # fmt: skip
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reproduction"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shipped")
    (place / "results.sqlite").write_bytes(lzma.decompress((DOCS / "results.sqlite.xz").read_bytes()))
    return place


@pytest.fixture(scope="module")
def collection(folder):
    return collect(folder, everything(), code="no code prefers its own trials here")


def test_the_shipped_report_is_that_of_the_shipped_store(folder):
    for path in report.write(folder, everything(), code="no code prefers its own trials here"):
        assert path.read_text(encoding="utf-8") == (DOCS / path.name).read_text(encoding="utf-8"), path.name


def test_every_trial_of_0_1_is_there(folder):
    """D6: the trials of the old store are found by today's settings, unless the reading is another one today."""
    with Store(folder) as store:
        kept = store.database.execute("SELECT count(*) FROM trials WHERE code = 'longlag 0.1.0'")
        counts = {e.label: (store.codes(e).get("longlag 0.1.0", 0), e.trials) for e in paper()}
    assert kept == [(1270,)]
    for label, (found, trials) in counts.items():
        assert found == (0 if label in NEW_SINCE_0_1 else trials), label


def test_runs_account_for_all_trials(folder, collection):
    """D13: commands listed, and what is said to be missing, add up to the trials in the store."""
    with Store(folder) as store:
        assert sum(run["trials"] for run in collection.runs) + collection.unnoted == store.count()


def test_the_readme_states_the_headline(collection):
    words = " ".join((DOCS / "README.md").read_text(encoding="utf-8").split())
    rows = rows_of(collection.results)
    for sentence in (text.headline(paper_rows(rows)), collection.took, text.confirmed(rows)):
        assert sentence in words


def test_the_open_questions_quote_the_papers_figures():
    """D13: 6b had 10 trials, whatever page says so."""
    names = {"4, T = 500": "4 T=500", "4, T = 1000": "4 T=1000", "6b": "6b", "2a": "2a p=100", "2b": "2b p=100",
             "1, 3 blocks of 2": "1 3x2 lr=0.5", "1, 4 blocks of 1": "1 4x1 lr=0.5"}  # fmt: skip
    page = (DOCS / "open-questions.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| ([^|]+) \| (\d+/\d+ after [\d,]+) \|", page, re.MULTILINE))
    assert set(found) == set(names)
    known = {e.name: e for e in paper()}
    for title, figures in found.items():
        e = known[names[title]]
        assert e.success is not None
        assert figures == f"{round(e.success / 100 * e.paper_trials)}/{e.paper_trials} after {e.paper[-1].after:,}"
