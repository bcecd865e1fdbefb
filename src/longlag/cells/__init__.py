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
from longlag.cells._printer import Printer as Printer
from longlag.cells._rewrite import without_marks as without_marks

if TYPE_CHECKING:
    from longlag.cells.elman import elman as elman
    from longlag.cells.elman import elman_relu as elman_relu
    from longlag.cells.elman import rnn97 as rnn97
    from longlag.cells.gru import gru as gru
    from longlag.cells.leaky import leaky as leaky
    from longlag.cells.local import activation_feedback as activation_feedback
    from longlag.cells.local import net_feedback as net_feedback
    from longlag.cells.local import static as static
    from longlag.cells.lstm import lstm as lstm
    from longlag.cells.lstm97 import memory_cell as memory_cell

_HOME = {
    "elman": "elman",
    "elman_relu": "elman",
    "rnn97": "elman",
    "lstm": "lstm",
    "gru": "gru",
    "leaky": "leaky",
    "static": "local",
    "net_feedback": "local",
    "activation_feedback": "local",
    "memory_cell": "lstm97",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOME[name]}")
    # `cells.elman` is the cell, not the module: set every cell of the module as an attribute
    for other in (other for other, file in _HOME.items() if file == _HOME[name]):
        globals()[other] = getattr(home, other)
    return globals()[name]


def __dir__() -> list[str]:
    public = ["Assignments", "Cell", "Partials", "Printer", "cell", "find", "register_printer", "without_marks"]
    return sorted([*public, *PUBLIC, *_HOME])
