"""Stopping criteria: when a trial has succeeded. Frozen data; `trials` follows them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Goal:
    """Reached when fewer than `fewer_than` of the sequences judged are wrong and their mean |error| is below `mean`."""

    kind: ClassVar[str] = "goal"
    name: str = ""
    fewer_than: int = 1
    mean: float = math.inf


@dataclass(frozen=True)
class WindowCriterion:
    """Judge the most recent training sequences, each by its error before its update. [E4] [E5] [E6a] [E6b]

    A sequence is wrong if an output's |error| is not below `bound`. `final` fresh sequences test each goal reached.
    `block` sequences are drawn at once; the data of a seed depend on that number, so it is part of the criterion.
    """

    kind: ClassVar[str] = "window"
    bound: float
    goals: tuple[Goal, ...]
    size: int = 2000
    final: int = 2560
    block: int = 500


@dataclass(frozen=True)
class TestCriterion:
    """Judge frozen weights on test sequences after every `every` training sequences. [E2a] [E2b] [E2c] [E3a]

    `fresh` draws the test sequences anew each time; otherwise they are drawn once per trial. `distinct`: one sequence
    of each class is enough. `last`: only the last step of a sequence counts. `training`: so many training sequences
    are drawn once per trial and presented in random order; 0: every training sequence is a fresh one.
    """

    kind: ClassVar[str] = "test"
    bound: float
    goals: tuple[Goal, ...]
    size: int = 256
    every: int = 100
    fresh: bool = False
    distinct: bool = False
    last: bool = False
    final: int = 0
    training: int = 0

    __test__ = False  # pytest must not collect this class


@dataclass(frozen=True)
class GrammarCriterion:
    """Judge frozen weights at every step of all training and test strings. [E1]

    judged "set": every legal symbol is more active than every other one. "most active": the most active one is legal.
    """

    kind: ClassVar[str] = "grammar"
    every: int = 256
    goals: tuple[Goal, ...] = (Goal(),)
    judged: Literal["set", "most active"] = "set"


@dataclass(frozen=True)
class TrainingSetCriterion:
    """For guessing: all `size` sequences of a training set are right; then `final` fresh sequences test the net."""

    kind: ClassVar[str] = "training set"
    bound: float
    size: int = 100
    final: int = 2560
    goals: tuple[Goal, ...] = (Goal(),)


Criterion = WindowCriterion | TestCriterion | GrammarCriterion | TrainingSetCriterion
