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
from longlag.cells._printer import Printer as Printer
from longlag.cells._rewrite import without_marks as without_marks

if TYPE_CHECKING:
    from longlag.cells.dynamics import antisymmetric as antisymmetric
    from longlag.cells.dynamics import cfc as cfc
    from longlag.cells.dynamics import co_rnn as co_rnn
    from longlag.cells.dynamics import ctrnn as ctrnn
    from longlag.cells.dynamics import lem as lem
    from longlag.cells.elman import elman as elman
    from longlag.cells.elman import elman_relu as elman_relu
    from longlag.cells.elman import rnn97 as rnn97
    from longlag.cells.fastgrnn import fast_grnn as fast_grnn
    from longlag.cells.gru import gru as gru
    from longlag.cells.indrnn import ind_rnn as ind_rnn
    from longlag.cells.leaky import leaky as leaky
    from longlag.cells.local import activation_feedback as activation_feedback
    from longlag.cells.local import net_feedback as net_feedback
    from longlag.cells.local import static as static
    from longlag.cells.lru import lru as lru
    from longlag.cells.lstm import lstm as lstm
    from longlag.cells.lstm97 import memory_cell as memory_cell
    from longlag.cells.mgu import gru_original as gru_original
    from longlag.cells.mgu import mgu as mgu
    from longlag.cells.minimal import min_gru as min_gru
    from longlag.cells.minimal import min_lstm as min_lstm
    from longlag.cells.peephole import coupled_lstm as coupled_lstm
    from longlag.cells.peephole import peephole_lstm as peephole_lstm
    from longlag.cells.slstm import slstm as slstm
    from longlag.cells.spiking import adaptive_lif as adaptive_lif
    from longlag.cells.spiking import lif as lif
    from longlag.cells.spiking import snn_leaky as snn_leaky
    from longlag.cells.spiking import snn_synaptic as snn_synaptic

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
    "peephole_lstm": "peephole",
    "coupled_lstm": "peephole",
    "gru_original": "mgu",
    "mgu": "mgu",
    "slstm": "slstm",
    "min_gru": "minimal",
    "min_lstm": "minimal",
    "ind_rnn": "indrnn",
    "fast_grnn": "fastgrnn",
    "antisymmetric": "dynamics",
    "co_rnn": "dynamics",
    "lem": "dynamics",
    "cfc": "dynamics",
    "ctrnn": "dynamics",
    "lif": "spiking",
    "snn_leaky": "spiking",
    "snn_synaptic": "spiking",
    "adaptive_lif": "spiking",
    "lru": "lru",
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
    public = ["Assignments", "Cell", "Partials", "Printer", "cell", "diagonal", "find", "register_printer"]
    public += ["without_marks"]
    return sorted([*public, *PUBLIC, *_HOME])
