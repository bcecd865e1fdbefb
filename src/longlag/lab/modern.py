"""Cells of the thirty years since 1997 on the tasks of 1997, by the rule of 1997 and as is usual today.

>>> [e.name for e in modern()][:2]
['2c q=50 p=50 with lstm', '2c q=50 p=50 with lstm by BPTT and Adam']
"""

from dataclasses import replace
from functools import cache

from longlag.lab.cell_rows import with_cell
from longlag.lab.experiment import Experiment
from longlag.lab.hs97 import experiment_2c, experiment_3, experiment_4, experiment_5, experiment_6

CELLS = ("lstm", "gru", "elman", "leaky", "net_feedback", "slstm")
CAP = 75_000  # training sequences; the means of the paper are below on each of these tasks but 5
TRIALS = 3


def tasks_of_1997() -> tuple[Experiment, ...]:
    """The rows whose tasks are used, each in the reading that reproduces."""
    return (
        experiment_2c(50, 50, "fit"), experiment_3("a", 100, 3, "text"), experiment_4(100, "fit"),
        experiment_5(100, "fit"), experiment_6(2),
    )  # fmt: skip


@cache
def modern() -> tuple[Experiment, ...]:
    """Each task with each cell: by the rule of 1997, and by BPTT and Adam."""
    rows = []
    for paper in tasks_of_1997():
        for cell in CELLS:
            for rule in ("1997", "bptt"):
                row = with_cell(paper, cell, rule)
                note = f"{row.note} Cap {min(CAP, row.cap):,} sequences."
                rows.append(replace(row, cap=min(CAP, row.cap), trials=TRIALS, note=note))
    return tuple(rows)
