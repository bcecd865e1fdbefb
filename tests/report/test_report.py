"""The report: verdicts by their rules, every row present, a page that stands alone."""

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from longlag import report
from longlag.lab import hs97
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.profiles import paper
from longlag.lab.run import reproduce
from longlag.lab.store import Store, StoreError
from longlag.lab.trials import Reached, Record, trial
from longlag.report import svg
from longlag.report.verdicts import row_of, rows_of, verdict

SIX, FIVE = hs97.experiment_6(2), hs97.experiment_5()


@pytest.mark.parametrize(
    ("success", "n", "factor", "word"),
    [
        (20, 20, 1.0, "reproduced"), (20, 20, 1.99, "reproduced"), (20, 20, 0.51, "reproduced"),
        (20, 20, 0.49, "faster"),
        (20, 20, 2.01, "partly"), (18, 20, 1.0, "reproduced"), (15, 20, 1.0, "partly"), (15, 20, 0.1, "partly"),
        (9, 20, 1.0, "not reproduced"), (0, 20, 1.0, "not reproduced"), (0, 0, 1.0, "not run"),
    ],
)  # fmt: skip
def test_verdicts(success, n, factor, word):
    """6a: 20 of 20 after 31,390 in the paper. Fisher: 18 of 20 has p = 0.24, 15 of 20 p = 0.024."""
    assert verdict(SIX, 0, [round(31390 * factor)] * success, n)[0] == word


def test_verdicts_give_reasons():
    reason = "20 of 20 trials succeed, in the paper 20 of 20, "
    reason += "but the mean of the successful trials is 2.01 times the paper's."
    assert verdict(SIX, 0, [62780 + 200] * 20, 20) == ("partly", reason)
    assert "(p = 0.024)" in verdict(SIX, 0, [30000] * 15, 20)[1]
    assert verdict(SIX, 0, [30000] * 3, 3)[1].endswith("Few trials.")
    assert verdict(SIX, 0, [], 20)[1] == "No trial of 20 met the criterion within 125,560 sequences."


def test_where_the_paper_failed_failing_is_reproducing():
    elman = hs97.plain_1("ELM", 15)
    assert verdict(elman, 0, [], 10)[0] == "reproduced"
    assert verdict(elman, 0, [100], 10)[0] == "not reproduced"
    some = hs97.plain_1("RTRL", 3)  # "some fraction"
    assert verdict(some, 0, [173000], 10)[0] == "reproduced"
    assert verdict(some, 0, [], 10)[0] == "not reproduced"


def record(seed, *stages, cap=1000):
    reached = [Reached(g, n, {"wrong": w, "of": 2560, "rmse": 0.02, "mean error": 0.01}) for g, n, w in stages]
    success = len(stages) == 2
    return Record("5 T=100", "text", seed, success, stages[-1][1] if success else cap, reached, [(cap, 0.1)])


def test_a_row_counts_its_stage():
    records = [
        record(1, ("n_seq=140", 400_000, 100), ("n_seq=13", 900_000, 10)),
        record(2, ("n_seq=140", 600_000, 200)),
        record(3),
    ]
    first, second = row_of(FIVE, records, 0), row_of(FIVE, records, 1)
    assert (first.successes, second.successes, first.trials) == (2, 1, 3)
    assert (first.mean, second.mean) == (500_000, 900_000)
    assert first.test == (("wrong", "150.0 of 2560 (most 200)"), ("rmse", "0.02"))
    assert (first.paper_after, second.paper_after) == ("482,000", "1,273,000")
    assert first.sequences == (400_000, 600_000)


def test_no_row_is_left_out():
    rows = rows_of([(e, []) for e in paper()])
    assert {row.table for row in rows} == set(range(1, 10))
    assert len(rows) == sum(len(e.paper) for e in paper()) + 2
    assert {row.method for row in rows} == {"LSTM", "RTRL", "BPTT", "ELM", "RCC", "CH"}
    assert all(row.verdict == "not run" for row in rows)
    assert all(row.reason for row in rows)


class Page(HTMLParser):
    """Collects tags, links and text; complains about tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "polyline", "circle", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("polyline", "circle", "path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store with three trials of 4 and one failed one of 6a, by easy criteria."""
    four = replace(
        hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=900, trials=3
    )
    six = replace(SIX, cap=200, trials=1)
    place = tmp_path_factory.mktemp("lab")
    reproduce([four, six], place, jobs=1, command="longlag reproduce <b>")
    with Store(place) as store:
        store.add(four, trial(four, 5), 6000.0, "here")  # a seed for choosing: not reported, nor its 100 minutes
    return place, (four, six)


def test_the_page_stands_alone(folder):
    place, experiments = folder
    paths = report.write(place, experiments)
    assert [path.name for path in paths] == ["report.html", "report.md", "report.csv"]
    text = paths[0].read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert not re.search(r"url\(|@import|<script|https?://(?!www\.w3\.org/2000/svg)", text)
    words = " ".join(page.text)
    assert "longlag reproduce <b>" in words  # escaped, not interpreted
    assert "The output unit is linear; the text says logistic." in words
    assert "seed 1000" in words
    assert page.tags.count("svg") == 4  # one spread, two curves, one example
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert not list(place.glob("*.part"))


def test_markdown_and_csv_hold_the_rows(folder):
    place, experiments = folder
    report.write(place, experiments)
    lines = (place / "report.md").read_text(encoding="utf-8").splitlines()
    assert lines[2].endswith(" 4 trials, seeds from 1000 on, 0 minutes of processor time together.")
    (four,) = [line for line in lines if line.startswith("| 4 T=100 ")]
    assert "3/3 = 100%" in four
    assert "74,000" in four
    (six,) = [line for line in lines if line.startswith("| 6a ")]
    assert "0/1 = 0%" in six
    assert "not reproduced" in six
    with (place / "report.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["1 RCC", "2a CH", "4 T=100", "6a"]
    assert rows[2]["successes"] == "3"
    assert [row.name for row in report.rows(place, experiments)] == [row["name"] for row in rows]


def test_only_reported_seeds_are_reported(folder):
    place, experiments = folder
    assert {row.name: row.trials for row in report.rows(place, experiments)}["4 T=100"] == 3
    assert {row.name: row.trials for row in report.rows(place, experiments, seed=0)}["4 T=100"] == 4


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (0, 1_273_000), (0, 0.37), (-2.3, 7.9), (5, 5)):
        marks = svg.ticks(low, high)
        assert len(marks) <= 6
        assert all(low <= mark <= high + 1e-9 for mark in marks)
        if high > low:
            assert len(marks) >= 2
            assert np.allclose(np.diff(marks), marks[1] - marks[0])
    assert [svg.short(v) for v in (0, 0.25, 1500, 2_000_000)] == ["0", "0.25", "1.5k", "2M"]


def test_curves_go_where_the_numbers_say():
    picture = svg.curves({"fit": [[(0, 0.0), (100, 1.0)]]}, 50, "t")
    points = re.search(r'stroke="#1f5f99"[^>]*points="([^"]+)"', picture).group(1).split()
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points)
    assert x0 < x1
    assert y0 > y1  # up is small in a picture
    assert "paper&#x27;s mean" in picture
    assert "paper" not in svg.curves({"fit": [[(0, 0.0), (100, 1.0)]]}, 150, "t")


def test_a_damaged_store_makes_no_empty_report(tmp_path):
    (tmp_path / "results.sqlite").write_bytes(b"no store" * 1000)
    with pytest.raises(
        StoreError, match=r"report: results.sqlite could not be read; it is kept as results.sqlite.damaged-1"
    ):
        report.write(tmp_path, [SIX])
    assert not (tmp_path / "report.html").exists()
