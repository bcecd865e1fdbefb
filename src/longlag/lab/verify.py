"""Do stored trials come out of today's code again? A sample is run and compared, record by record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longlag.lab.architecture import check_int
from longlag.lab.experiment import Experiment
from longlag.lab.store import Store
from longlag.lab.trials import Record, trial

LONGEST = 20e9  # nanoseconds, about: longer trials are not drawn


@dataclass(frozen=True)
class Check:
    """A stored trial that was run again."""

    label: str
    seed: int
    code: str  # that made the stored record
    stored: Record
    again: Record

    @property
    def same(self) -> bool:
        """Is every number the same?"""
        return self.stored == self.again

    @property
    def sentence(self) -> str:
        """In words: what differs, and sequences until success (or the cap) then and now."""
        then, now = self.stored.as_dict(), self.again.as_dict()
        other = [name for name in then if then[name] != now[name]]
        found = f"differs in {', '.join(other)} ({then['sequences']:,}, now {now['sequences']:,})" if other else "same"
        return f"{self.label} seed {self.seed}, code {self.code}: {found}"


def verify(
    folder: str | Path,
    experiments: Sequence[Experiment],
    trials: int = 20,
    seed: int = 0,
    announce: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Run a random sample of the trials in a folder again, whatever code made them, and compare the records.

    A record is the same if every number in it is: sequences until success, figures of the tests, learning curve. Trials
    that take more than about 20 s are not drawn. Nothing is written.
    """
    check_int("verify", "trials", trials, 1)
    stored: list[tuple[Experiment, str, Record]] = []
    with Store(folder) as store:
        for experiment in experiments:
            cost = experiment.length * experiment.learner.cost
            for code in store.codes(experiment):
                found = store.records(experiment, code)
                stored += [(experiment, code, record) for record in found if record.sequences * cost < LONGEST]
    order = np.random.default_rng(seed).permutation(len(stored))[:trials]
    checks = []
    for experiment, code, record in (stored[place] for place in order):
        again = trial(experiment, record.seed)
        checks.append(Check(experiment.label, record.seed, code, record, again))
        announce(checks[-1])
    return checks
