"""Elements of arrays in C, and pointwise statements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.export._c_loops import VARIABLES, Loops, broadcast, index, merged
from longlag.export._c_program import Array, Program, View


class Elements:
    """Writes elements of a program's arrays.

    Args:
        place: how an array is written in C.
        constant: how a constant view is written in C: its array is stored as it is read.
        real: the dtype.
    """

    def __init__(
        self, program: Program, place: Callable[[Array], str], constant: Callable[[View], str], real: torch.dtype
    ) -> None:
        self.program, self.place, self.constant, self.real = program, place, constant, real

    def copy(self, target: Tensor, source: Tensor) -> list[str]:
        """Statements that copy a tensor."""
        loops = Loops()
        self._pointwise(loops, "{src}", target, {"src": source})
        loops.close()
        return loops.lines

    def _pointwise(self, loops: Loops, expression: str, target: Tensor, given: dict[str, Any]) -> None:
        shape = tuple(target.shape)
        tensors = {k: v for k, v in given.items() if isinstance(v, Tensor) and f"{{{k}}}" in expression}
        views = [broadcast(self._read(v), shape) for v in tensors.values()]
        _, (to, *sources) = merged([self.program.view(target), *views])
        texts = {k: self._element(v, s) for (k, v), s in zip(tensors.items(), sources)}
        texts |= {k: number(v, self.real) for k, v in given.items() if isinstance(v, int | float)}
        if texts.get("alpha") in ("1", number(1.0, self.real)):
            expression = expression.replace("{alpha}*", "")
        if texts.get("value") in ("1", number(1.0, self.real)):
            expression = expression.replace("{value}*", "")
        value = expression.format_map(texts)
        loops.pointwise(to, sources, f"{self._element(target, to)} = {value};")

    def _read(self, tensor: Tensor) -> View:
        """A tensor's view; constants are stored without gaps in the order in which they are read."""
        view = self.program.view(tensor)
        if view.array >= 0 and self.program.arrays[view.array].constant:
            return View(view.array, 0, view.shape, contiguous(view.shape))
        return view

    def _element(self, tensor: Tensor, view: View, variables: Sequence[str] = VARIABLES) -> str:
        array = self.program.array_of(tensor)
        name = self.constant(self.program.view(tensor)) if array.constant else self.place(array)
        return f"{name}[{index(view, variables)}]"

    def _filled(self, target: Tensor, value: float) -> list[str]:
        loops = Loops()
        self._pointwise(loops, "{value}", target, {"value": value})
        loops.close()
        return loops.lines


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array without gaps."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def number(value: float, real: torch.dtype) -> str:
    """A number in C."""
    if isinstance(value, bool | int):
        return str(int(value)) if value >= 0 else f"({int(value)})"
    if math.isinf(value) or math.isnan(value):
        return "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)")
    exact = torch.tensor(value, dtype=real).item()
    if exact == int(exact) and abs(exact) < 1e6:
        text = f"{int(exact)}.0"
    else:
        text = f"{exact:.9g}" if real == torch.float32 else repr(exact)
        text += "" if any(c in text for c in ".en") else ".0"
    text += "f" if real == torch.float32 else ""
    return text if value >= 0 else f"({text})"
