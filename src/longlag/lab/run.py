"""Run the trials that are asked for and not yet in the store, longest first, committing each as it ends."""

import os
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longlag import __version__
from longlag.lab.experiment import Experiment
from longlag.lab.fingerprint import fingerprint
from longlag.lab.learners import check_int
from longlag.lab.profiles import FIRST_SEED
from longlag.lab.store import Store
from longlag.lab.trials import Record
from longlag.lab.workers import BACKENDS, Job, Stream


@dataclass(frozen=True)
class Progress:
    """What is announced after each finished trial, once it is on disk."""

    experiment: Experiment
    record: Record
    done: int  # trials of this experiment
    wanted: int
    successes: int
    left: float  # seconds until all is done, about


Announce = Callable[[Progress], None]


@dataclass(frozen=True)
class Outcome:
    """How many trials were computed, how many were there already, and how long it took."""

    computed: int
    known: int
    seconds: float


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted_jobs(experiments: Sequence[Experiment], trials: int | None, seed: int) -> list[Job]:
    """Every (experiment, seed) asked for: one of each experiment, so that all is compiled once, then longest first."""
    work = {e: e.work for e in experiments}
    jobs = dict.fromkeys((e, seed + k) for e in experiments for k in range(trials or e.trials))
    return sorted(jobs, key=lambda job: (job[1] > seed, -work[job[0]], job[1]))


def reproduce(
    experiments: Sequence[Experiment],
    out: str | Path,
    *,
    trials: int | None = None,
    seed: int = FIRST_SEED,
    jobs: int | None = None,
    backend: str = "local",
    address: str | None = None,
    announce: Announce = lambda progress: None,
    say: Callable[[str], None] = lambda sentence: None,
    command: str = "",
) -> Outcome:
    """Fill the store in `out` with the trials asked for. What is there is not computed again.

    Args:
        experiments: see `profiles.select`.
        trials, seed: seeds seed, seed + 1, … as many as `trials`, or as each experiment says.
        jobs: processes, by default one per core. Records do not depend on it, nor on the backend.
        backend, address: "local", or "dask" or "ray" with the address of a running cluster.
        announce: called after each finished trial, once it is on disk.
        say: called with a sentence if another run holds the store, or if the store had to be moved aside.
    """
    if trials is not None:
        check_int("reproduce", "trials", trials, 1)
    jobs = cores() if jobs is None else jobs
    check_int("reproduce", "jobs", jobs, 1)
    check_int("reproduce", "seed", seed, 0)
    if backend not in BACKENDS:
        raise ValueError(f"reproduce: backend must be one of {tuple(BACKENDS)}, got {backend!r}")
    begun = time.monotonic()
    with Store(out) as store, store.lock(lambda: say("Another run holds the store: waiting for it to end.")):
        if store.aside:
            say(f"{store.path.name} could not be used; it is kept as {store.aside.name}.")
        everything = wanted_jobs(experiments, trials, seed)
        known = {e: store.seeds(e) for e in experiments}
        todo = [(e, s) for e, s in everything if s not in known[e]]
        if todo:
            if foreign := store.foreign():
                say(f"{foreign:,} trials in {store.path.name} were made by other code: they are kept, not counted.")
            workers = BACKENDS[backend](min(jobs, len(todo)), address)
            store.begin_run(facts(command, jobs, backend))
            compute(store, todo, workers, Tally(everything, todo, store), announce)
    return Outcome(len(todo), len(everything) - len(todo), time.monotonic() - begun)


def compute(
    store: Store, todo: Sequence[Job], workers: AbstractContextManager[Stream], tally: "Tally", announce: Announce
) -> None:
    """Run the trials; each is committed, then counted and announced."""
    with workers as stream:
        for experiment, record, seconds, machine in stream(todo):
            store.add(experiment, record, seconds, machine)
            announce(tally.count(experiment, record))


class Tally:
    """Counts trials and guesses the time left from the work done so far."""

    def __init__(self, everything: Sequence[Job], todo: Sequence[Job], store: Store) -> None:
        self.begun, self.work, self.worked = time.monotonic(), sum(e.work for e, _ in todo), 0.0
        self.wanted = Counter(e for e, _ in everything)
        self.done, self.successes = self.wanted - Counter(e for e, _ in todo), Counter()
        asked = set(everything)
        for e in self.done:
            self.successes[e] = sum(r.success for r in store.records(e) if (e, r.seed) in asked)

    def count(self, experiment: Experiment, record: Record) -> Progress:
        """One more."""
        e = experiment
        self.done[e] += 1
        self.successes[e] += record.success
        self.worked += e.work
        left = (time.monotonic() - self.begun) * (self.work - self.worked) / self.worked
        return Progress(e, record, self.done[e], self.wanted[e], self.successes[e], left)


def described(program: str, words: Sequence[str]) -> str:
    """The command as a report may quote it: without the folders of this machine."""
    return f"{program} " + shlex.join(Path(word).name if Path(word).is_absolute() else word for word in words)


def facts(command: str, jobs: int, backend: str) -> dict[str, Any]:
    """What the report says about how the numbers were made."""
    import numba
    import numpy

    return {
        "command": command, "jobs": jobs, "backend": backend, "longlag": __version__, "code": fingerprint(),
        "python": platform.python_version(), "numpy": numpy.__version__, "numba": numba.__version__,
        "system": f"{platform.system()} {platform.machine()}", "processor": processor(), "cores": cores(),
    }  # fmt: skip


def processor() -> str:
    """The processor's name, where the system tells."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
