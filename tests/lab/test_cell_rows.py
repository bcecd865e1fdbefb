"""Any cell through the tasks of 1997: a row of its own beside the paper's, kept apart by its equations."""

import numpy as np
import pytest
from lab.test_cli import call

from longlag.lab import hs97
from longlag.lab.cell_rows import cell_learner, with_cell, with_cells
from longlag.lab.learners import CellLearner, LSTM97Learner
from longlag.lab.nets import cell_named, initial_weights, net_of
from longlag.lab.profiles import quick
from longlag.lab.store import Store
from longlag.report.collect import collect
from longlag.report.verdicts import rows_of

MINE = """
import longlag as ll
from longlag.cells import sigmoid, tanh


@ll.cell(gates="a z")
def cell(a, z, y):
    return sigmoid(z) * y + (1 - sigmoid(z)) * {inner}


number = 7
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE.format(inner="tanh(a)"), encoding="utf-8")
    (tmp_path / "other.py").write_text(MINE.format(inner="sigmoid(a)"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "mine:cell"


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "leaky", "net_feedback"])
def test_a_layer_has_about_as_many_weights_as_the_papers_net(cell):
    for experiment in quick():
        if isinstance(experiment.learner, LSTM97Learner):
            learner, wanted = cell_learner(experiment.learner, cell), experiment.learner.weight_count
            counts = [net_weights(learner, learner.hidden + k) for k in (-1, 0, 1) if learner.hidden + k]
            assert min(counts, key=lambda n: abs(n - wanted)) == learner.weight_count, experiment.label


def net_weights(learner, hidden):
    from dataclasses import replace

    return sum(p.numel() for p in net_of(replace(learner, hidden=hidden)).parameters())


def test_weights_start_in_the_papers_range_and_params_at_their_own_values():
    paper = hs97.experiment_4(100).learner
    assert isinstance(paper, LSTM97Learner)
    learner = cell_learner(paper, "net_feedback")
    weights = initial_weights(learner, np.random.default_rng(0))
    assert set(weights) == {"weight_ih_l0", "bias_ih_l0", "u_l0", "readout.0.weight", "readout.0.bias"}
    assert (weights.pop("u_l0") == 0.9).all()
    everything = np.concatenate([value.ravel() for value in weights.values()])
    assert 0.09 < np.abs(everything).max() <= 0.1


def test_a_row_keeps_the_papers_task_and_says_what_differs():
    four = hs97.experiment_4(100, "fit")
    row = with_cell(four, "gru")
    assert (row.task, row.stop, row.cap, row.trials) == (four.task, four.stop, four.cap, four.trials)
    assert row.claim is not None
    assert isinstance(row.learner, CellLearner)
    assert (row.name, row.table, row.claim.against, row.method) == ("4 T=100 with gru", None, "4 T=100/fit", "gru")
    assert (row.learner.lr, row.learner.reach, row.learner.output) == (0.5, 0.8, "linear")
    assert "4 units, 101 weights (the paper's net: 93)" in row.note
    assert "74,000" in row.claim.says
    chosen = with_cells([four, hs97.experiment_3("a", reading="text"), hs97.experiment_3("a", reading="fit")], ["gru"])
    assert [e.name for e in chosen[3:]] == ["4 T=100 with gru", "3a T=100 N=3 with gru"]  # readings of LSTM-1997 alone


def test_a_users_cell_is_a_row_of_its_own(tmp_path, mine):
    words = ("-e", "3b/text", "--cell", mine, "--trials", 1, "--jobs", 1, "--out", tmp_path)
    done = call("reproduce", *words)
    assert done.exit_code == 0, done.output
    assert "3b T=100 N=3 with mine:cell" in done.output
    assert "2 trials computed" in done.output
    assert "0 trials computed, 2 known" in call("reproduce", *words).output
    chosen = with_cells([hs97.experiment_3("b")], [mine])
    first, row = [row for row in rows_of(collect(tmp_path, chosen).results) if row.method == mine]
    assert (first.goal, row.goal) == ("ST1", "ST2")
    assert (row.trials, row.verdict, row.paper_row) == (1, "measured", "3b T=100 N=3 with mine:cell")
    assert row.weights == str(chosen[1].learner.weight_count)
    assert "Compared with 3b T=100 N=3/text" in row.reason
    assert call("report", "-e", "3b/text", "--cell", mine, "--out", tmp_path).exit_code == 0
    assert "with mine:cell" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with Store(tmp_path) as store:
        assert store.seeds(chosen[1]) == {4000}
        ours, other = chosen[1].learner, with_cell(hs97.experiment_3("b"), "other:cell").learner
        assert isinstance(ours, CellLearner)
        assert isinstance(other, CellLearner)
        assert ours.equations != other.equations


def test_bad_cells(mine):
    assert call("reproduce", "-e", "4", "--cell", "lstmm").exit_code == 2
    with pytest.raises(ValueError, match=r"cell must be one of \[.*'lstm'.*\] or 'module:cell', got 'lstmm'"):
        cell_named("lstmm")
    for wrong in ("nowhere:cell", "mine:nothing"):
        with pytest.raises(ValueError, match=f"'module:cell' that can be imported, got '{wrong}'"):
            cell_named(wrong)
    with pytest.raises(ValueError, match=r"cell must be made by @longlag\.cell, got 'mine:number', a int"):
        cell_named("mine:number")
    with pytest.raises(ValueError, match="cell needs an experiment that trains LSTM-1997"):
        with_cells([hs97.plain_2a()], [mine])
