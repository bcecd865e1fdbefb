"""Any cell through the tasks of 1997: rows of their own beside the paper's.

>>> from longlag.lab.hs97 import experiment_4
>>> with_cell(experiment_4(100, "fit"), "gru").name
'4 T=100 with gru'
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from longlag.lab.beyond import beside
from longlag.lab.experiment import Claim, Experiment
from longlag.lab.hs97 import experiment_4 as experiment_4
from longlag.lab.learners import CellLearner, LSTM97Learner
from longlag.lab.nets import cell_named

MOST = 512  # units


def cell_learner(paper: LSTM97Learner, cell: str) -> CellLearner:
    """A layer of a cell that learns as the paper's network does, with the nearest number of weights.

    Learning rate, range of the initial weights, kind of the output units and time of the update are the paper's.
    """
    n = paper.network
    least = CellLearner(
        cell, cell_named(cell).key[:12], n.input_size, 1, n.output_size, paper.reach, paper.lr,
        "linear" if n.output == "linear" else "logistic", paper.update,
    )  # fmt: skip
    best = least
    for hidden in range(1, MOST + 1):
        learner = replace(least, hidden=hidden)
        if abs(learner.weight_count - paper.weight_count) < abs(best.weight_count - paper.weight_count):
            best = learner
        if learner.weight_count >= paper.weight_count:
            break
    return best


def with_cell(experiment: Experiment, cell: str) -> Experiment:
    """An experiment of the paper with a layer of another cell in the place of LSTM-1997."""
    assert isinstance(experiment.learner, LSTM97Learner)
    learner = cell_learner(experiment.learner, cell)
    figures = "; ".join("none" if f.after is None else f"{f.after:,}" for f in experiment.paper)
    rate = "" if experiment.success is None else f", {experiment.success:g} % of the trials"
    says = f"How a layer of {cell} does where the paper's LSTM needed {figures} sequences{rate}."
    found = beside(
        experiment, f"{experiment.number} {cell}", f"with {cell}", learner, Claim("", says, "faster", experiment.label)
    )
    note = f"{learner.hidden} units, {learner.weight_count} weights (the paper's net: {experiment.weights}), all from "
    note += f"±{learner.reach:g}, biases among them. Task, criterion, cap, learning rate and output units are those of "
    note += "the paper's net. Errors go back through what each unit keeps by itself, as in 1997."
    return replace(found, trials=experiment.trials, note=note, method=cell)


def with_cells(experiments: Sequence[Experiment], wanted: Iterable[str]) -> tuple[Experiment, ...]:
    """The experiments, and after them each that trains LSTM-1997 on a table's task with each cell."""
    rows: dict[tuple[str, str], Experiment] = {}
    for cell in wanted:
        own = [e for e in experiments if e.table and isinstance(e.learner, LSTM97Learner)]
        if not own:
            raise ValueError("reproduce: cell needs an experiment that trains LSTM-1997, got none")
        for row in (with_cell(e, cell) for e in own):
            rows.setdefault((row.name, row.settings), row)
    return (*experiments, *rows.values())
