"""One pass of a call: tensors examined, the table of a kernel filled in, the kernel run.

Kernels take addresses. Their arrays lie in two blocks of memory: one is kept for the backward pass, one is needed
during the call only. An address is taken only of tensors whose class, dtype, device, negative bit, shape and storage
were checked in the same call.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.engines import _private
from longlag.engines._arguments import DtypeError, ShapeError, resets_backwards
from longlag.engines.cpu.runtime.plan import Kind, Pass, Plan
from longlag.engines.cpu.runtime.validation import Optional, check_memory, check_optional

_PLAIN_TYPES = _private.PLAIN_TYPES
_data_ptr, _is_contiguous = Tensor.data_ptr, Tensor.is_contiguous
_shape, _dtype, _is_cpu, _nbytes = (getattr(Tensor, name).__get__ for name in ("shape", "dtype", "is_cpu", "nbytes"))


def planned(kind: Kind, given: Sequence[Tensor], optional: Optional, save: bool) -> Plan:
    """The plan of a call, whose tensors have the right shapes, dtypes and device."""
    plan = kind.plan(save, torch.get_num_threads(), *map(_dtype, given), *map(_shape, given))
    if plan is None or not all(map(_is_cpu, given)):
        dtype = given[0].dtype
        name, odd = next((n, v) for n, v in zip(kind.names, given) if v.dtype is not dtype or not v.is_cpu)
        got = f"{odd.dtype} on {odd.device}"
        raise DtypeError(f"engine 'cpu': {name} of cell {kind.cell.name} must be {dtype} on cpu like x, got {got}")
    if not kind.bare:
        check_optional(f"cell {kind.cell.name}", plan.forward.workspace.shape, plan.dtype, optional)
    return plan


def forward(
    kind: Kind, given: Sequence[Tensor], optional: Optional, save: bool
) -> tuple[Tensor, list[Tensor], Tensor | None, Plan, list[int]]:
    """Outputs, final states, the memory that a backward pass reads, the plan for that, and addresses.

    The addresses are those of ``given``, of that memory and of the outputs.
    """
    plan, new = planned(kind, given, optional, save), given[0].new_empty
    this = plan.forward
    kept, out, ends = None, new(*this.workspace.shape), [new(*shape) for shape in this.results]
    if not all(map(_is_contiguous, given)):
        given = [value if value.is_contiguous() else check_memory(value).contiguous() for value in given]
    addresses = list(map(_data_ptr, given))
    for value, at, size in zip(given, addresses, plan.sizes):
        if not at or value.untyped_storage().nbytes() < size + value.storage_offset() * plan.number:
            check_memory(value)
    if save:
        kept = new(this.workspace.kept)
    addresses += kept.data_ptr() if kept is not None else 0, out.data_ptr()
    _run(plan, this, kind, [*addresses, *map(_data_ptr, ends)], optional)
    return out, ends, kept, plan, addresses


def backward(
    plan: Plan,
    kind: Kind,
    saved: Sequence[Tensor],
    optional: Optional,
    d_results: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    addresses: Sequence[int] = (),
) -> list[Tensor | None]:
    """The gradients of the tensors given.

    Args:
        saved: the tensors given, the memory kept by the forward pass, the outputs.
        addresses: of these tensors in the forward pass; a tensor that still is there is unchanged.
    """
    held = []
    same = [*map(_data_ptr, saved)] == addresses and [*map(_nbytes, saved)] == plan.saved_bytes
    if not same or {*map(_dtype, saved)} != {plan.dtype}:
        _check_saved(kind, saved, plan)  # hooks on saved tensors may bring back anything
        addresses = [_address(value, held) for value in saved]
    if not kind.bare:
        check_optional(f"cell {kind.cell.name}", plan.forward.workspace.shape, plan.dtype, optional)
    this, new = plan.backward(needed), saved[0].new_empty
    found = [new(*shape) for shape in this.results]
    _run(plan, this, kind, [*addresses, *map(_data_ptr, found)], optional, d_results)
    gradients: list[Tensor | None] = [None] * len(needed)
    for k, d in zip(this.computed, found):
        gradients[k] = d.sum(0) if k in this.each else d
    return gradients


def _check_saved(kind: Kind, saved: Sequence[Tensor], plan: Plan) -> None:
    """Raise if a tensor is not the one that the forward pass saved."""
    workspace, dtype = plan.forward.workspace, plan.dtype
    shapes = (*plan.shapes, (workspace.kept,), workspace.shape)
    for name, value, shape in zip((*kind.names, "kept", "out"), saved, shapes):
        same = value.shape == shape and value.dtype is dtype and value.is_cpu
        if not same or _private.has_own_operations(value):
            got = f"a {type(value).__name__} of {value.dtype}, shape {tuple(value.shape)} on {value.device}"
            wanted = f"{dtype}, shape {tuple(shape)} on cpu"
            raise ShapeError(
                f"engine 'cpu': {name} of cell {kind.cell.name} was saved for the backward pass as {wanted} and must "
                f"come back so, got {got}"
            )


def _run(
    plan: Plan,
    this: Pass,
    kind: Kind,
    addresses: Sequence[int],
    optional: Optional,
    d_results: Sequence[Tensor | None] = (),
) -> None:
    """Fill in a table and run a pass; ``addresses``: in the order of `Pass.places`, without scratch memory."""
    table, held = this.table[:], []  # tensors must live until the kernel ends
    for place, at in zip(this.places, addresses):
        table[place] = at
    for place, d in zip(plan.errors, d_results):
        if d is not None:
            if type(d) not in _PLAIN_TYPES and _private.has_own_operations(d):
                what, got = f"a gradient of cell {kind.cell.name}", type(d).__name__
                raise ShapeError(f"engine 'cpu': {what} must be a plain tensor, got {got}")
            table[place] = _address(d, held)
    if not kind.bare:
        _fill_optional(table, plan.program.places[this.part], kind, optional, held)
    this.run(table)


def _address(tensor: Tensor, held: list[Tensor]) -> int:
    """The address of a tensor's contiguous data; ``held`` keeps a copy alive until the kernel ends."""
    if tensor.is_neg() or not tensor.is_contiguous():
        check_memory(tensor)
        held.append(tensor := tensor.resolve_neg().contiguous())
    at = tensor.data_ptr()
    if not at or tensor.untyped_storage().nbytes() < tensor.nbytes + tensor.storage_offset() * tensor.itemsize:
        check_memory(tensor)
    return at


def _fill_optional(table: array, places: dict[str, int], kind: Kind, optional: Optional, held: list[Tensor]) -> None:
    mask, lengths, reset = optional
    if kind.eps:
        table[places["eps"]] = struct.unpack("q", struct.pack("d", kind.eps))[0]
    if reset is not None and kind.reverse:
        reset = resets_backwards(reset, lengths)
    if lengths is not None:
        lengths = lengths.to(torch.int64)
    for name, tensor in (("mask", mask), ("lengths", lengths), ("reset", reset)):
        if tensor is not None:
            held.append(tensor)
            table[places[name]] = _address(tensor, held)
