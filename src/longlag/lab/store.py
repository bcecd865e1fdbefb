"""Results in one SQLite file: a finished trial is on disk before anybody hears of it, and is never computed again."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.fingerprint import fingerprint
from longlag.lab.migration import FORMAT_1, from_format_1
from longlag.lab.trials import Record

FORMAT = 2  # of the tables below
FILE, LOCK = "results.sqlite", "results.lock"
PATIENCE = 30.0  # seconds to wait for another process's transaction
TABLES = """
CREATE TABLE trials (experiment TEXT NOT NULL, reading TEXT NOT NULL, settings TEXT NOT NULL, seed INTEGER NOT NULL,
    code TEXT NOT NULL, record TEXT NOT NULL, seconds REAL NOT NULL, machine TEXT NOT NULL, finished TEXT NOT NULL,
    run INTEGER, PRIMARY KEY (experiment, reading, settings, seed, code));
CREATE TABLE runs (number INTEGER PRIMARY KEY, started TEXT NOT NULL, facts TEXT NOT NULL);
"""


class StoreError(RuntimeError):
    """The store cannot be used or written; the message says what is safe and what to do."""


class Store:
    """The results in a folder. Use as a context manager; `lock` it to write.

    A trial is identified by the experiment's name and reading, its settings (canonical JSON, see `identity`), the seed,
    and the fingerprint of the code that ran it. Trials made by other code are kept and can be asked for by their
    fingerprint; they are never mixed with others. A store of format 1 is brought up to date when opened.

    A file that is no store, is damaged, or has another format is moved aside under a new name, never overwritten;
    `aside` then holds that name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
    ...     store.count(), store.path.name
    (0, 'results.sqlite')
    """

    def __init__(self, folder: str | Path, code: str | None = None) -> None:
        self.folder, self.code = prepared(Path(folder)), code or fingerprint()
        self.path, self.aside, self.run = self.folder / FILE, None, None
        if self.path.exists() and (reason := unusable(self.path)):
            self.aside = moved_aside(self.path, reason)
        self.connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")
        self._create()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def _create(self) -> None:
        """The tables, in one transaction: a kill leaves all or nothing."""
        with self._writing():
            found = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if found == FORMAT_1:
                from_format_1(self.connection, TABLES)
            elif found == 0:
                for statement in TABLES.split(";"):
                    self.connection.execute(statement)
            self.connection.execute(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            text = f"Store: {self.path} cannot be written ({error}); every trial announced so far is safe in it"
            raise StoreError(f"{text}. Make room or mend it, then run the same command again.") from error

    @contextmanager
    def lock(self, waiting: Callable[[], None] = lambda: None, patience: float = float("inf")) -> Iterator[None]:
        """Only one run writes at a time; another one calls `waiting` and waits. A process that dies frees it."""
        guard = sqlite3.connect(self.folder / LOCK, timeout=0, isolation_level=None)
        begun, announced = time.monotonic(), False
        try:
            while not exclusive(guard):
                if not announced:
                    waiting()
                    announced = True
                if time.monotonic() - begun > patience:
                    raise StoreError(
                        f"Store: {self.folder} is in use by another run; wait for it or choose another folder"
                    )
                time.sleep(0.2)
            yield
        finally:
            guard.close()

    def begin_run(self, facts: dict[str, Any]) -> None:
        """Note how a run is made (command, versions, machine); the trials added from now on belong to it."""
        with self._writing():
            row = (json.dumps(facts),)
            self.run = self.connection.execute("INSERT INTO runs VALUES (NULL, datetime('now'), ?)", row).lastrowid

    def add(self, experiment: Experiment, record: Record, seconds: float, machine: str) -> None:
        """Commit a finished trial; one that is there already stays as it is."""
        row = (record.experiment, record.reading, experiment.settings, record.seed, self.code)
        text = json.dumps(record.as_dict(), sort_keys=True, separators=(",", ":"))
        with self._writing():
            self.connection.execute(
                "INSERT OR IGNORE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, datetime('now'), ?)",
                (*row, text, seconds, machine, self.run),
            )

    def runs(self) -> list[dict[str, Any]]:
        """The facts of all runs that finished a trial, oldest first, with their trials and wall time in seconds.

        Both come from the trials, so a run that was killed counts with all it had finished. A run of format 1 noted
        them itself, at its end.
        """
        rows = self.connection.execute(
            "SELECT started, facts, count(trials.seed), max(finished), "
            "(julianday(max(finished)) - julianday(started)) * 86400 "
            "FROM runs LEFT JOIN trials ON trials.run = runs.number GROUP BY runs.number ORDER BY runs.number"
        )
        found = []
        for started, facts, trials, ended, seconds in rows:
            noted = json.loads(facts)
            if trials:
                found.append({**noted, "trials": trials, "seconds": round(seconds, 1), "ended": ended})
            elif "trials" in noted:
                found.append({**noted, "ended": started})
        return found

    def codes(self, experiment: Experiment, seed: int = 0) -> dict[str, int]:
        """Fingerprint -> trials of an experiment from a seed on; first this code, then the most trials, the oldest."""
        where = "experiment = ? AND reading = ? AND settings = ? AND seed >= ?"
        key = (experiment.name, experiment.reading, experiment.settings, seed)
        order = "code != ?, count(*) DESC, min(finished), code"
        text = f"SELECT code, count(*) FROM trials WHERE {where} GROUP BY code ORDER BY {order}"
        return dict(self.connection.execute(text, (*key, self.code)).fetchall())

    def seeds(self, experiment: Experiment) -> set[int]:
        """Seeds for which this experiment, with these settings, has been run by this code."""
        return {seed for seed, *_ in self._select(experiment, "seed", self.code)}

    def records(self, experiment: Experiment, code: str | None = None) -> list[Record]:
        """Finished trials of an experiment, by seed; code: those made by other code."""
        return [Record.from_dict(json.loads(text)) for (text,) in self._select(experiment, "record", code or self.code)]

    def seconds(self, experiment: Experiment, seed: int = 0, code: str | None = None) -> float:
        """Processor time its trials took, from a seed on."""
        found = self._select(experiment, "seed, seconds", code or self.code)
        return sum(value for each, value in found if each >= seed)

    def _select(self, experiment: Experiment, column: str, code: str) -> Iterable[tuple]:
        where = "experiment = ? AND reading = ? AND settings = ? AND code = ? ORDER BY seed"
        key = (experiment.name, experiment.reading, experiment.settings, code)
        return self.connection.execute(f"SELECT {column} FROM trials WHERE {where}", key).fetchall()

    def count(self) -> int:
        """Trials in the file, whatever code made them."""
        return self.connection.execute("SELECT count(*) FROM trials").fetchone()[0]

    def unnoted(self) -> int:
        """Trials that no run accounts for: longlag 0.1 noted a run at its end, so a killed run left only its trials."""
        alone = self.connection.execute("SELECT count(*) FROM trials WHERE run IS NULL").fetchone()[0]
        rows = self.connection.execute("SELECT facts FROM runs")
        return max(0, alone - sum(json.loads(facts).get("trials", 0) for (facts,) in rows))

    def foreign(self) -> int:
        """Trials in the file that other code made."""
        return self.connection.execute("SELECT count(*) FROM trials WHERE code != ?", (self.code,)).fetchone()[0]


def exclusive(guard: sqlite3.Connection) -> bool:
    """Try to take the lock."""
    try:
        guard.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise StoreError(f"Store: the lock file cannot be used ({error})") from error
        return False
    return True


def prepared(folder: Path) -> Path:
    """The folder, made if need be and found to be writable."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"Store: out must be a folder, got the file {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"Store: out must be a writable folder, got {folder} ({error.strerror})") from error
    return folder


def unusable(path: Path) -> str:
    """Why a file cannot be used as a store; "" if it can."""
    connection = sqlite3.connect(path, timeout=PATIENCE)
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT_1, FORMAT):
            return f"format-{found}"
        if found == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return "foreign"
        return "" if connection.execute("PRAGMA quick_check").fetchone()[0] == "ok" else "damaged"
    except sqlite3.OperationalError as error:  # busy, or not to be opened: no reason to move it
        raise StoreError(f"Store: {path} cannot be opened ({error})") from error
    except sqlite3.DatabaseError:
        return "damaged"
    finally:
        connection.close()


def moved_aside(path: Path, reason: str) -> Path:
    """Rename a file that is of no use here, never over another one; its journal goes with it."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{reason}-{number}")).exists():
        number += 1
    journal = path.with_name(path.name + "-journal")
    if journal.exists():
        journal.rename(aside.with_name(aside.name + "-journal"))
    return path.rename(aside)
