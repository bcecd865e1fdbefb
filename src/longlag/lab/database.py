"""Where a store keeps its tables: a SQLite file in a folder (`sqlite`) or a PostgreSQL server (`postgres`)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

FORMAT = 2  # of the tables
TRIALS = """experiment TEXT NOT NULL, reading TEXT NOT NULL, settings TEXT NOT NULL, seed BIGINT NOT NULL,
    code TEXT NOT NULL, record TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, machine TEXT NOT NULL,
    finished TEXT NOT NULL, run INTEGER"""
RUNS = "started TEXT NOT NULL, facts TEXT NOT NULL"


class StoreError(RuntimeError):
    """The store cannot be used or written; the message says what is safe and what to do."""


class Database(Protocol):
    """What `Store` asks for. Statements are those that SQLite and PostgreSQL share, with ``?`` for values.

    Attributes:
        name: for messages.
        aside: where a file that could not be used was moved.
    """

    @property
    def name(self) -> str: ...

    @property
    def aside(self) -> Path | None: ...

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """The rows that a statement gives."""
        ...

    def write(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """Like `execute`, on disk when it returns; raises `StoreError` if it cannot be."""
        ...

    def lock(self, waiting: Callable[[], None], patience: float) -> AbstractContextManager[None]:
        """Hold off other runs, if only one may write at a time."""
        ...

    def claim(self, key: str, done: Callable[[], bool]) -> bool:
        """Whether this run may compute the trial of that key: no other run that is alive does, nor is it `done`."""
        ...

    def release(self, key: str) -> None:
        """The claim is no longer needed."""
        ...

    def close(self) -> None: ...


def database_at(place: str | Path) -> Database:
    """The database of a folder, or of a URL that begins with postgresql://."""
    if is_url(place):
        from longlag.lab.postgres import PostgreSQL

        return PostgreSQL(str(place))
    from longlag.lab.sqlite import SQLiteFile

    return SQLiteFile(Path(place))


def is_url(place: str | Path) -> bool:
    """Whether a place is a server."""
    return str(place).startswith(("postgresql://", "postgres://"))
