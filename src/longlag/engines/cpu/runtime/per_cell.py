"""Caches per cell, released with the cell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast
from weakref import WeakSet

from longlag.cells import Cell

P = ParamSpec("P")
R = TypeVar("R")


class _PerCell(Generic[P, R]):
    def __init__(self, function: Callable[P, R], maxsize: int) -> None:
        self._function, self._maxsize = function, maxsize
        self._cells: WeakSet[Cell] = WeakSet()
        self._by_value = functools.lru_cache(maxsize)(function)  # units in blocks: every call makes an equal object

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.of(args[0])(*args[1:])

    def of(self, cell: Any) -> Callable[..., R]:
        """The function for one cell, which takes the remaining arguments."""
        if not isinstance(cell, Cell):
            return functools.partial(cast(Any, self._by_value), cell)
        memory = cell.engine_memory.get(self)
        if memory is None:
            memory = functools.lru_cache(self._maxsize)(functools.partial(cast(Any, self._function), cell))
            cell.engine_memory[self] = memory
            self._cells.add(cell)
        return memory

    def cache_clear(self) -> None:
        """Clear all caches."""
        self._by_value.cache_clear()
        for cell in self._cells:
            cell.engine_memory.pop(self, None)


def per_cell(function: Callable[P, R], maxsize: int) -> _PerCell[P, R]:
    """Like ``functools.lru_cache`` for a function of a cell and more, but stored in the cell and released with it."""
    return _PerCell(function, maxsize)
