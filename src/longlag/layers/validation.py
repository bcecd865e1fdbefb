"""Validation of arguments, and conversion of a layer's input to (T, B, …) order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from longlag.engines import ShapeError as ShapeError


def positive(owner: str, argument: str, value: Any, *, least: int = 1) -> int:
    """``value`` if it is an int of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = {0: "a non-negative int", 1: "a positive int"}.get(least, f"an int of at least {least}")
        raise ValueError(f"{owner}: {argument} must be {kind}, got {value!r}")
    return value


def probability(owner: str, argument: str, value: Any) -> float:
    """``value`` if it is a number in [0, 1)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{owner}: {argument} must be a number in [0, 1), got {value!r}")
    return float(value)


def number(owner: str, argument: str, value: Any) -> float:
    """``value`` if it is a finite number, not negative."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{owner}: {argument} must be a finite number, not negative, got {value!r}")
    return float(value)


def one_of(owner: str, argument: str, value: Any, choices: Sequence[Any]) -> Any:
    """``value`` if it is among ``choices``."""
    if value not in choices:
        raise ValueError(f"{owner}: {argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


@dataclass(slots=True)
class Sequences:
    """A validated input: x (T, B, I), lengths (B,) or None, reset (T, B) or None, and its original layout.

    ``numbers``: those per step of a cell, by name, each (T, B, H).
    """

    x: Tensor
    lengths: Tensor | None
    reset: Tensor | None
    batched: bool
    batch_first: bool
    numbers: dict[str, Tensor] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return self.x.shape[0]

    @property
    def batch(self) -> int:
        return self.x.shape[1]

    def restore(self, y: Tensor) -> Tensor:
        """(T, B, …) back in the caller's layout."""
        if not self.batched:
            return y.squeeze(1)
        return y.transpose(0, 1) if self.batch_first else y


class Placed(Protocol):
    """Anything with a dtype and a device: a tensor, or a layer."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


def like(owner: str, argument: str, value: Any, weight: Placed) -> Tensor:
    """``value`` if it is a tensor of the weights' dtype and device."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{owner}: {argument} must be a tensor, got {type(value).__name__}")
    if value.dtype != weight.dtype:
        raise TypeError(f"{owner}: {argument} must be {weight.dtype} like the weights, got {value.dtype}")
    if value.device != weight.device:
        raise ValueError(f"{owner}: {argument} must be on {weight.device} like the weights, got {value.device}")
    return value


def autocast(value: Any, weight: Placed) -> Any:
    """Under autocast an input may have any precision; layers compute in the precision of their weights."""
    if not isinstance(value, Tensor) or not torch.amp.is_autocast_available(device := value.device.type):
        return value
    return value.to(weight.dtype) if value.is_floating_point() and torch.is_autocast_enabled(device) else value


def sequences(layer: Any, x: Any, lengths: Any, reset: Any) -> Sequences:
    """Validate a layer's input (T, B, I), (B, T, I) if ``batch_first``, or (T, I) unbatched."""
    owner, batch_first = layer.class_name, layer.batch_first
    weight = layer.any_weight
    usual = isinstance(x, Tensor) and x.dtype is weight.dtype
    if not usual or not ((x.is_cpu and weight.is_cpu) or x.device == weight.device):
        x = like(owner, "input", autocast(x, weight), weight)  # raises the error that names the difference
    shape = x.shape
    batched = len(shape) == 3
    if not batched and len(shape) != 2:
        raise ShapeError(f"{owner}: input must have 2 or 3 dimensions, got shape {tuple(shape)}")
    if shape[-1] != layer.input_size:
        raise ShapeError(f"{owner}: input must have {layer.input_size} features, got shape {tuple(shape)}")
    if not batched:
        x = x.unsqueeze(1)
    elif batch_first:
        x = x.transpose(0, 1)
    if x.shape[0] == 0:
        raise ShapeError(f"{owner}: input must have at least one step, got shape {tuple(shape)}")
    if lengths is not None:
        T, B, _ = x.shape
        if not batched:
            raise ShapeError(f"{owner}: lengths needs a batched input, got one sequence")
        lengths = check_lengths(owner, lengths, T, B, x.device)
        beyond = torch.arange(T, device=x.device)[:, None] >= lengths
        x = x.masked_fill(beyond.unsqueeze(-1), 0)  # padding may hold NaN, which must not reach a gradient
    if reset is not None:
        reset = _reset(owner, reset, x.shape[0], x.shape[1], batched, batch_first, x.device)
    return Sequences(x, lengths, reset, batched, batch_first)


def check_lengths(owner: str, lengths: Any, T: int, B: int, device: torch.device) -> Tensor:
    """``lengths`` (B,) as a tensor, each in 1..T."""
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths, device=device)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(
            f"{owner}: lengths must be ints of shape ({B},), got {lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    if lengths.device != device:
        raise ValueError(f"{owner}: lengths must be on {device} like the input, got {lengths.device}")
    # On other devices the values are not checked, to avoid synchronisation: 0 means no step, more than T means T.
    if lengths.device.type == "cpu" and B and not torch.compiler.is_compiling():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > T:
            wrong = low if low < 1 else high
            raise ValueError(f"{owner}: lengths must lie in 1..{T}, got {wrong}")
    return lengths


def _reset(owner: str, reset: Any, T: int, B: int, batched: bool, batch_first: bool, device: torch.device) -> Tensor:
    shape = ((B, T) if batch_first else (T, B)) if batched else (T,)
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool or reset.shape != shape:
        got = f"{reset.dtype} of shape {tuple(reset.shape)}" if isinstance(reset, Tensor) else repr(reset)
        raise ShapeError(f"{owner}: reset must be a bool tensor of shape {shape}, got {got}")
    if reset.device != device:
        raise ValueError(f"{owner}: reset must be on {device} like the input, got {reset.device}")
    if not batched:
        return reset.unsqueeze(1)
    return reset.transpose(0, 1) if batch_first else reset


def state_parts(
    owner: str, state: Any, names: Sequence[str], shapes: Sequence[tuple[int, ...]], weight: Placed
) -> tuple[Tensor, ...]:
    """Validate a state: a tensor if it has one part, else a tuple of tensors. Returns the parts."""
    parts = (state,) if isinstance(state, Tensor) else state
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        got = f"{len(parts)} parts" if isinstance(parts, tuple | list) else type(state).__name__
        kind = "a tensor" if len(names) == 1 else f"a tuple of {len(names)} tensors"
        raise ValueError(f"{owner}: state must be {kind} ({', '.join(names) or 'none'}), got {got}")
    parts = tuple(like(owner, f"state {name}", autocast(part, weight), weight) for name, part in zip(names, parts))
    for name, part, shape in zip(names, parts, shapes):
        if part.shape != shape:
            raise ShapeError(f"{owner}: state {name} must have shape {shape}, got {tuple(part.shape)}")
    return parts


def check_finite(owner: str, state_dict: dict[str, Any], prefix: str = "") -> None:
    """Refuse NaN and infinity in weights."""
    for name, value in state_dict.items():
        if (
            name.startswith(prefix)
            and isinstance(value, Tensor)
            and value.is_floating_point()
            and not bool(torch.isfinite(value).all())
        ):
            raise ValueError(f"{owner}: {name} must be finite, got NaN or infinity")
