"""Engines run a cell over time: plain torch (`reference`), compiled kernels (`cpu`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from longlag.cells import Cell
from longlag.cells._cell import PRINTERS
from longlag.engines import reference
from longlag.engines._arguments import Biases, zeros_for
from longlag.engines._arguments import Norm as Norm
from longlag.engines._choose import check as check
from longlag.engines._choose import choose as choose


def run(
    request: str,
    cell: Cell,
    x: Tensor,
    W: Tensor,
    b: Biases,
    U: Tensor | None,
    state: Sequence[Tensor | None],
    params: Sequence[Tensor],
    **options: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over time on the engine that ``request`` stands for.

    Args:
        x: inputs (T, B, I).
        W, b: input matrix (Gx·H, I) and bias (Gx·H,), two biases that are added, or None.
        U, state, params, options: see `reference.run`; a state of None is zeros.

    Returns:
        outputs (T, B, H) and the final state, each part (1, B, H): a layer's share of a stack's state.
    """
    name, _ = choose(request, x)
    if name == "reference":
        start = zeros_for(cell, x, W, state)
        y, ends = reference.run(cell, reference.net_inputs(cell, x, W, b), U, start, params, **options)
        return y, tuple(end.unsqueeze(0) for end in ends)
    from longlag.engines.cpu import run as cpu  # loads LLVM

    return cpu.run(cell, x, W, b, U, state, params, **options)


def _cpu_source(cell: Cell) -> str:
    from longlag.engines.cpu import generate

    return generate.source(cell, "float32", norm=False)


PRINTERS["cpu"] = _cpu_source
