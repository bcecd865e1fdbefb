"""What an experiment is: task, learner, stopping criterion and the figures of the paper; all of it frozen data."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longlag.lab.criteria import Criterion
from longlag.lab.identity import canonical
from longlag.lab.learners import Learner
from longlag.tasks import Task

Reading = Literal["text", "fit"]


@dataclass(frozen=True)
class Figures:
    """What the paper prints for one stage: mean sequences until success, and figures of its test."""

    after: int | None
    test: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that no table backs.

    expects: "fails" and "succeeds" speak of this experiment alone, "slower" and "faster" compare it with the
    experiment `against` (name and reading), by sequences until success.
    """

    where: str
    says: str
    expects: Literal["fails", "succeeds", "slower", "faster"]
    against: str = ""


@dataclass(frozen=True)
class Experiment:
    """One row of a table of the paper, or one of its claims, in one reading of its text.

    Args:
        number, name: "4", "4 T=100".
        reading: "text", or "fit": what reproduces; `departs` says how it differs from the text.
        table: number of the paper's table; None beyond the tables, where a `claim` takes its place.
        cap: a trial that has seen so many sequences has failed.
        trials: how many the paper profile runs; the paper ran `paper_trials`.
        paper: figures per stage, in the order of stop.goals.
        success: the paper's success rate in percent; None where it says "some fraction" or nothing.
        note: choices of ours that the paper leaves open.
        row: the paper's row, where several experiments belong to one; otherwise the name.
    """

    number: str
    name: str
    reading: Reading
    table: int | None
    task: Task
    learner: Learner
    stop: Criterion
    cap: int
    trials: int
    paper_trials: int = 0
    paper: tuple[Figures, ...] = (Figures(None),)
    weights: str = ""
    success: float | None = 100.0
    departs: str = ""
    note: str = ""
    method: str = "LSTM"
    row: str = ""
    claim: Claim | None = None

    @property
    def settings(self) -> str:
        """Everything a trial's result depends on beside seed and code, as canonical JSON: the key of the store."""
        return canonical({"task": self.task, "learner": self.learner, "stop": self.stop, "cap": self.cap})

    @property
    def label(self) -> str:
        """Name and reading: "4 T=100/fit"."""
        return f"{self.name}/{self.reading}"

    @property
    def length(self) -> float:
        """Mean number of steps of a sequence, from a small sample."""
        return float(self.task.sample(32, np.random.default_rng(0)).lengths.mean())

    @property
    def work(self) -> float:
        """A rough guess at the nanoseconds of a trial that runs to its cap; long ones are started first."""
        return self.cap * self.length * self.learner.cost
