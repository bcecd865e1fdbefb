"""`longlag reproduce`, `report`, `experiments` as a user types them."""

import io
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from longlag.cli import app
from longlag.cli.lab import progress
from longlag.lab import hs97, profiles, run
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.store import Store
from longlag.lab.trials import Record

FOUR = replace(hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=900, trials=2)


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def easy(monkeypatch):
    monkeypatch.setitem(profiles.PROFILES, "quick", lambda: (FOUR,))


@pytest.mark.usefixtures("easy")
def test_reproduce_prints_a_table_and_writes_a_report(tmp_path):
    done = call("reproduce", "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 0
    shown = [text for text in done.output.splitlines() if not text.startswith("longlag: compiling")]  # the first time
    head, line, *rest = shown
    assert head.split() == ["experiment", "reading", "success", "mean", "paper", "verdict"]
    assert line.startswith("4 T=100                 fit      2/2")
    assert "74,000   faster" in line
    assert "2 trials computed, 0 known already" in rest[-2]
    assert (tmp_path / "report.html").exists()
    again = call("reproduce", "--jobs", 1, "--out", tmp_path)
    assert "0 trials computed, 2 known already" in again.output
    (tmp_path / "report.html").unlink()
    pages = call("report", "--profile", "quick", "--out", tmp_path)
    assert pages.exit_code == 0
    assert (tmp_path / "report.html").exists()
    with Store(tmp_path) as store:
        assert store.count() == 2


def test_experiments_are_listed_with_the_papers_figures():
    lines = call("experiments").output.splitlines()
    assert len(lines) == len(profiles.everything()) + 1
    (adding,) = [line for line in lines if line.startswith("4 T=1000 ") and " text " in line]
    assert adding.split() == ["4", "T=1000", "text", "7", "93", "10", "1,706,000", "100", "%,", "853,000"]
    (limit,) = [line for line in lines if line.startswith("parity T=500 ") and "guessing" not in line]
    assert limit.endswith("Section 6, limitations: fails")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "-e", "6c"], "got '6c'; did you mean"),
        (
            ["reproduce", "--profile", "fast"],
            "profile must be one of ('quick', 'paper', 'beyond', 'options', 'distri",
        ),
        (["reproduce", "--trials", 0], "trials must be an int of at least 1, got 0"),
        (["reproduce", "--backend", "slurm"], "backend must be one of ('local', 'dask', 'ray'), got 'slurm'"),
        (
            ["reproduce", "-e", "4", "--cell", "gru", "--rule", "sgd"],
            "rule must be one of ('1997', 'bptt'), got 'sgd'",
        ),
        (["report"], "out must be a folder with results, got"),
    ],
)
def test_mistakes_end_in_a_sentence(tmp_path, words, message):
    done = call(*words, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_a_file_as_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    done = call("reproduce", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "Store: out must be a folder, got the file" in done.output
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.usefixtures("easy")
def test_an_interrupt_ends_in_a_sentence(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "reproduce", interrupt)
    done = call("reproduce", "--out", tmp_path)
    assert done.exit_code == 130
    assert "Stopped. Finished trials are kept; run the same command again to go on." in done.output


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_line_per_experiment(monkeypatch):
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    six = hs97.experiment_6(2)
    record = Record("6a", "text", 1000, True, 10, [], [])
    with progress() as announce:
        announce(run.Progress(FOUR, record, 1, 2, 1, 90.0))
        announce(run.Progress(six, record, 3, 3, 2, 30.0))
    assert "4 T=100" in seen.getvalue()
    assert "1/2" in seen.getvalue()
    assert "about 0.5 minutes left" in seen.getvalue()
    assert "6a  text  3/3 trials, 2 successful" in seen.getvalue()


def test_without_a_terminal_nothing_is_said(monkeypatch):
    quiet = io.StringIO()
    monkeypatch.setattr("sys.stderr", quiet)
    with progress() as announce:
        announce(run.Progress(FOUR, Record("6a", "text", 1, True, 10, [], []), 1, 2, 1, 90.0))
    assert quiet.getvalue() == ""
