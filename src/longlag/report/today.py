"""Cells of today on the tasks of 1997, by the rule of 1997 and by BPTT and Adam."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.lab.learners import CellLearner
from longlag.lab.modern import CAP, modern, tasks_of_1997
from longlag.report.verdicts import Result, afters

NAMES = {
    "lstm": "LSTM with a forget gate (2000)", "gru": "GRU (2014)", "elman": "Elman (1990)", "leaky": "leaky units",
    "net_feedback": "local feedback of the net input (1992)", "slstm": "sLSTM (2024)",
}  # fmt: skip
RULES = {"1997": "rule of 1997", "bptt": "BPTT + Adam"}


@dataclass(frozen=True)
class Line:
    """One cell and rule: successes, trials and mean sequences until success on each task."""

    cell: str
    rule: str
    cells: tuple[str, ...]


def figure(result: Result | None, cap: int | None = None) -> str:
    """Successes of trials, and their mean; cap: count only successes up to so many sequences."""
    if result is None or not result.records:
        return "–"
    stage = 0 if len(result.experiment.stop.goals) > 1 and result.experiment.number.startswith("5") else -1
    found = afters(result.records, stage % len(result.experiment.stop.goals))
    found = [n for n in found if cap is None or n <= cap]
    mean = f", {np.mean(found):,.0f}" if found else ""
    return f"{len(found)}/{len(result.records)}{mean}"


def is_today(experiment: Experiment) -> bool:
    """Does the experiment belong to this table?"""
    return isinstance(experiment.learner, CellLearner) and experiment.settings in settings_of_today()


@cache
def settings_of_today() -> set[str]:
    """The keys of the experiments of this table."""
    return {e.settings for e in modern()}


def heads() -> list[str]:
    """The tasks, as the heads of the columns."""
    return [e.name.replace(" N=3", "") + (", n_seq=140" if e.number == "5" else "") for e in tasks_of_1997()]


def today(results: Sequence[Result]) -> list[Line]:
    """The table: LSTM of 1997 first, then each cell by both rules; empty if no cell of today was run."""
    known = {result.experiment.label: result for result in results}
    if not any(result.records and is_today(result.experiment) for result in results):
        return []
    tasks = tasks_of_1997()
    lines = [Line("LSTM of 1997", "rule of 1997", tuple(figure(known.get(e.label), CAP) for e in tasks))]
    rows = modern()
    for cell, name in NAMES.items():
        for rule, words in RULES.items():
            own = [
                e
                for e in rows
                if isinstance(e.learner, CellLearner) and (e.learner.cell, e.learner.rule) == (cell, rule)
            ]
            lines.append(Line(name, words, tuple(figure(known.get(e.label)) for e in own)))
    return lines
