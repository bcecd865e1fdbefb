"""Implementations of the operators of `longlag.engines._operators`; an operator validates all its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from longlag.engines._arguments import ShapeError
from longlag.engines._operators import cell_called
from longlag.engines.cpu.runtime import passes
from longlag.engines.cpu.runtime.plan import Kind, kind_of
from longlag.engines.cpu.runtime.program import numbers_in, program
from longlag.engines.cpu.runtime.validation import Optional


def _called(key: str, names: list[str], given: Sequence[Tensor], options: Sequence[Any]) -> tuple[Kind, Optional]:
    if names[:2] != ["x", "W"] or len(set(names)) != len(given) or len(names) != len(given):
        raise ShapeError(f"engine 'cpu': names must be x, W and others, one for each of {len(given)}, got {names}")
    reverse, eps, mask, lengths, reset = options
    plain = mask is None and reset is None and not (reverse and lengths is not None)
    bare = plain and lengths is None
    return kind_of(_cell(key), tuple(names), reverse, eps, plain, bare), (mask, lengths, reset)


def _cell(key: str) -> Any:
    name, _, own = key.rpartition(" ")
    if key.startswith("lstm97 blocks "):
        from longlag.engines.cpu.codegen.lstm97 import Blocks

        return Blocks.found(key.removeprefix("lstm97 "))
    return cell_called("cpu", name, own)


def forward(key: str, names: list[str], given: list[Tensor], *options: Any) -> list[Tensor]:
    """``longlag::recurrent``: outputs, final states and the tensor that the backward operator reads."""
    kind, optional = _called(key, names, given, options)
    results, kept, *_ = passes.forward(kind, given, optional, save=True)
    return results if kept is None else [*results, kept]


def shapes(key: str, names: list[str], given: list[Tensor], *options: Any) -> list[Tensor]:
    """Empty tensors like the results of `forward`."""
    (kind, _), (T, B, _), rows = _called(key, names, given, options), given[0].shape, given[1].shape[0]
    p = program(kind.cell, given[1].dtype, "gamma" in names)
    H = rows // p.input_gates
    widths = [given[names.index(f"{s}_0")].shape[-1] if f"{s}_0" in names else H for s in kind.cell.fed_back]
    kept = numbers_in(p.kept(T, B, rows, widths, kind.plain))
    return [given[0].new_empty(shape) for shape in ((T, B, H), *((1, B, n) for n in widths), (kept,))]


def backward(key: str, names: list[str], given: list[Tensor], *options_and_results: Any) -> list[Tensor]:
    """``longlag::recurrent_backward``: the gradients of ``given``."""
    *options, out, kept, d_results = options_and_results
    kind, optional = _called(key, names, given, options)
    plan, _ = passes.planned(kind, given, optional, True)
    wanted_shapes = [plan.forward.workspace.shape, *plan.forward.results]
    for k, shape in enumerate(wanted_shapes):
        got = d_results[k] if k < len(d_results) else None
        if got is None or got.shape != shape or got.dtype is not given[0].dtype or not got.is_cpu:
            found = "none" if got is None else f"{got.dtype} of shape {tuple(got.shape)} on {got.device}"
            wanted = f"{given[0].dtype} of shape {tuple(shape)} on cpu"
            raise ShapeError(f"engine 'cpu': gradient {k} of cell {kind.cell.name} must be {wanted}, got {found}")
    needed = (True,) * len(given)
    found = passes.backward(plan, kind, (*given, kept, out), optional, d_results, needed)
    return [value.new_zeros(value.shape) if d is None else d for d, value in zip(found, given)]
