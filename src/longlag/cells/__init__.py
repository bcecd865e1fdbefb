"""Recurrent cells as equations. Named cells are loaded on first access, because tracing needs SymPy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from longlag.cells._assignments import Assignments as Assignments
from longlag.cells._cell import Cell as Cell
from longlag.cells._cell import Partials as Partials
from longlag.cells._cell import cell as cell
from longlag.cells._cell import register_printer as register_printer
from longlag.cells._functions import *  # noqa: F403
from longlag.cells._known import find as find
from longlag.cells._language import PUBLIC
from longlag.cells._local import diagonal as diagonal
from longlag.cells._names import HOME
from longlag.cells._printer import Printer as Printer
from longlag.cells._rewrite import without_marks as without_marks
from longlag.cells._typed import from_text as from_text

if TYPE_CHECKING:
    from longlag.cells._names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{HOME[name]}")
    # `cells.elman` is the cell, not the module: set every cell of the module as an attribute
    for other in (other for other, file in HOME.items() if file == HOME[name]):
        globals()[other] = getattr(home, other)
    return globals()[name]


def __dir__() -> list[str]:
    public = ["Assignments", "Cell", "Partials", "Printer", "cell", "diagonal", "find", "from_text"]
    public += ["register_printer", "without_marks"]
    return sorted([*public, *PUBLIC, *HOME])
