"""Recorded operations as a program on arrays: which arrays are constant, kept between calls, or never read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from longlag.engines.recording import Operation

# operations without effect on memory, where the result is an array: views, bounds checks
SILENT = (
    "_local_scalar_dense",
    "aminmax",
    "min",
    "max",
    "lift_fresh",
    "empty_like",
    "new_empty",
    "empty.memory_format",
)


class View(NamedTuple):
    """How a tensor lies in an array."""

    array: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Array:
    """A piece of memory. ``name``: given by the caller, or None for intermediate values."""

    number: int
    size: int
    dtype: Any
    name: str | None = None
    lasting: bool = False
    constant: bool = False
    content: Tensor | None = None  # of constants and of lasting arrays at the start


class Program:
    """Arrays, and sections of operations on them.

    Args:
        sections: name -> operations, in the order of execution.
        named: the arrays that the caller knows: name -> tensor.
        lasting: names of those that keep their content between calls.
        wanted: tensors that are read after the last section.
    """

    def __init__(
        self,
        sections: dict[str, list[Operation]],
        named: dict[str, Tensor],
        lasting: dict[str, Tensor],
        wanted: Sequence[Tensor],
    ) -> None:
        self.arrays: dict[int, Array] = {}
        self._by_address: dict[int, Array] = {}
        self._empty = Array(-1, 0, None, "nothing")
        for name, tensor in named.items():
            self._new(tensor, name)
        for name, tensor in lasting.items():
            array = self._new(tensor, name)
            array.lasting = True
        self._find_constants(sections)
        self.sections = self._alive(sections, wanted)

    # ------------------------------------------------------------------------------------------------- memory
    def _new(self, tensor: Tensor, name: str | None = None) -> Array:
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        array = Array(len(self.arrays), size, tensor.dtype, name)
        self.arrays[array.number] = array
        self._by_address[storage.data_ptr()] = array
        return array

    def array_of(self, tensor: Tensor) -> Array:
        """The array in which a tensor lies; a new one for unknown memory."""
        if tensor.numel() == 0:
            return self._empty
        known = self._by_address.get(tensor.untyped_storage().data_ptr())
        return known or self._new(tensor)

    def view(self, tensor: Tensor) -> View:
        """How a tensor lies in its array."""
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return View(self.array_of(tensor).number, int(tensor.storage_offset()), shape, strides)

    # ---------------------------------------------------------------------------------------------- constants
    def _find_constants(self, sections: dict[str, list[Operation]]) -> None:
        """Arrays that no operation changes, and that depend on nothing but such arrays."""
        operations = [op for ops in sections.values() for op in ops]
        made: set[int] = set()
        changed: set[int] = set()
        for op in operations:
            for tensor in tensors_in([op.arguments[name] for name in op.written]):
                changed.add(self.array_of(tensor).number)
        for op in operations:
            read = {self.array_of(t).number for t in tensors_in(list(op.arguments.values()))}
            for number in read - made:  # what exists before the program: weights, and numbers as tensors
                array = self.arrays.get(number)
                if array is not None and array.name is None and number not in changed:
                    array.constant = True
            fixed = all(self.arrays[k].constant for k in read if k >= 0)
            for result in op.results:
                array = self.array_of(result)
                if array.number < 0 or array.number in read:
                    continue
                made.add(array.number)
                array.constant = fixed and array.number not in changed and array.name is None
        for op in operations:
            for tensor in (*tensors_in(list(op.arguments.values())), *op.results):
                array = self.array_of(tensor)
                if array.constant:
                    whole = tensor.detach().as_strided((array.size,), (1,), 0)
                    array.content = whole.clone()

    # --------------------------------------------------------------------------------------------- dead code
    def _alive(self, sections: dict[str, list[Operation]], wanted: Sequence[Tensor]) -> dict[str, list[Operation]]:
        """The operations whose results are read."""
        live = {self.array_of(tensor).number for tensor in wanted}
        live |= {array.number for array in self.arrays.values() if array.lasting}
        kept: dict[str, list[Operation]] = {}
        for name in reversed(sections):
            backwards = []
            for op in reversed(sections[name]):
                if self._is_silent(op) or not live & {a.number for a in self.targets(op) if not a.constant}:
                    continue
                live |= {self.array_of(t).number for t in tensors_in(list(op.arguments.values()))}
                backwards.append(op)
            kept[name] = backwards[::-1]
        self.live = live
        return {name: kept[name] for name in sections}

    def targets(self, op: Operation) -> list[Array]:
        """The arrays that an operation writes."""
        if op.written:
            return [self.array_of(t) for t in tensors_in([op.arguments[name] for name in op.written])]
        return [self.array_of(result) for result in op.results]

    def _is_silent(self, op: Operation) -> bool:
        if op.name in SILENT or all(a.number < 0 for a in self.targets(op)):
            return True
        read = {self.array_of(t).number for t in tensors_in(list(op.arguments.values()))}
        return not op.written and all(a.number in read or a.number < 0 for a in self.targets(op))  # a view


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
