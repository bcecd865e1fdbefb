"""The one door to all engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from longlag.cells import Cell
from longlag.engines import reference
from longlag.engines._arguments import Weights, zeros_for
from longlag.engines._choose import choose

_loaded: list[Any] = []  # the CPU engine, once it was needed


def run(
    request: str,
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over time on the engine that ``request`` stands for.

    Args:
        x: inputs (T, B, I).
        w: the weights.
        state: initial, each part (B, H), None for zeros; or nothing, for zeros in all parts.
        mask, lengths, reset, reverse: see `reference.run`.

    Returns:
        outputs (T, B, H) and the final state, each part (1, B, H): a layer's share of a stack's state.
    """
    if choose(request, x)[0] == "cpu":
        return _cpu().run(cell, x, w, state, mask, lengths, reset, reverse)
    w = w.together(cell)
    y, ends = reference.run(
        cell, reference.net_inputs(cell, x, w.W, w.b), w.U, zeros_for(cell, x, w.W, state), w.params,
        bias=w.b_recurrent, norm=w.norm, mask=mask, lengths=lengths, reset=reset, reverse=reverse,
    )  # fmt: skip
    return y, tuple(end.unsqueeze(0) for end in ends)


def _cpu() -> Any:
    if not _loaded:
        from longlag.engines.cpu.runtime import run  # loads LLVM

        _loaded.append(run)
    return _loaded[0]
