"""Engines run a cell over time. All share one signature, that of `reference.run`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longlag.cells import Cell
from longlag.engines import reference
from longlag.engines._arguments import Norm as Norm

NAMES = ("reference",)


def check(owner: str, request: str) -> None:
    """Refuse an engine that does not exist."""
    if request not in ("auto", *NAMES):
        raise ValueError(f"{owner}: engine must be one of 'auto', {', '.join(map(repr, NAMES))}, got {request!r}")


def choose(request: str) -> tuple[str, str]:
    """The engine that will serve, and why."""
    if request == "auto":
        return "reference", "plain torch under autograd serves every cell, dtype and device"
    return request, "asked for by name"


def run(request: str, cell: Cell, *args: Any, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`reference.run` on the engine that ``request`` stands for."""
    name, _ = choose(request)
    return {"reference": reference.run}[name](cell, *args, **kwargs)
