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
RULES = {"1997": "", "bptt": " by BPTT and Adam"}  # how a layer learns, and how a row's name says so
BATCH, ADAM = 16, 0.01  # sequences per update and learning rate, as is usual today; nothing was tuned
KEEPING = {"lstm": "f", "gru": "z", "slstm": "f"}  # the gate that decides how much of the state stays
KEPT = 3.0  # its bias under BPTT: σ(3) = 0.95 of the state stays at first


def cell_learner(paper: LSTM97Learner, cell: str, rule: str = "1997") -> CellLearner:
    """A layer of a cell in the place of the paper's network, with the nearest number of weights.

    Output units are the paper's. With rule "1997", so are learning rate, range of the initial weights and time of the
    update; with "bptt" a batch of sequences goes to Adam, weights start in ±1/√H, and the gate that keeps the state
    starts open.
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
    if rule == "1997":
        return best
    reach, biases = round(best.hidden**-0.5, 4), ((KEEPING[cell], KEPT),) if cell in KEEPING else ()
    return replace(best, rule="bptt", batch=BATCH, lr=ADAM, reach=reach, update="sequence", gate_bias=biases)


def with_cell(experiment: Experiment, cell: str, rule: str = "1997") -> Experiment:
    """An experiment of the paper with a layer of another cell in the place of LSTM-1997."""
    if rule not in RULES:
        raise ValueError(f"reproduce: rule must be one of {tuple(RULES)}, got {rule!r}")
    assert isinstance(experiment.learner, LSTM97Learner)
    learner = cell_learner(experiment.learner, cell, rule)
    added = RULES[rule]
    figures = "; ".join("none" if f.after is None else f"{f.after:,}" for f in experiment.paper)
    rate = "" if experiment.success is None else f", {experiment.success:g} % of the trials"
    says = f"How a layer of {cell} does where the paper's LSTM needed {figures} sequences{rate}."
    claim = Claim("", says, "faster", experiment.label)
    found = beside(experiment, f"{experiment.number} {cell}{added}", f"with {cell}{added}", learner, claim)
    note = f"{learner.hidden} units, {learner.weight_count} weights (the paper's net: {experiment.weights}), all from "
    note += f"±{learner.reach:g}, biases among them. Task, criterion and output units are those of the paper's net"
    if rule == "1997":
        note += ", and so is the learning rate. Errors go back through what each unit keeps by itself, as in 1997."
    else:
        kept = "".join(f" The biases of gate {gate} start at {value:g}." for gate, value in learner.gate_bias)
        note += f". BPTT in batches of {learner.batch}, gradient cut to norm 1, Adam at {learner.lr:g}.{kept}"
    return replace(found, trials=experiment.trials, note=note, method=f"{cell}{added}")


def with_cells(experiments: Sequence[Experiment], wanted: Iterable[str], rule: str = "1997") -> tuple[Experiment, ...]:
    """The experiments, and after them each that trains LSTM-1997 on a table's task with each cell."""
    rows: dict[tuple[str, str], Experiment] = {}
    for cell in wanted:
        own = [e for e in experiments if e.table and isinstance(e.learner, LSTM97Learner)]
        if not own:
            raise ValueError("reproduce: cell needs an experiment that trains LSTM-1997, got none")
        for row in (with_cell(e, cell, rule) for e in own):
            rows.setdefault((row.name, row.settings), row)
    return (*experiments, *rows.values())
