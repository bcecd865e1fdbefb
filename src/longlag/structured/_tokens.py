"""Validation of token sequences, and conversion to (T, B) order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.layers import validation

Lengths = Tensor | Sequence[int] | None  # (B,)


class Tokens(NamedTuple):
    """Checked tokens."""

    y: Tensor  # (T, B) int64, 0 beyond the lengths
    valid: Tensor  # (T, B) bool
    lengths: Tensor | None  # (B,)


def enter(
    owner: str, argument: str, value: Any, count: int, lengths: Lengths, device: torch.device, batch_first: bool
) -> Tokens:
    """Check tokens (T, B), or (B, T) if ``batch_first``, of which there are ``count``; not read beyond the lengths."""
    layout = "(B, T)" if batch_first else "(T, B)"
    if not isinstance(value, Tensor) or value.dtype != torch.long or value.dim() != 2 or not value.numel():
        got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{owner}: {argument} must be int64 tokens {layout}, at least one, got {got}")
    if value.device != device:
        raise ValueError(f"{owner}: {argument} must be on {device} like the weights, got {value.device}")
    y = value.T if batch_first else value
    valid = torch.ones_like(y, dtype=torch.bool)
    if lengths is not None:
        lengths = validation.check_lengths(f"{owner}: {argument}", lengths, y.shape[0], y.shape[1], device)
        valid = torch.arange(len(y), device=device).unsqueeze(1) < lengths
    y = y.masked_fill(~valid, 0)
    # as in `validation`: on other devices the values are not checked
    if device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= count:
            raise ValueError(f"{owner}: {argument} must lie in 0..{count - 1}, got {low if low < 0 else high}")
    return Tokens(y, valid, lengths)
