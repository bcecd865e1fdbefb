"""Arguments of the engines: weights, normalisation, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ShapeError(ValueError, RuntimeError):
    """A tensor of the wrong shape, device or memory. Also a RuntimeError, which torch raises in this case."""


class DtypeError(TypeError, RuntimeError):
    """A tensor of the wrong dtype. Also a RuntimeError, which torch raises in this case."""


class Norm(NamedTuple):
    """Layer normalisation of each gate's net input over the units: γ (r − μ)/√(v + ε) + β, v with divisor H.

    For the paper's divisor H−1, γ and ε are rescaled: see `with_sample_variance`.
    """

    weight: Tensor  # γ (G, H)
    bias: Tensor  # β (G, H)
    eps: float

    @staticmethod
    def sample_scale(H: int) -> float:
        """κ of `with_sample_variance` for H units."""
        return ((H - 1) / H) ** 0.5

    @classmethod
    def with_sample_variance(cls, weight: Tensor, bias: Tensor, eps: float) -> Norm:
        """Variance with divisor H−1.

        (r − μ)/√(v·H/(H−1) + ε) = κ (r − μ)/√(v + κ² ε), κ = √((H−1)/H).
        """
        kappa = cls.sample_scale(weight.shape[-1])
        return cls(weight * kappa, bias, eps * kappa**2)  # [LN-RNN 5 κ]


class Weights(NamedTuple):
    """The weights that a layer passes to an engine: H units, Gx gates with a row in W, Gy with a row in U.

    `nonzeros` may change the speed only: a U with more entries is computed as a dense one. With `heads`, U must be zero
    off the blocks on the diagonal: an engine need not read it there.

    A gate adds its rows of two biases: b is the pair (bias_ih, bias_hh), or their sum (`with_summed_biases`).
    """

    W: Tensor  # (Gx·H, I)
    b: Any = None  # (Gx·H,), or the pair (Gx·H,), (Gy·H,)
    U: Tensor | None = None  # (Gy·H, H)
    b_recurrent: Tensor | None = None  # (recurrent-only gates, H), if b is the sum
    params: tuple[Tensor, ...] = ()  # each (H,)
    norm: Norm | None = None
    nonzeros: int = 0  # entries of U that may be other than zero, if U is sparse
    heads: int = 1  # for every gate, U consists of so many blocks on the diagonal

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors; None for a missing one."""
        b = self.b if isinstance(self.b, tuple) else (self.b,)
        norm = () if self.norm is None else (self.norm.weight, self.norm.bias)
        return (self.W, *b, self.U, self.b_recurrent, *self.params, *norm)

    def with_summed_biases(self, cell: Any) -> Weights:
        """The same weights with biases summed: b for gates with a row in W, b_recurrent for the others."""
        if not isinstance(self.b, tuple):
            return self
        b, b_hh = self.b
        if cell.input_gates == cell.recurrent_gates:
            return self._replace(b=b + b_hh)
        H = self.W.shape[0] // len(cell.input_gates)
        rows = dict(zip(cell.recurrent_gates, b_hh.view(-1, H).unbind(0)))
        both = [rows[gate] if gate in rows else b.new_zeros(H) for gate in cell.input_gates]
        only = [row for gate, row in rows.items() if gate not in cell.input_gates]
        return self._replace(b=b + torch.cat(both), b_recurrent=torch.stack(only) if only else None)


def zeros_for(cell: Any, x: Tensor, W: Tensor, state: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The initial state, with zeros (B, H) for missing parts."""
    H = W.shape[0] // len(cell.input_gates)
    return tuple(x.new_zeros(x.shape[1], H) if part is None else part for part in state or [None] * len(cell.fed_back))


def resets_backwards(reset: Tensor, lengths: Tensor | None) -> Tensor:
    """Resets of a run from the end to the start: between t and t+1 if a new sequence begins at t+1.

    reset (T, B) bool marks the first step of each sequence; marks in the padding are ignored.
    """
    shifted = reset.new_zeros(reset.shape)
    shifted[:-1] = reset[1:]
    if lengths is not None:
        following = torch.arange(1, len(reset) + 1, device=reset.device)
        shifted = shifted & (following[:, None] < lengths)
    return shifted


def own_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Without autocast: engines compute in the precision of the weights."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def in_float32(function: Callable[..., Any], dtype: torch.dtype, *given: Any, **named: Any) -> Any:
    """``function(*given, **named)`` with tensors of this dtype as float32; results of float32 as this dtype."""

    def converted(values: Any, old: torch.dtype, new: torch.dtype) -> Any:
        if isinstance(values, Tensor):
            return values.to(new) if values.dtype == old else values
        if isinstance(values, tuple | list):
            parts = [converted(value, old, new) for value in values]
            return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
        return values

    wide = {name: converted(value, dtype, torch.float32) for name, value in named.items()}
    return converted(function(*converted(given, dtype, torch.float32), **wide), torch.float32, dtype)
