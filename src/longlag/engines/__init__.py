"""Engines run a cell over time. All share one signature, that of `reference.run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import reference
from longlag.engines._arguments import Norm as Norm

NAMES = ("reference", "cpu")
CPU_DTYPES = (torch.float32, torch.float64)


def check(owner: str, request: str) -> None:
    """Refuse an engine that does not exist."""
    if request not in ("auto", *NAMES):
        raise ValueError(f"{owner}: engine must be one of 'auto', {', '.join(map(repr, NAMES))}, got {request!r}")


def choose(request: str, x: Tensor) -> tuple[str, str]:
    """The engine that will serve an input like x, and why.

    >>> choose("auto", torch.zeros(1))
    ('cpu', 'compiled kernels for float32 and float64 on the CPU')
    """
    obstacle = _obstacle(x)
    if request == "cpu" and obstacle:
        raise ValueError(f"engine 'cpu' cannot serve this call: {obstacle}; engine='reference' can")
    if request != "auto":
        return request, "asked for by name"
    if obstacle:
        return "reference", obstacle
    return "cpu", "compiled kernels for float32 and float64 on the CPU"


def _obstacle(x: Tensor) -> str | None:
    """Why the CPU engine cannot serve, if it cannot."""
    if x.device.type != "cpu":
        return f"the input is on {x.device}"
    if x.dtype not in CPU_DTYPES:
        return f"the input is {x.dtype}"
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms need operations they can transform"
    return None


def run(
    request: str,
    cell: Cell,
    x: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    **options: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over time on the engine that ``request`` stands for.

    Args:
        x: inputs (T, B, I).
        W, b: input matrix (Gx·H, I) and bias (Gx·H,) or None.
        U, state, params, options: see `reference.run`.

    Returns:
        outputs (T, B, H) and the final state, like ``state``.
    """
    name, _ = choose(request, x)
    if name == "reference":
        return reference.run(cell, reference.net_inputs(cell, x, W, b), U, state, params, **options)
    from longlag.engines.cpu import run as cpu  # loads Numba

    return cpu.run(cell, x, W, b, U, state, params, **options)
