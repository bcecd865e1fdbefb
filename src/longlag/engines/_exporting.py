"""What a layer becomes in an exported program: a loop over time, or the recurrent operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Parts = tuple[Tensor, ...]
Step = Callable[["int | Tensor", Parts, "Tensor | None", Parts], tuple[Tensor, Parts]]


def to_onnx() -> bool:
    """Whether ``torch.onnx.export`` is running: ONNX knows no operator of longlag's."""
    return torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export()


def many(inputs: Parts) -> bool:
    """Whether the number of steps is free, or more than one."""
    return type(inputs[0].shape[0]) is not int or inputs[0].shape[0] > 1


def right_inverse(R: Tensor) -> Tensor:
    """The matrix (H, P) of least norm whose product with R (P, H) is the identity."""
    if not to_onnx():
        return torch.linalg.pinv(R)
    # ONNX has no pseudo-inverse: R′ (R R′)⁻¹ by Gauss-Jordan elimination, which needs no pivots for R R′
    rows, one = torch.cat([R @ R.t(), torch.eye(len(R), dtype=R.dtype)], 1), torch.eye(len(R), dtype=torch.bool)
    for k in range(len(R)):
        pivot = rows[k] / rows[k, k]
        rows = torch.where(one[k].unsqueeze(1), pivot, rows - rows[:, k : k + 1] * pivot)
    return R.t() @ rows[:, len(R) :]


class _Captured(TorchFunctionMode):
    """Finds the tensors that a function reads besides its arguments, and replaces them by others.

    torch's loop operator passes them as arguments.
    """

    def __init__(self, arguments: Iterable[Tensor], replaced: dict[int, Tensor] | None = None) -> None:
        super().__init__()
        self.inside = {id(value): value for value in arguments}
        self.found: dict[int, Tensor] = {}
        self.replaced = replaced or {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _mapped(self._replace, (args, kwargs or {}))
        return _mapped(self._remember, func(*args, **kwargs))

    def _remember(self, value: Tensor) -> Tensor:
        self.inside[id(value)] = value
        return value

    def _replace(self, value: Tensor) -> Tensor:
        if id(value) not in self.inside:
            self.found[id(value)] = value
            return self.replaced.get(id(value), value)
        return value


def _mapped(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Nested lists, tuples and dicts with a function applied to every tensor."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: _mapped(function, value) for key, value in values.items()}
    if type(values) in (list, tuple):  # not torch.Size and named tuples
        return type(values)(_mapped(function, value) for value in values)
    return values


def loop(one: Step, inputs: Parts, reset: Tensor | None, state: Parts, reverse: bool) -> tuple[Tensor, Parts]:
    """`reference.scan` as one operator of torch, so that the number of steps stays free.

    Args:
        one: ``(t, inputs of the step, its reset, state) -> (output, new state)``.
        inputs, reset: (T, B, …).
    """
    time = torch.arange(inputs[0].shape[0], device=inputs[0].device)
    carried = state or (time.new_zeros(1),)  # the operator wants something to carry
    over = (time, *inputs, *(() if reset is None else (reset,)))

    def step(values: tuple[Tensor, ...]) -> list[Tensor]:
        before, (t, *x) = values[: len(carried)], values[len(carried) : len(carried) + len(over)]
        y, after = one(t, tuple(x[: len(inputs)]), x[-1] if reset is not None else None, before if state else ())
        # the operator refuses a result that is also another result, or a view of an argument
        return [part.clone() for part in (*(after if state else before), y)]

    first = (*carried, *(value[0] for value in over))
    with torch.no_grad(), _Captured(first) as captured:
        step(first)

    def body(*values: Tensor) -> list[Tensor]:
        given = values[len(first) :]
        with _Captured(values, dict(zip(captured.found, given))):
            return step(values)

    if reverse:
        over = tuple(value.flip(0) for value in over)
    given = (carried, over, tuple(captured.found.values()))
    if to_onnx():  # without gradients: torch cannot decompose the operator's backward pass for free sizes
        given = _mapped(torch.Tensor.detach, given)
    *final, y = torch.ops.higher_order.scan(body, list(given[0]), list(given[1]), given[2])
    return y.flip(0) if reverse else y, tuple(final) if state else ()
