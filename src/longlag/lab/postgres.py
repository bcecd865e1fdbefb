"""The store's tables on a PostgreSQL server, which runs on several machines share.

A run claims a trial by an advisory lock of its connection before it computes it. The server frees the locks of a
connection that ends, so the trials of a run that was killed are taken up by the others.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from longlag.lab.database import FORMAT, RUNS, TRIALS, StoreError

TABLES = (
    f"CREATE TABLE trials ({TRIALS})",
    # settings may be longer than a key of the server
    "CREATE UNIQUE INDEX trials_key ON trials (experiment, reading, md5(settings), seed, code)",
    f"CREATE TABLE runs (number SERIAL PRIMARY KEY, {RUNS})",
    "CREATE TABLE store_format (format INTEGER NOT NULL)",
    f"INSERT INTO store_format VALUES ({FORMAT})",
)
MAKING = 0x6C6F6E676C6167  # the lock held while tables are made
SILENCE = {"idle": 60, "interval": 10, "count": 3}  # a machine that says nothing for 90 s has lost its claims


class PostgreSQL:
    """Tables in the database of a URL, made when it has none. Several runs write at the same time."""

    aside = None  # nothing on a server is moved

    def __init__(self, url: str) -> None:
        self.driver = driver()
        try:
            self.connection = self.driver.connect(url, autocommit=True)
        except self.driver.Error as error:
            raise StoreError(f"Store: the PostgreSQL server cannot be reached ({error})") from error
        self.name = f"the database {self.connection.info.dbname}"
        with self._errors():
            for name, value in SILENCE.items():
                self.execute("SELECT set_config(?, ?, false)", (f"tcp_keepalives_{name}", str(value)))
            with self.connection.transaction():
                self.execute("SELECT pg_advisory_xact_lock(?)", (MAKING,))
                if self.execute("SELECT to_regclass('store_format')") == [(None,)]:
                    for statement in TABLES:
                        self.connection.execute(statement)
            ((found,),) = self.execute("SELECT format FROM store_format")
        if found != FORMAT:
            self.close()
            raise StoreError(f"Store: {self.name} must have format {FORMAT}, got {found}; use another database")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.driver.Error as error:
            text = f"Store: {self.name} cannot be used ({str(error).strip()}); every trial announced is safe in it"
            raise StoreError(f"{text}. Mend it, then run the same command again.") from error

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """The rows that a statement gives."""
        cursor = self.connection.execute(statement.replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description else []

    def write(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """Execute a statement; the server commits each before it answers."""
        with self._errors():
            return self.execute(statement, values)

    @contextmanager
    def lock(self, waiting: Callable[[], None], patience: float) -> Iterator[None]:
        """Nobody is held off."""
        yield

    def claim(self, key: str, done: Callable[[], bool]) -> bool:
        """Take the lock of a trial, unless a run that is alive holds it, or one has added the trial."""
        if self.write("SELECT pg_try_advisory_lock(?)", (number(key),)) == [(False,)]:
            return False
        if finished := done():
            self.release(key)
        return not finished

    def release(self, key: str) -> None:
        """Give back the lock of a trial."""
        self.write("SELECT pg_advisory_unlock(?)", (number(key),))

    def close(self) -> None:
        self.connection.close()


def number(key: str) -> int:
    """64 bits that stand for a key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], signed=True)


def driver() -> Any:
    """The package that speaks with PostgreSQL, where it is installed."""
    try:
        import psycopg
    except ImportError as error:
        text = "Store: a store on PostgreSQL needs the extra 'postgres' (pip install 'longlag[postgres]')"
        raise ValueError(f"{text}, got {error}") from error
    return psycopg
