"""One pass of a call: tensors examined, the table of a kernel filled in, the kernel run.

Kernels take addresses. Their arrays lie in two blocks of memory: one is kept for the backward pass, one is needed
during the call only. An address is taken only of tensors whose class, dtype, device, negative bit, shape and storage
were checked in the same call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.engines import _private
from longlag.engines._arguments import DtypeError, ShapeError, resets_backwards
from longlag.engines.cpu.runtime._private import empty_function, likeness
from longlag.engines.cpu.runtime.plan import Kind, Plan
from longlag.engines.cpu.runtime.validation import Optional, check_memory, check_optional

_PLAIN_TYPES = _private.PLAIN_TYPES
_data_ptr = Tensor.data_ptr
_empty = empty_function()


def planned(kind: Kind, given: Sequence[Tensor], optional: Optional, save: bool) -> tuple[Plan, Sequence[Tensor]]:
    """The plan of a call, and the tensors given as kernels can read them: contiguous, with all their memory."""
    plan = kind.latest
    if plan is None or plan.save is not save or plan.threads != torch.get_num_threads() or not plan.alike(*given):
        plan, given = _examined(kind, given, save)
    for value, size in zip(given, plan.sizes):
        if value.untyped_storage().nbytes() < size + value.storage_offset() * plan.number:
            check_memory(value)
    if not kind.bare:
        check_optional(f"cell {kind.cell.name}", plan.forward.workspace.shape, plan.dtype, optional)
    return plan, given


def _examined(kind: Kind, given: Sequence[Tensor], save: bool) -> tuple[Plan, Sequence[Tensor]]:
    """As `planned`, for tensors of which nothing is known; checks everything but their memory."""
    dtype = given[0].dtype
    for name, value in zip(kind.names, given):
        if value.dtype is not dtype or not value.is_cpu:
            got = f"{value.dtype} on {value.device}"
            raise DtypeError(f"engine 'cpu': {name} of cell {kind.cell.name} must be {dtype} on cpu like x, got {got}")
    plan = kind.plan(save, torch.get_num_threads(), dtype, tuple([value.shape for value in given]))
    usual = all(type(value) in _PLAIN_TYPES and value.is_contiguous() and not value.is_neg() for value in given)
    if usual and plan is kind.latest:  # twice in a row: the next call may be like these
        plan.alike = likeness(given)
    kind.latest = plan
    return plan, given if usual else [_readable(value) for value in given]


def _readable(value: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers in order."""
    return value if value.is_contiguous() and not value.is_neg() else check_memory(value).resolve_neg().contiguous()


def forward(
    kind: Kind, given: Sequence[Tensor], optional: Optional, save: bool
) -> tuple[list[Tensor], Tensor | None, Plan, list[int]]:
    """Outputs and final states, the memory that a backward pass reads, the plan for that, and addresses.

    The addresses are those of ``given``, of that memory and of the outputs.
    """
    plan, given = planned(kind, given, optional, save)
    this = plan.forward
    addresses = [*map(_data_ptr, given)]
    if 0 in addresses:  # no numbers, or no memory
        given = [check_memory(value) for value in given]
    kept, results = _empty(*plan.kept) if save else None, [_empty(*each) for each in this.made]
    addresses.append(0 if kept is None else kept.data_ptr())
    addresses += map(_data_ptr, results)
    table, held = this.table[:], []  # tensors must live until the kernel ends
    for place, at in zip(this.places, addresses):
        table[place] = at
    if not kind.bare:
        _fill_optional(table, plan.program.places["forward"], kind, optional, held)
    this.run(table)
    return results, kept, plan, addresses[: len(given) + 2]


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
    held = []  # tensors must live until the kernel ends
    if [*map(_data_ptr, saved)] != addresses or not plan.saved_alike(*saved):
        _check_saved(kind, saved, plan)  # hooks on saved tensors may bring back anything
        before, addresses = addresses, [_address(value, held) for value in saved]
        if addresses == before:
            plan.saved_alike = likeness(saved)
    if not kind.bare:
        check_optional(f"cell {kind.cell.name}", plan.forward.workspace.shape, plan.dtype, optional)
    this = plan.backward(needed)
    found, table = [_empty(*each) for each in this.made], this.table[:]
    for place, at in zip(this.places, [*addresses, *map(_data_ptr, found)]):
        table[place] = at
    for place, d in zip(plan.errors, d_results):
        if d is not None:
            if type(d) not in _PLAIN_TYPES and _private.has_own_operations(d):
                what, got = f"a gradient of cell {kind.cell.name}", type(d).__name__
                raise ShapeError(f"engine 'cpu': {what} must be a plain tensor, got {got}")
            table[place] = _address(d, held)
    if not kind.bare:
        _fill_optional(table, plan.program.places["backward"], kind, optional, held)
    this.run(table)
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
    if reset is not None and kind.reverse:
        reset = resets_backwards(reset, lengths)
    if lengths is not None:
        lengths = lengths.to(torch.int64)
    for name, tensor in (("mask", mask), ("lengths", lengths), ("reset", reset)):
        if tensor is not None:
            held.append(tensor)
            table[places[name]] = _address(tensor, held)
