"""What a report is made of: the trials of a store, one code per experiment, and how they were made."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.profiles import EARLIER, FIRST_SEED, paper
from longlag.lab.store import Store, StoreError
from longlag.report.verdicts import Result, seeds_of


@dataclass(frozen=True)
class Collection:
    """Results with the facts about them that a report states."""

    results: tuple[Result, ...]
    runs: tuple[dict[str, Any], ...]
    seconds: float  # of processor time
    unnoted: int  # trials in the store that no run accounts for

    @property
    def trials(self) -> int:
        """Trials reported."""
        return sum(len(result.records) for result in self.results)

    @property
    def codes(self) -> dict[str, int]:
        """Fingerprint of the code that made trials -> how many of them are reported."""
        counts: dict[str, int] = {}
        for result in self.results:
            if result.records:
                counts[result.code] = counts.get(result.code, 0) + len(result.records)
        return counts

    @property
    def seeds(self) -> str:
        """The seeds of the trials reported, as ranges."""
        return seeds_of([record for result in self.results for record in result.records])

    @property
    def digest(self) -> str:
        """SHA-256 of all records reported, with settings and code: two reports with the same digest show the same."""
        found = hashlib.sha256()
        for result in self.results:
            for record in result.records:
                key = (result.experiment.settings, result.code, record.as_dict())
                found.update(json.dumps(key, sort_keys=True).encode())
        return found.hexdigest()

    @property
    def took(self) -> str:
        """One sentence about all of it."""
        return f"{self.trials:,} trials, {self.seeds}, {self.seconds / 60:,.0f} minutes of processor time together."


def merged(runs: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Runs of the same command under the same circumstances as one: an interrupted run and those that went on."""
    found: dict[tuple, dict[str, Any]] = {}
    for run in runs:
        key = tuple((name, value) for name, value in run.items() if name not in ("trials", "seconds", "ended"))
        if key in found:
            first = found[key]
            found[key] = first | {"trials": first["trials"] + run["trials"], "ended": run["ended"],
                                  "seconds": first["seconds"] + run["seconds"]}  # fmt: skip
        else:
            found[key] = run
    return tuple(found.values())


def result_of(store: Store, experiment: Experiment, seed: int, known: dict[str, Experiment]) -> Result:
    """The trials of an experiment from a seed on, made by this code, or if there are none by the code with the most.

    Where these are fewer than the paper ran and earlier ones are more, the earlier ones stand.
    """
    code = next(iter(store.codes(experiment, seed)), store.code)
    records = [record for record in store.records(experiment, code) if record.seed >= seed]
    if len(records) < experiment.paper_trials and seed > EARLIER:
        before = next(iter(store.codes(experiment, EARLIER)), code)
        found = store.records(experiment, before)
        old = [record for record in found if EARLIER <= record.seed < seed]
        if len(old) > len(records):
            code, records = before, old
    other = known.get(experiment.claim.against) if experiment.claim else None
    compared = []
    if other is not None:
        codes = store.codes(other, seed)
        beside = code if code in codes else next(iter(codes), code)
        compared = [record for record in store.records(other, beside) if record.seed >= seed]
    return Result(experiment, records, code, compared)


def collect(
    folder: str | Path, experiments: Sequence[Experiment], seed: int = FIRST_SEED, code: str | None = None
) -> Collection:
    """The results in a folder, from a seed on; lower seeds were for choosing settings.

    code: fingerprint of the code whose trials are preferred, by default this code.
    """
    with Store(folder, code) as store:
        if store.aside:
            raise StoreError(f"report: {store.name} could not be read; it is kept as {store.aside.name}")
        known = {e.label: e for e in (*paper(), *experiments)}
        results = tuple(result_of(store, e, seed, known) for e in experiments)
        seconds = sum(store.seconds(r.experiment, min(x.seed for x in r.records), r.code) for r in results if r.records)
        return Collection(results, merged(store.runs()), seconds, store.unnoted())
