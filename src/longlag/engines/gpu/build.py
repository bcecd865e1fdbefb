"""Kernels of a cell: their text, and the functions that Triton makes of it."""

from __future__ import annotations

import functools
import hashlib
import linecache
from typing import Any, NamedTuple

from longlag.cells import Cell
from longlag.engines.gpu import backward, forward, scans
from longlag.engines.gpu.equations import FUNCTIONS, HELPERS, Equations, equations

_HEAD = f"""\"\"\"Triton kernels of the cell {{name}}, written by longlag.\"\"\"

import triton
import triton.language as tl

from longlag.engines.gpu.functions import {", ".join(sorted({*FUNCTIONS.values(), *HELPERS}))}
"""
KINDS = ("scan", "local", "resident", "stepwise")


class Kernels(NamedTuple):
    """The two kernels of a cell in one kind of loop, and the equations they were printed from.

    ``compiled`` holds the options with which they were launched: Triton compiles at the first launch with each.
    """

    kind: str
    equations: Equations
    norm: bool
    forward: Any
    backward: Any
    source: str
    compiled: set[Any]


def source(cell: Cell, kind: str, norm: bool) -> str:
    """The text of a Triton module: the cell's functions, then the kernels ``forward`` and ``backward``."""
    e = equations(cell)
    if kind == "scan":
        if e.linear is None:
            raise ValueError(f"engine 'gpu': the state of cell {cell.name} does not move linearly")
        parts = [e.step, *e.linear, scans.forward(e), scans.backward(e)]
    else:
        parts = [e.step, forward.forward(kind, e, norm), backward.backward(kind, e, norm)]
    return "\n\n".join([_HEAD.format(name=cell.name), *parts])


@functools.lru_cache(maxsize=256)
def _module(text: str) -> dict[str, Any]:
    name = f"<longlag gpu {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # Triton reads the source of its functions
    scope: dict[str, Any] = {"__name__": "longlag_gpu_kernels"}
    exec(compile(text, name, "exec"), scope)
    return scope


def kernels(cell: Cell, kind: str, norm: bool = False) -> Kernels:
    """The kernels of a cell, built once per cell, kind and norm."""
    key = ("gpu", kind, norm)
    if key not in cell.engine_memory:
        text = source(cell, kind, norm)
        scope = _module(text)
        cell.engine_memory[key] = Kernels(kind, equations(cell), norm, scope["forward"], scope["backward"], text, set())
    return cell.engine_memory[key]
