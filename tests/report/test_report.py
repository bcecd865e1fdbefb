"""The report: verdicts by their rules, every row present, a page that needs no other file."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from longlag import report
from longlag.lab import beyond, hs97
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.profiles import everything, modern, paper
from longlag.lab.run import reproduce
from longlag.lab.store import Store, StoreError
from longlag.lab.trials import Reached, Record, trial
from longlag.report import svg
from longlag.report.claims import claim_verdict
from longlag.report.collect import collect, merged
from longlag.report.distributions import distributions_of
from longlag.report.pictures import histograms
from longlag.report.verdicts import Result, Row, paper_rows, row_of, rows_of, verdict
from longlag.report.words import title

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
    first, second = row_of(Result(FIVE, records), 0), row_of(Result(FIVE, records), 1)
    assert (first.successes, second.successes, first.trials) == (2, 1, 3)
    assert (first.mean, second.mean) == (500_000, 900_000)
    assert first.test == (("wrong", "150.0 of 2560 (most 200)"), ("rmse", "0.02"))
    assert (first.paper_after, second.paper_after) == ("482,000", "1,273,000")
    assert first.sequences == (400_000, 600_000)


def test_no_row_is_left_out():
    rows = rows_of([Result(e, []) for e in everything()])
    assert {row.table for row in rows} == set(range(10))
    assert rows[-1].table == 0, "claims come last"
    assert len(rows) == sum(len(e.paper) for e in everything()) + 2
    assert {row.method for row in rows if " with " not in row.name} == {
        "LSTM", "RTRL", "BPTT", "ELM", "RCC", "CH", "guessing",
    }  # fmt: skip
    assert all(row.verdict == "not run" for row in rows)
    assert all(row.reason for row in rows)


class Page(HTMLParser):
    """Collects tags, links and text; complains about tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.ids, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]
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
    assert [path.name for path in paths] == ["report.html", "report.md", "report.csv", "report.json"]
    text = paths[0].read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links
    assert set(page.links) <= {f"#{name}" for name in page.ids}, "links lead within the page"
    assert not re.search(r"url\(|@import|<script|https?://(?!www\.w3\.org/2000/svg)", text)
    words = " ".join(page.text)
    assert "longlag reproduce <b>" in words  # escaped, not interpreted
    assert "The output unit is linear and weights start in ±0.8; the text says logistic and ±0.1." in words
    assert "seed 4000" in words
    assert page.tags.count("svg") == 4  # one spread, two curves, one example
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert not list(place.glob("*.part"))


def test_markdown_and_csv_hold_the_rows(folder):
    place, experiments = folder
    report.write(place, experiments)
    lines = (place / "report.md").read_text(encoding="utf-8").splitlines()
    assert lines[2].startswith("1 of the 2 rows of the paper's tables that were run come out. 2 rows were not run.")
    assert "2 of these rows stand on seeds from 4000 on, which nobody had looked at before." in lines[2]
    assert lines[2].endswith(" 4 trials, seeds 4000 to 4002, 0 minutes of processor time together.")
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


def test_json_holds_the_rows_and_a_digest_of_the_trials(folder):
    place, experiments = folder
    report.write(place, experiments)
    found = json.loads((place / "report.json").read_text(encoding="utf-8"))
    (four,) = [row for row in found["rows"] if row["name"] == "4 T=100"]
    assert (four["successes"], four["seeds"], four["fresh"]) == (3, "seeds 4000 to 4002", True)
    assert four["command"] == "longlag reproduce -e '4 T=100/fit' --seed 4000 --trials 3"
    digest = found["sha256 of the trials"]
    assert digest == collect(place, experiments).digest in (place / "report.html").read_text(encoding="utf-8")
    assert digest != collect(place, experiments[:1]).digest


def test_older_trials_stand_where_newer_ones_are_fewer_than_the_papers(tmp_path):
    with Store(tmp_path) as store:
        for seed in (2000, 2001, 4000):
            store.add(SIX, Record("6a", "text", seed, True, 10 * seed, [Reached("", 10 * seed, {"wrong": 0, "of": 9})],
                                  [(9, 0.1)]), 1.0, "here")  # fmt: skip
        (row,) = [row for row in report.rows(tmp_path, [SIX]) if row.name == "6a"]
        assert (row.seeds, row.fresh) == ("seeds 2000 to 2001", False)
        for seed in range(4001, 4020):
            store.add(SIX, Record("6a", "text", seed, False, 9, [], [(9, 0.1)]), 1.0, "here")
        (row,) = [row for row in report.rows(tmp_path, [SIX]) if row.name == "6a"]
        assert (row.seeds, row.fresh, row.trials) == ("seeds 4000 to 4019", True, 20)


def test_a_distribution_is_that_of_its_trials():
    rng = np.random.default_rng(1)
    found = np.round(rng.lognormal(np.log(30_000), 0.3, 400)).astype(int)
    records = [Record("6a", "text", k, True, n, [Reached("", int(n), {})], [(9, 0.1)]) for k, n in enumerate(found)]
    records += [Record("6a", "text", k, False, 125_560, [], [(9, 0.1)]) for k in range(400, 420)]
    (one,) = distributions_of([Result(SIX, records), Result(FIVE, [])])
    assert (one.trials, len(one.found), one.drawn) == (420, 400, 20)
    assert one.forms[0].name == "lognormal"
    assert abs(one.forms[0].shape - 0.3) < 0.03
    assert abs(one.quantiles[2] - np.median(found)) < 1
    assert abs(one.better - (400 / 420) ** 20 * np.mean(rng.choice(found, (4000, 20)).mean(1) <= 31_390)) < 0.05
    assert one.better < one.near < 0.5
    (picture,) = histograms([one])
    assert "mean" in picture
    assert picture.count("<rect") >= 10
    assert distributions_of([Result(SIX, records[:30])]) == []


def test_cells_of_today_have_a_table(tmp_path):
    gru = next(e for e in modern() if e.name == "6a with gru")
    stage = [Reached("", 50_000, {"wrong": 0, "of": 9})]
    with Store(tmp_path) as store:
        store.add(gru, Record(gru.name, gru.reading, 4000, True, 50_000, stage, [(9, 0.1)]), 1.0, "here")
    report.write(tmp_path, [SIX, gru])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| GRU (2014) | rule of 1997 | – | – | – | – | 1/1, 50,000 |" in text
    assert "6a with gru" not in text
    assert "6a with gru" in (tmp_path / "report.csv").read_text(encoding="utf-8")


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
    found = re.search(r'stroke="#1f5f99"[^>]*points="([^"]+)"', picture)
    assert found
    points = found.group(1).split()
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


# ------------------------------------------------------------------------------------------------ rows of the paper


def line(row, reading, word, goal="", table=2):
    """A row of a report of which only what `paper_rows` reads matters."""
    nothing: dict[str, Any] = dict.fromkeys(Row.__dataclass_fields__, "")
    return Row(**nothing | {"table": table, "paper_row": row, "goal": goal, "reading": reading, "verdict": word})


def outcomes(*lines):
    return [(found.name, found.goal, found.outcome) for found in paper_rows(lines)]


def test_a_row_of_the_paper_comes_out_if_one_reading_does():
    """D13: the headline counts rows of the paper, not readings."""
    assert outcomes(line("a", "text", "not reproduced"), line("a", "fit", "faster")) == [("a", "", "comes out")]
    assert outcomes(line("a", "text", "not reproduced"), line("a", "fit", "partly")) == [("a", "", "partly")]
    assert outcomes(line("a", "text", "not reproduced"), line("a", "fit", "not run")) == [("a", "", "does not")]
    assert outcomes(line("a", "text", "not run")) == [("a", "", "not run")]
    assert outcomes(line("a", "text", "reproduced", "ST1"), line("a", "text", "partly", "ST2")) == [
        ("a", "ST1", "comes out"), ("a", "ST2", "partly"),
    ]  # fmt: skip
    assert outcomes(line("claim", "text", "confirmed", table=0)) == []


def test_a_row_of_several_learning_rates_needs_all_of_them():
    good, bad = line("a", "text", "reproduced"), line("a", "text", "not reproduced")
    assert outcomes(good, good, good) == [("a", "", "comes out")]
    assert outcomes(good, bad, good) == [("a", "", "partly")]


def test_the_paper_has_48_rows_of_which_46_can_be_run():
    rows = rows_of([Result(e, []) for e in paper()])
    names = {(found.table, found.name) for found in paper_rows(rows)}
    assert len(paper_rows(rows)) == 48
    assert {(2, "2a RTRL p=10 lr=1 to 10"), (2, "2a BPTT p=100 lr=1 to 10"), (2, "2a RTRL p=4 lr=10")} <= names


def test_codes_are_said_in_words():
    for e in everything():
        for goal in e.stop.goals:
            words = title(e.number, e.name, goal.name)
            assert words
            assert "=" not in words
    assert title("2c", "2c q=50 p=20") == "lag of at least 50 steps, 20 distractor symbols"
    assert title("1", "1 ELM hidden=15") == "Elman's net, 15 hidden units"
    assert title("5", "5 T=100", "n_seq=13") == "at least 100 steps, fewer than 13 of the last 2,000 sequences wrong"
    assert title("6b", "6b") == "order of three symbols"


# ------------------------------------------------------------------------------------------------ claims


@pytest.mark.parametrize(
    ("experiment", "ours", "other", "word"),
    [
        (beyond.parity(), [], [], "confirmed"), (beyond.parity(), [5] * 6, [], "contradicted"),
        (beyond.parity(), [5], [], "undecided"), (beyond.parity_guessing(), [5] * 6, [], "confirmed"),
        (beyond.parity_guessing(), [], [], "contradicted"), (beyond.parity_guessing(), [5] * 4, [], "undecided"),
        (beyond.without_output_gates(), [], [100] * 6, "confirmed"),
        (beyond.without_output_gates(), [100] * 10, [90, 110] * 5, "undecided"),
        (beyond.without_output_gates(), [50] * 10, [100] * 10, "contradicted"),
        (beyond.two_sequence_guessing("a"), [50] * 10, [100] * 10, "confirmed"),
        (beyond.two_sequence_guessing("a"), [], [], "undecided"),
        (beyond.delayed_xor_guessing(), [5] * 9, [], "measured"),
    ],
)  # fmt: skip
def test_claims(experiment, ours, other, word):
    assert claim_verdict(experiment, ours, 10, other, 10)[0] == word


def test_claims_give_reasons():
    found = claim_verdict(beyond.without_output_gates(), [], 20, [3000] * 16, 30)
    assert found[1].startswith("0 of 20 trials succeed within 100,000 sequences. Compared with 1 3x2 lr=0.5/fit: 16 of")
    assert "Is it slower? p = " in found[1]
    assert claim_verdict(beyond.parity(), [], 0, [], 0) == ("not run", "No trial in this store.")
    assert claim_verdict(beyond.without_output_gates(), [], 5, [], 0)[0] == "not run"


def test_the_fine_tuning_of_5_is_compared_alone():
    """Stage n_seq=13 counts from n_seq=140 on: faster there is what the claim says, slower before does not matter."""
    claim = beyond.with_hidden_units()
    ours = [record(k, ("n_seq=140", 900_000, 1), ("n_seq=13", 950_000 + k, 1)) for k in range(8)]
    theirs = [record(k, ("n_seq=140", 100_000, 1), ("n_seq=13", 800_000 + k, 1)) for k in range(8)]
    first, second = (row_of(Result(claim, ours, "", theirs), stage) for stage in (0, 1))
    assert (first.verdict, second.verdict) == ("measured", "confirmed")
    assert "from n_seq=140 to n_seq=13 in 50,004 sequences on average" in second.reason
    assert second.mean is not None
    assert (first.mean, round(second.mean)) == (900_000, 950_004)


def test_guessing_3a_is_compared_with_its_first_stage():
    """Guessing has one stage, none of 256 wrong, which is ST1 of the experiment it is compared with."""
    ours = [Record("x", "text", k, True, 70, [Reached("", 70, {"guesses": 5})], [(70, 0.1)]) for k in range(6)]
    theirs = [record(k, ("ST1", 90, 1), ("ST2", 99, 1)) for k in range(6)]
    found = row_of(Result(beyond.two_sequence_guessing("a"), ours, "", theirs), 0)
    assert "Compared with 3a T=100 N=3/text: 6 of 6 trials succeed, after 90 sequences on average." in found.reason
    assert found.test == (("guesses", "5"),)


def test_a_claim_is_compared_with_trials_of_the_same_code(tmp_path):
    claim, table = beyond.without_output_gates(), hs97.experiment_1(3, 2, 0.5, "fit")

    def done(experiment, seed, sequences):
        return Record(experiment.name, "fit", seed, True, sequences, [Reached("", sequences, {})], [(sequences, 0.1)])

    with Store(tmp_path, code="old") as store:
        for seed in range(2000, 2009):
            store.add(table, done(table, seed, 11), 1.0, "here")
    with Store(tmp_path, code="new") as store:
        store.add(claim, done(claim, 4000, 50), 1.0, "here")
        store.add(table, done(table, 4000, 22), 1.0, "here")
    rows = {(row.name, row.reading): row for row in report.rows(tmp_path, (claim, table))}
    assert "1 of 1 trials succeed, after 22 sequences" in rows[claim.name, "fit"].reason
    assert rows[table.name, "fit"].trials == 9, "the code with the most trials is reported"
    assert (rows[table.name, "fit"].code, rows[claim.name, "fit"].code) == ("old", "new")


# ------------------------------------------------------------------------------------------------ where it comes from


def test_trials_that_no_run_accounts_for_are_counted(folder):
    """D13: the commands listed and what is missing add up. The trial of seed 5 was added outside a run."""
    place, experiments = folder
    found = []
    for change in ("run = run", "run = NULL WHERE seed = 4001", "run = 1 WHERE seed = 4001"):
        with Store(place) as store:
            store.database.execute(f"UPDATE trials SET {change}")
        text = report.write(place, experiments)[1].read_text(encoding="utf-8")
        runs = re.search(r"longlag reproduce <b>`: (\d+) trials", text)
        lost = re.search(r"(\d+) more trials come from runs whose command is not known", text)
        assert runs
        assert lost
        found.append((int(runs.group(1)), int(lost.group(1))))
    assert found == [(4, 1), (3, 2), (4, 1)]


def test_a_run_that_went_on_is_listed_once():
    first = {"command": "a", "code": "x", "trials": 3, "seconds": 5.0, "ended": "1"}
    runs = [first, first | {"code": "y"}, first | {"trials": 4, "seconds": 1.0, "ended": "2"}]
    assert merged(runs) == (first | {"trials": 7, "seconds": 6.0, "ended": "2"}, first | {"code": "y"})


def test_other_code_is_named(folder):
    place, experiments = folder
    with Store(place) as store:
        code = store.code
        store.database.execute("UPDATE trials SET code = 'longlag 0.0' WHERE experiment = '6a'")
    text = report.write(place, experiments)[0].read_text(encoding="utf-8")
    with Store(place) as store:
        store.database.execute("UPDATE trials SET code = ?", (code,))
    assert "1 of the trials reported were made by code longlag 0.0." in text
    assert f"3 of the trials reported were made by code {code}." in text
