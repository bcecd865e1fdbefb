"""Operators that torch sees when it compiles, exports or traces a layer; the CPU engine is loaded when one runs.

The operators are registered when longlag is imported, so that an exported program finds them in a new process.
Operators take strings and tensors, so a cell is passed as a string: its name and `Cell.key`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlag import cells

# Defined through `Library`: `custom_op` would load torch._dynamo (one second) at the first call.
_ARGUMENTS = (
    "str key, str[] names, Tensor[] given, bool reverse, float eps, Tensor? mask, Tensor? lengths, Tensor? reset"
)
_library = torch.library.Library("longlag", "FRAGMENT")
_library.define("each_of_a_batch(int call, Tensor errors) -> Tensor")
_library.define(f"recurrent({_ARGUMENTS}) -> Tensor[]")
_library.define(f"recurrent_backward({_ARGUMENTS}, Tensor out, Tensor kept, Tensor[] d_results) -> Tensor[]")


def cell_called(engine: str, name: str, key: str) -> cells.Cell:
    """The cell with this `Cell.key`, by which an operator of the engine names it."""
    cell = cells.find(key)
    if cell is None:
        raise LookupError(
            f"engine '{engine}': this program runs the cell {name} (key {key}), which does not exist in this process; "
            "import the module that defines it first"
        )
    return cell


def one_by_one(operator: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A vmap rule (see ``torch.library.register_vmap``): one call for each sample, results stacked."""

    def select(value: Any, axis: Any, k: int) -> Any:
        if isinstance(value, list | tuple):
            return [select(each, axis[i] if axis is not None else None, k) for i, each in enumerate(value)]
        return value if axis is None else value.select(axis, k)

    def rule(info: Any, in_dims: Any, *values: Any) -> tuple[Any, Any]:
        results = [operator(*select(values, in_dims, k)) for k in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = [torch.stack(each) for each in zip(*results)]
        return (stacked, [0] * len(stacked)) if isinstance(results[0], list) else (tuple(stacked), (0,) * len(stacked))

    return rule


_calls: dict[int, Callable[[Tensor], Tensor]] = {}  # the running calls, by id


def each_of_a_batch(
    function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]
) -> list[Tensor]:
    """function(*tensors), results of these shapes; if ``tensors`` are batched (vmap), one call for each sample.

    torch has two kinds of vmap. Both loop over an operator from one tensor to one tensor.
    """
    given = [tensor.shape for tensor in tensors]

    def one(flat: Tensor) -> Tensor:
        return torch.cat([result.reshape(-1) for result in function(*_unflattened(flat, given))])

    _calls[id(one)] = one
    try:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        return _unflattened(torch.ops.longlag.each_of_a_batch(id(one), flat), shapes)
    finally:
        del _calls[id(one)]


def _unflattened(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
    return [flat[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes)]


def _cpu() -> Any:
    from longlag.engines.cpu.runtime import operators  # loads LLVM

    return operators


def _forward(key: str, names: list[str], given: list[Tensor], *options: Any) -> list[Tensor]:
    return _cpu().forward(key, names, given, *options)


def _backward(key: str, names: list[str], given: list[Tensor], *options_and_results: Any) -> list[Tensor]:
    return _cpu().backward(key, names, given, *options_and_results)


def _forward_shapes(key: str, names: list[str], given: list[Tensor], *options: Any) -> list[Tensor]:
    return _cpu().shapes(key, names, given, *options)


def _backward_shapes(key: str, names: list[str], given: list[Tensor], *options_and_results: Any) -> list[Tensor]:
    return [value.new_empty(value.shape) for value in given]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    ctx.key, ctx.names, given, ctx.reverse, ctx.eps, *optional = inputs
    ctx.save_for_backward(output[0], output[-1], *optional, *given)


def _gradients(ctx: Any, d_results: Sequence[Tensor]) -> tuple[Any, ...]:
    out, kept, mask, lengths, reset, *given = ctx.saved_tensors
    options = (ctx.reverse, ctx.eps, mask, lengths, reset)
    d = torch.ops.longlag.recurrent_backward(ctx.key, ctx.names, given, *options, out, kept, d_results[:-1])
    return None, None, d, *[None] * 5


_library.impl("each_of_a_batch", lambda call, errors: _calls[call](errors), "CPU")
_library.impl("recurrent", _forward, "CPU")
_library.impl("recurrent_backward", _backward, "CPU")
torch.library.register_fake("longlag::recurrent", _forward_shapes, lib=_library)
torch.library.register_fake("longlag::recurrent_backward", _backward_shapes, lib=_library)
torch.library.register_autograd("longlag::recurrent", _gradients, setup_context=_save, lib=_library)
for _name in ("each_of_a_batch", "recurrent", "recurrent_backward"):
    _rule = one_by_one(getattr(torch.ops.longlag, _name))
    torch.library.register_vmap(f"longlag::{_name}", _rule, lib=_library)
