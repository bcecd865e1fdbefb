"""Run the trials that are asked for and not yet in the store, longest first, committing each as it ends."""

import os
import platform
import re
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
from longlag.lab.architecture import check_int
from longlag.lab.experiment import Experiment
from longlag.lab.fingerprint import fingerprint
from longlag.lab.profiles import FIRST_SEED
from longlag.lab.store import Store
from longlag.lab.trials import Record
from longlag.lab.workers import BACKENDS, Job, Stream

WAIT = 0.5  # seconds between two looks at what other runs have done


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

    Runs on several machines may fill one store on PostgreSQL at the same time; no trial is computed twice.

    Args:
        experiments: see `profiles.select`.
        out: a folder, or postgresql://user@host/database, see `Store`.
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
    begun, computed = time.monotonic(), 0
    with Store(out) as store, store.lock(lambda: say("Another run holds the store: waiting for it to end.")):
        if store.aside:
            say(f"{store.name} could not be used; it is kept as {store.aside.name}.")
        everything = wanted_jobs(experiments, trials, seed)
        known = {e: store.seeds(e) for e in experiments}
        todo = [(e, s) for e, s in everything if s not in known[e]]
        if todo:
            if foreign := store.foreign():
                say(f"{foreign:,} trials in {store.name} were made by other code: they are kept, not counted.")
            workers = BACKENDS[backend](min(jobs, len(todo)), address)
            store.begin_run(facts(command, jobs, backend))
            computed = compute(store, todo, workers, Tally(everything, todo, store), announce)
    return Outcome(computed, len(everything) - computed, time.monotonic() - begun)


def compute(
    store: Store, todo: Sequence[Job], workers: AbstractContextManager[Stream], tally: "Tally", announce: Announce
) -> int:
    """Run the trials; each is committed, then counted and announced. Returns how many this run computed.

    Trials that other runs compute are waited for, and announced too. Those of a run that died are taken up.
    """
    left, computed = dict.fromkeys(todo), 0
    with workers as stream:
        while left:
            before = computed
            for experiment, record, seconds, machine in stream(store.claimed([*left])):
                store.add(experiment, record, seconds, machine)
                del left[experiment, record.seed]
                computed += 1
                announce(tally.count(experiment, record))
            for experiment, seed in [*left]:
                for record in store.records(experiment, only=seed):
                    del left[experiment, seed]
                    announce(tally.count(experiment, record))
            if left and computed == before:
                time.sleep(WAIT)
    return computed


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
    """The command as a report may quote it: without the folders of this machine, and without a server's password."""
    words = [re.sub(r"^(--\w+=)?(postgres(?:ql)?)://.*", r"\1\2://…", word) for word in words]
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
