"""Options that the paper's text names or leaves open, each run beside the reading of the tables that it changes.

>>> [e.label for e in options()][:2]
['4 T=100 with the first marker set to 0/text', '4 T=100 with the first marker set to 0/fit']
"""

from dataclasses import replace
from typing import Any

from longlag.lab.beyond import beside
from longlag.lab.criteria import GrammarCriterion, TestCriterion
from longlag.lab.experiment import Claim, Experiment
from longlag.lab.hs97 import experiment_1, experiment_2b, experiment_3, experiment_4
from longlag.tasks import Adding

FIXED = 256  # sequences of the fixed training set of 2b, as many as experiment 1 has


def option(table: Experiment, added: str, says: str, **changes: Any) -> Experiment:
    """A variant of a table's experiment; what it says is a question of ours, so its outcome is measured."""
    claim = Claim("", says, "faster", table.label)
    found = beside(table, f"option of {table.number}", added, table.learner, claim)
    return replace(found, trials=table.trials, **changes)


def unmarked(reading: Any) -> Experiment:
    """Experiment 4 with the first pair's marker set to 0 when that pair is chosen."""
    says = "If the first pair is chosen, its marker becomes 0 instead of staying −1."
    return option(experiment_4(100, reading), "with the first marker set to 0", says, task=Adding(100, "unmark"))


def by_the_most_active(reading: Any) -> Experiment:
    """Experiment 1 judged by the most active symbol."""
    says = "A string is right if at every step the most active symbol is legal, whatever the other legal one does."
    stop = GrammarCriterion(judged="most active")
    return option(experiment_1(3, 2, 0.5, reading), "judged by the most active symbol", says, stop=stop)


def tested_on_2560(reading: Any) -> Experiment:
    """Experiment 3a whose criteria are judged on 2,560 test sequences instead of 256."""
    table = experiment_3("a", 100, 3, reading)
    assert isinstance(table.stop, TestCriterion)
    says = "ST1 and ST2 are judged on 2,560 test sequences instead of 256."
    return option(table, "tested on 2,560 sequences", says, stop=replace(table.stop, size=2560))


def on_a_fixed_set(reading: Any) -> Experiment:
    """Experiment 2b trained on a fixed set of sequences."""
    table = experiment_2b(reading)
    assert isinstance(table.stop, TestCriterion)
    says = f"The net is trained on {FIXED} sequences drawn once; the test draws fresh ones."
    return option(table, "on a fixed training set", says, stop=replace(table.stop, training=FIXED))


def options() -> tuple[Experiment, ...]:
    """Every option, in both readings."""
    return tuple(
        make(reading) for make in (unmarked, by_the_most_active, tested_on_2560, on_a_fixed_set)
        for reading in ("text", "fit")
    )  # fmt: skip
