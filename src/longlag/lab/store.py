"""Results in a database: a finished trial is on disk before anybody hears of it, and is never computed again."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from longlag.lab.database import StoreError as StoreError
from longlag.lab.database import database_at
from longlag.lab.experiment import Experiment
from longlag.lab.fingerprint import fingerprint
from longlag.lab.trials import Record

KEY = "experiment = ? AND reading = ? AND settings = ?"


class Store:
    """The results in a folder, or in the database of a URL. Use as a context manager; `lock` it to write.

    A trial is identified by the experiment's name and reading, its settings (canonical JSON, see `identity`), the seed,
    and the fingerprint of the code that ran it. Trials made by other code are kept and can be asked for by their
    fingerprint; they are never mixed with others.

    Args:
        place: a folder, whose file results.sqlite one run writes at a time; or postgresql://user@host/database, which
            runs on several machines share.
        code: the fingerprint that counts as this code.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.count(), store.name
    (0, 'results.sqlite')
    """

    def __init__(self, place: str | Path, code: str | None = None) -> None:
        self.code, self.run = code or fingerprint(), None
        self.database = database_at(place)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    @property
    def name(self) -> str:
        """What messages call the store."""
        return self.database.name

    @property
    def aside(self) -> Path | None:
        """Where a file that could not be used was moved."""
        return self.database.aside

    def lock(
        self, waiting: Callable[[], None] = lambda: None, patience: float = float("inf")
    ) -> AbstractContextManager[None]:
        """Held by a run. Another run on the same file calls `waiting` and waits; runs on a server share the work."""
        return self.database.lock(waiting, patience)

    def begin_run(self, facts: dict[str, Any]) -> None:
        """Note how a run is made (command, versions, machine); the trials added from now on belong to it."""
        text = "INSERT INTO runs (started, facts) VALUES (?, ?) RETURNING number"
        ((self.run,),) = self.database.write(text, (now(), json.dumps(facts)))

    def claimed(self, jobs: Sequence[tuple[Experiment, int]]) -> Iterator[tuple[Experiment, int]]:
        """Those of the jobs that no other run has done or is doing, one by one; they are this run's until added."""
        for experiment, seed in jobs:
            done = partial(self._has, experiment, seed)
            if self.database.claim(self._claim_of(experiment, seed), done):
                yield experiment, seed

    def _has(self, experiment: Experiment, seed: int) -> bool:
        return bool(self.records(experiment, only=seed))

    def _claim_of(self, experiment: Experiment, seed: int) -> str:
        return json.dumps([experiment.name, experiment.reading, experiment.settings, seed, self.code])

    def add(self, experiment: Experiment, record: Record, seconds: float, machine: str) -> None:
        """Commit a finished trial; one that is there already stays as it is."""
        row = (record.experiment, record.reading, experiment.settings, record.seed, self.code)
        text = json.dumps(record.as_dict(), sort_keys=True, separators=(",", ":"))
        self.database.write(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (*row, text, seconds, machine, now(), self.run),
        )
        self.database.release(self._claim_of(experiment, record.seed))

    def runs(self) -> list[dict[str, Any]]:
        """The facts of all runs that finished a trial, oldest first, with their trials and wall time in seconds.

        Both come from the trials, so a run that was killed counts with all it had finished. A run of format 1 noted
        them itself, at its end.
        """
        rows = self.database.execute(
            "SELECT started, facts, count(trials.seed), max(finished) "
            "FROM runs LEFT JOIN trials ON trials.run = runs.number GROUP BY runs.number ORDER BY runs.number"
        )
        found = []
        for started, facts, trials, ended in rows:
            noted = json.loads(facts)
            if trials:
                seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
                found.append({**noted, "trials": trials, "seconds": round(seconds, 1), "ended": ended})
            elif "trials" in noted:
                found.append({**noted, "ended": started})
        return found

    def codes(self, experiment: Experiment, seed: int = 0) -> dict[str, int]:
        """Fingerprint -> trials of an experiment from a seed on; first this code, then the most trials, the oldest."""
        text = f"SELECT code, count(*), min(finished) FROM trials WHERE {KEY} AND seed >= ? GROUP BY code"
        found = self.database.execute(text, (*key(experiment), seed))
        first = sorted(found, key=lambda row: (row[0] != self.code, -row[1], row[2], row[0]))
        return {code: trials for code, trials, _ in first}

    def seeds(self, experiment: Experiment) -> set[int]:
        """Seeds for which this experiment, with these settings, has been run by this code."""
        return {seed for (seed,) in self._select(experiment, "seed", self.code)}

    def records(self, experiment: Experiment, code: str | None = None, only: int | None = None) -> list[Record]:
        """Finished trials of an experiment, by seed; code: those made by other code; only: one seed."""
        found = self._select(experiment, "record", code or self.code, only)
        return [Record.from_dict(json.loads(text)) for (text,) in found]

    def seconds(self, experiment: Experiment, seed: int = 0, code: str | None = None) -> float:
        """Processor time its trials took, from a seed on."""
        found = self._select(experiment, "seed, seconds", code or self.code)
        return sum(value for each, value in found if each >= seed)

    def _select(self, experiment: Experiment, column: str, code: str, only: int | None = None) -> Iterable[tuple]:
        text, values = f"SELECT {column} FROM trials WHERE {KEY} AND code = ?", [*key(experiment), code]
        if only is not None:
            text, values = f"{text} AND seed = ?", [*values, only]
        return self.database.execute(f"{text} ORDER BY seed", values)

    def count(self) -> int:
        """Trials in the store, whatever code made them."""
        return self.database.execute("SELECT count(*) FROM trials")[0][0]

    def unnoted(self) -> int:
        """Trials that no run accounts for: longlag 0.1 noted a run at its end, so a killed run left only its trials."""
        alone = self.database.execute("SELECT count(*) FROM trials WHERE run IS NULL")[0][0]
        rows = self.database.execute("SELECT facts FROM runs")
        return max(0, alone - sum(json.loads(facts).get("trials", 0) for (facts,) in rows))

    def foreign(self) -> int:
        """Trials in the store that other code made."""
        return self.database.execute("SELECT count(*) FROM trials WHERE code != ?", (self.code,))[0][0]


def key(experiment: Experiment) -> tuple[str, str, str]:
    """What identifies an experiment."""
    return experiment.name, experiment.reading, experiment.settings


def now() -> str:
    """The time, as text (UTC)."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
