"""Bounds: parametrisations that keep parameters in the papers' range, and bounds on error flow from the weights.

The parametrisations are for `torch.nn.utils.parametrize`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.linalg import matrix_norm
from torch.nn.functional import softplus

from longlag.cells import Cell


class AtLeastOne(nn.Module):
    """α = 1 + softplus(α̂): a time constant of at least one step. [LEAKY 2 α]"""

    def forward(self, raw: Tensor) -> Tensor:
        return 1 + softplus(raw)  # [LEAKY 2 α]

    def right_inverse(self, alpha: Tensor) -> Tensor:
        return torch.log(torch.expm1((alpha - 1).clamp(min=1e-6)))


class Bounded(nn.Module):
    """u = limit · tanh(û): a self-loop that forgets, |u| < limit. [LF-92 4]"""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    @property
    def cell(self) -> Cell:
        """The same as equations, for engines."""
        return _bounded(self.limit)

    def forward(self, raw: Tensor) -> Tensor:
        return self.limit * torch.tanh(raw)

    def right_inverse(self, value: Tensor) -> Tensor:
        return torch.atanh((value / self.limit).clamp(-1 + 1e-6, 1 - 1e-6))


@functools.cache
def _bounded(limit: float) -> Cell:
    from longlag.cells import cell, tanh

    @cell(gates="a", dense=False)
    def bounded(a):
        return limit * tanh(a)

    return bounded


@functools.cache
def largest_slopes() -> dict[str, float]:
    """sup |f′| of the cells y = f(a), by the key of their equations."""
    from longlag import cells

    return {cells.elman.key: 1.0, cells.elman_relu.key: 1.0, cells.rnn97.key: 0.25}  # [ELMAN 6 γ]


def gain_bound(cell: Cell, U: Tensor | None, params: Sequence[Tensor]) -> tuple[float, str] | None:
    """A bound on ‖∂state(t+1)/∂state(t)‖₂ of units without norm, and its formula; None if none is known."""
    from longlag import cells

    if cell.key in largest_slopes() and U is not None:
        gamma = largest_slopes()[cell.key]
        return gamma * float(matrix_norm(U, 2)), "‖U‖^q" if gamma == 1 else f"({gamma:g} ‖U‖)^q"
    if cell.key == cells.leaky.key and U is not None:
        rate = 1 / params[0]  # 1/α
        kept, moved = (1 - rate).abs().max(), matrix_norm(rate.unsqueeze(-1) * U, 2)
        return float(kept + moved), "(max(1 − 1/α) + ‖U/α‖)^q"
    if cell.key == cells.net_feedback.key:
        return float(params[0].abs().max()), "max|u|^q"  # [LF-92 3]
    if cell.key == cells.activation_feedback.key:
        return float(params[0].abs().max()) / 2, "(max|v|/2)^q"  # [LF-92 3]
    return None
