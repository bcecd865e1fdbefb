"""Parametrisations that keep a unit's own parameter where the papers want it, for `torch.nn.utils.parametrize`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


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

    def forward(self, raw: Tensor) -> Tensor:
        return self.limit * torch.tanh(raw)

    def right_inverse(self, value: Tensor) -> Tensor:
        return torch.atanh((value / self.limit).clamp(-1 + 1e-6, 1 - 1e-6))
