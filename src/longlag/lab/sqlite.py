"""The store's tables in one SQLite file of a folder."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longlag.lab.database import FORMAT, RUNS, TRIALS, StoreError
from longlag.lab.migration import FORMAT_1, from_format_1

FILE, LOCK = "results.sqlite", "results.lock"
PATIENCE = 30.0  # seconds to wait for another process's transaction
TABLES = (
    f"CREATE TABLE trials ({TRIALS}, PRIMARY KEY (experiment, reading, settings, seed, code))",
    f"CREATE TABLE runs (number INTEGER PRIMARY KEY, {RUNS})",
)


class SQLiteFile:
    """``results.sqlite`` in a folder; one run writes at a time.

    A file that is no store, is damaged, or has another format is moved aside under a new name, never overwritten;
    `aside` then holds that name. A store of format 1 is brought up to date when opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = prepared(folder)
        self.path, self.name, self.aside = self.folder / FILE, FILE, None
        if self.path.exists() and (reason := unusable(self.path)):
            self.aside = moved_aside(self.path, reason)
        self.connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")
        self._create()

    def _create(self) -> None:
        """The tables, in one transaction: a kill leaves all or nothing."""
        with self._writing():
            found = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if found == FORMAT_1:
                from_format_1(self.connection, TABLES)
            elif found == 0:
                for statement in TABLES:
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

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """The rows that a statement gives."""
        return self.connection.execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """Execute a statement in a transaction of its own."""
        with self._writing():
            return self.execute(statement, values)

    @contextmanager
    def lock(self, waiting: Callable[[], None], patience: float) -> Iterator[None]:
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

    def claim(self, key: str, done: Callable[[], bool]) -> bool:
        """Every trial: the lock keeps other runs out."""
        return True

    def release(self, key: str) -> None:
        """Nothing is held for a single trial."""

    def close(self) -> None:
        self.connection.close()


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
