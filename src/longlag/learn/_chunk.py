"""Steps of a stream as `Online.run` takes them: checked, and in the types of the compiled engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from longlag.layers import Layer, validation


class StreamError(ValueError):
    """A step of a chunk cannot be learned from. Parameters, state and trace are those before the step.

    Attributes:
        step: its number in the chunk.
        outputs: those of the steps before, as `Online.run` returns them.
    """

    def __init__(self, message: str, step: int, outputs: Tensor) -> None:
        super().__init__(message)
        self.step, self.outputs = step, outputs


class Steps(NamedTuple):
    """T steps of B streams; rows of targets and mask are for the scored steps."""

    x: Tensor  # (T, B, I), or symbols (T, B)
    targets: Tensor | None
    mask: Tensor | None
    active: Tensor | None
    reset: Tensor | None
    scored: Tensor | None  # (T,) bool; None: all, if there are targets
    update: Tensor | None  # (T,) bool
    single: bool  # whether the caller gave no B

    @property
    def symbols(self) -> bool:
        return not self.x.is_floating_point()

    def dense_x(self, t: int, layer: Layer) -> Tensor:
        """The input of step t as numbers (B, I)."""
        return one_hot(self.x[t], layer.input_size).to(layer.dtype) if self.symbols else self.x[t]


def checked(
    layer: Layer,
    xs: Any,
    targets: Any,
    mask: Any,
    active: Any,
    reset: Any,
    scored: Any,
    update: Any,
) -> Steps:
    """The steps of a chunk; an error names what is wrong with the arguments."""
    if not isinstance(xs, Tensor):
        raise TypeError(f"Online: xs must be a tensor or array, got {type(xs).__name__}")
    symbols = xs.dtype == torch.int64
    single = xs.dim() == (1 if symbols else 2)
    if symbols:
        low, high = (int(xs.min()), int(xs.max())) if xs.numel() else (0, 0)
        if low < 0 or high >= layer.input_size:
            raise ValueError(f"Online: symbols of xs must lie in 0..{layer.input_size - 1}, got {low} … {high}")
    else:
        validation.like("Online", "xs", xs, layer)
    if single:
        xs, targets, mask, active, reset = (
            value.unsqueeze(1) if isinstance(value, Tensor) else value for value in (xs, targets, mask, active, reset)
        )
    if xs.dim() != (2 if symbols else 3) or (not symbols and xs.shape[-1] != layer.input_size):
        wanted = f"(T, B, {layer.input_size}), (T, {layer.input_size}), or int64 symbols (T, B) or (T,)"
        raise validation.ShapeError(f"Online: xs must have shape {wanted}, got {tuple(xs.shape)}")
    T, B = xs.shape[:2]
    for name, value, shape in (("active", active, (T, B)), ("reset", reset, (T, B)), ("scored", scored, (T,)),
                               ("update", update, (T,))):  # fmt: skip
        _check_mask(name, value, shape)
    if scored is not None and targets is None:
        raise ValueError("Online: scored must come with targets, got None")
    rows = T if scored is None else int(scored.sum())
    if targets is not None and (not isinstance(targets, Tensor) or targets.shape[:2] != (rows, B)):
        got = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise validation.ShapeError(f"Online: targets must begin with ({rows}, {B}), got {got}")
    if mask is not None and (targets is None or not isinstance(mask, Tensor) or mask.shape != (rows, B)):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise validation.ShapeError(f"Online: mask must have shape {(rows, B)} and come with targets, got {got}")
    return Steps(xs, targets, mask, active, reset, scored, update, single)


def _check_mask(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if value is not None and (not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape != shape):
        got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"Online: {name} must be a bool tensor of shape {shape}, got {got}")


def targets_of(loss: Any, targets: Tensor, mask: Tensor | None, outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets for the engine: numbers (S, B, O) in the layer's dtype, or classes (S, B)."""
    if targets.dim() == 2 and targets.dtype == torch.int64:
        classes = targets if mask is None else torch.where(mask != 0, targets, 0)
        low, high = (int(classes.min()), int(classes.max())) if classes.numel() else (0, 0)
        if low < 0 or high >= outputs:
            wrong = low if low < 0 else high
            raise ValueError(f"{loss.__name__}: target must lie in 0..{outputs - 1}, got {wrong}")
        return classes.contiguous()
    if targets.dim() != 3 or targets.shape[-1] != outputs or not targets.is_floating_point():
        wanted = f"numbers (…, {outputs}) or int64 classes"
        raise ValueError(
            f"{loss.__name__}: targets must be {wanted}, got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    return targets.to(dtype).contiguous()
