"""A registry of cells by their equations: torch operators take strings, not cells."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from longlag.cells._cell import Cell

_ALIVE: dict[str, WeakSet[Cell]] = {}  # by key; cells with equal equations share an entry


def remember(cell: Cell) -> None:
    """Register a new cell for `find`."""
    for key in [key for key, cells in _ALIVE.items() if not cells]:
        del _ALIVE[key]
    _ALIVE.setdefault(cell.key, WeakSet()).add(cell)


def find(key: str) -> Cell | None:
    """A cell with these equations (see `Cell.key`) that is alive in this process, or a built-in one.

    >>> from longlag import cells
    >>> cells.find(cells.lstm.key)
    Cell(lstm: gates i f g o, states c)
    """
    if not _ALIVE.get(key):
        from longlag import cells

        for name in dir(cells):
            getattr(cells, name)  # loads it
    return next(iter(_ALIVE.get(key, ())), None)
