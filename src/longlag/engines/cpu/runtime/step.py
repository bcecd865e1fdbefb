"""One step of a stack of cells, without gradients: the shortest way from Python to the kernels.

The kernels are those of `run` for a sequence of one step. Every call examines class, dtype, device, negative bit,
shape, layout and storage of every tensor, as `run` does; whatever is unusual is left to `run`.
"""

from __future__ import annotations

import math
from array import array
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.engines import _private
from longlag.engines._arguments import ShapeError
from longlag.engines.cpu.runtime._private import empty_function
from longlag.engines.cpu.runtime.plan import Form, Pass, form, kind_of
from longlag.engines.cpu.runtime.program import DTYPES

_private.check_torch()
_empty = empty_function()
_data_ptr, _is_neg, _is_contiguous = Tensor.data_ptr, Tensor.is_neg, Tensor.is_contiguous
_shape, _dtype, _is_cpu = (getattr(Tensor, name).__get__ for name in ("shape", "dtype", "is_cpu"))


class LevelPlan(NamedTuple):
    """One level of the stack at fixed sizes."""

    run: Any
    table: array
    place_x: int
    place_y: int  # of the output
    weights: tuple[int, ...]  # places in the table
    states: tuple[tuple[int, int, int], ...]  # for every part of the state: places before and after, offset in bytes


class StepPlan(NamedTuple):
    """What a step needs to know, for a request that consists of the dtypes and the shapes of all tensors."""

    request: tuple[Any, ...]
    levels: list[LevelPlan]
    bytes: tuple[int, ...]  # of all tensors
    number: int  # bytes of one number
    state: tuple[Form, ...]  # of the new state
    output: Form


def step(steps: Any, tensors: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """See `longlag.engines.Steps`; ``tensors``: x, the state, the weights of all levels."""
    shapes = [*map(_shape, tensors)]
    request = (torch.get_num_threads(), *map(_dtype, tensors), *shapes)
    plan = steps.latest
    if plan is None or plan.request != request:
        plan = _planned(steps, request, tensors)
    if (
        plan is None
        or any(map(_is_neg, tensors))
        or not all(map(_is_cpu, tensors))
        or not all(map(_is_contiguous, tensors))
    ):
        return None
    addresses = [*map(_data_ptr, tensors)]
    for tensor, at, size in zip(tensors, addresses, plan.bytes):
        if not at or tensor.untyped_storage().nbytes() < size + tensor.storage_offset() * plan.number:
            return None  # `run` says what is wrong
    x, parts = tensors[0], len(steps.cell.fed_back)
    state = tuple([_empty(*each) for each in plan.state])
    ends, used, at_x, y = [*map(_data_ptr, state)], 1 + parts, addresses[0], x
    for level in plan.levels:
        table = level.table[:]
        table[level.place_x] = at_x
        for place in level.weights:
            table[place] = addresses[used]
            used += 1
        for (before, after, offset), old, end in zip(level.states, addresses[1:], ends):
            table[before], table[after] = old + offset, end + offset
        below, y = y, _empty(*plan.output)  # the output of the level below must live until the kernel ends
        at_x = table[level.place_y] = y.data_ptr()
        level.run(table)
        del below
    return y, state


def _planned(steps: Any, request: tuple[Any, ...], tensors: list[Tensor]) -> StepPlan | None:
    """The plan for a request, which becomes the latest one; None if the tensors do not fit."""
    cell, dtype = steps.cell, tensors[0].dtype
    parts, each = len(cell.fed_back), len(steps.names)
    x, *shapes = (tuple(tensor.shape) for tensor in tensors)
    state, weights = shapes[:parts], shapes[parts:]
    batch = x[:-1]  # () for one sequence without a batch axis
    if not x or len(batch) > 1 or any(shape[:-1] != (steps.levels, *batch) for shape in state):
        return None
    if dtype not in DTYPES or any(tensor.dtype is not dtype for tensor in tensors) or not all(map(_is_cpu, tensors)):
        return None
    names = ("x", *steps.names, *(f"{s}_0" for s in cell.fed_back))
    kind, levels, H = kind_of(cell, names, False, steps.eps, True, True), [], 0
    for k in range(steps.levels):
        inside = [(*(batch or (1,)), shape[-1]) for shape in state]
        given = ((1, *(batch or (1,)), H or x[-1]), *weights[k * each : (k + 1) * each], *inside)
        try:
            plan = kind.plan(False, request[0], dtype, given)
        except ShapeError:
            return None
        H = plan.forward.workspace.shape[2]
        offsets = [k * math.prod(shape[1:]) * dtype.itemsize for shape in state]
        levels.append(_level(plan.forward, plan.program.places["forward"], steps, offsets))
    sizes = tuple(tensor.numel() * dtype.itemsize for tensor in tensors)
    made = tuple([form(shape, dtype) for shape in state])
    steps.latest = StepPlan(request, levels, sizes, dtype.itemsize, made, form((*batch, H), dtype))
    return steps.latest


def _level(this: Pass, places: dict[str, int], steps: Any, offsets: list[int]) -> LevelPlan:
    table, names = this.table[:], steps.cell.fed_back
    spare = len(table) - 1
    between = [(places[f"{s}_0"], places[f"{s}_end"], offset) for s, offset in zip(names, offsets)]
    weights = tuple(places.get(name, spare) for name in steps.names)
    return LevelPlan(this.run, table, places["x"], places["out"], weights, tuple(between))
