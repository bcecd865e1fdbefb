"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `forward` and `backward`; the function has less overhead. Kernels take addresses. Their arrays lie in two
blocks of memory: one is kept for the backward pass, one is needed during the call only.

An address is taken only in `_run`, of tensors whose class, dtype, device, negative bit, shape and storage were checked
in the same call. Tensors that the backward pass reads are saved through autograd, so torch detects in-place changes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _private, reference
from longlag.engines._arguments import DtypeError, Norm, ShapeError, Weights, resets_backwards
from longlag.engines._operators import each_of_a_batch
from longlag.engines.cpu.runtime.plan import Kind, Pass, Plan, kind_of
from longlag.engines.cpu.runtime.validation import Optional, check_memory, check_optional

_private.check_torch()
NOTHING: Optional = (None, None, None)
_PLAIN_TYPES = _private.PLAIN_TYPES
_Function: Any = _private.single_level_function()
_unwrap = _private.unwrap_function()
_is_batch = _private.batch_test()
_data_ptr, _is_neg, _is_contiguous = Tensor.data_ptr, Tensor.is_neg, Tensor.is_contiguous
_shape, _dtype, _is_cpu, _nbytes = (getattr(Tensor, name).__get__ for name in ("shape", "dtype", "is_cpu", "nbytes"))


def run(
    cell: Any,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    seen_by_torch: bool,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """See `longlag.engines.run`; None if a tensor's class overrides operations.

    Args:
        seen_by_torch: run as an operator.
    """
    W, b, U, b_recurrent, params, norm = w
    if b_recurrent is not None:
        raise ValueError(f"engine 'cpu': biases of cell {cell.name} must be the pair (bias_ih, bias_hh)")
    given = {"x": x, "W": W}
    if isinstance(b, tuple):
        given["b_x"], given["bias_hh"] = b
    elif b is not None:
        given["b_x"] = b
    if U is not None:
        given["U"] = U
    for s, value in zip(cell.fed_back, state):
        if value is not None:
            given[f"{s}_0"] = value if seen_by_torch else _unwrap(value)
    for p, value in zip(cell.params, params):
        given[f"{p}_all"] = value
    eps = 0.0
    if norm is not None:
        given["gamma"], given["beta"], eps = norm
    if seen_by_torch:
        words = f"{cell.name} {cell.key}", list(given), list(given.values()), reverse, eps, mask, lengths, reset
        results = torch.ops.longlag.recurrent(*words)
        return results[0], tuple(results[1:-1])
    given["x"] = _unwrap(x)  # inputs and states may outlive a torch.func transform, weights do not
    names, values = tuple(given), tuple(given.values())
    if not _PLAIN_TYPES.issuperset(map(type, values)) and any(map(_private.has_own_operations, values)):
        return None
    if any(map(_is_neg, values)):
        values = tuple(map(Tensor.resolve_neg, values))
    plain = mask is None and reset is None and not (reverse and lengths is not None)
    kind = kind_of(cell, names, reverse, eps, plain, plain and lengths is None and not eps)
    optional = mask, lengths, reset
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` lists gradients that could be needed, not those that are
        out, ends, *_ = forward(kind, values, optional, save=False)
        return out, tuple(ends)
    results = _Recurrent.apply(kind, None if kind.bare else optional, *values)
    return results[0], results[1:]


def _in_batches(errors: Sequence[Tensor | None]) -> bool:
    """Whether the gradients are batched (vmap)."""
    for d in errors:
        if d is not None and _is_batch(d):
            return True
    return _private.transforms_active()


class _Recurrent(_Function):
    @staticmethod
    def forward(ctx: Any, kind: Kind, optional: Optional | None, *given: Tensor) -> Any:
        save = True in ctx.needs_input_grad
        out, ends, kept, plan, addresses = forward(kind, given, optional or NOTHING, save)
        if save:
            ctx.kind, ctx.plan, ctx.addresses = kind, plan, addresses
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*given, kept, out, *(optional or ()))
        return out, *ends

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        kind, needed = ctx.kind, ctx.needs_input_grad[2:]
        saved, count = ctx.saved_tensors, len(needed) + 2
        optional = saved[count:] or NOTHING
        if torch.is_grad_enabled():  # create_graph=True: this backward pass will be differentiated
            return (None, None, *_differentiable_gradients(kind, saved[: count - 2], optional, d_results, needed))
        gradients = _batched_gradients if _in_batches(d_results) else backward
        return (None, None, *gradients(ctx.plan, kind, saved[:count], optional, d_results, needed, ctx.addresses))


def _differentiable_gradients(
    kind: Kind, given: Sequence[Tensor], optional: Optional, d_results: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    cell, (mask, lengths, reset) = kind.cell, optional
    if not isinstance(cell, Cell):
        raise RuntimeError("engine 'cpu' cannot differentiate LSTM97 twice; engine='reference' can")
    named = dict(zip(kind.names, given))
    b, gamma = named.get("b_x"), named.get("gamma")
    norm = None if gamma is None else Norm(gamma, named["beta"], kind.eps)
    biases = (b, named["bias_hh"]) if "bias_hh" in named else b
    w = Weights(named["W"], biases, named.get("U"), None, tuple(named[f"{p}_all"] for p in cell.params), norm)
    y, ends = reference.run_weights(
        cell, named["x"], w, [named.get(f"{s}_0") for s in cell.fed_back],
        mask=mask, lengths=lengths, reset=reset, reverse=kind.reverse,
    )  # fmt: skip
    wanted = [value for value, need in zip(given, needed) if need]
    values, errors = zip(*[(value, d) for value, d in zip((y, *ends), d_results) if d is not None])
    grads = iter(torch.autograd.grad(values, wanted, errors, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


def _batched_gradients(
    plan: Plan,
    kind: Kind,
    saved: Sequence[Tensor],
    optional: Optional,
    d_results: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    addresses: Sequence[int],
) -> list[Tensor | None]:
    """The gradients of batched errors: one backward pass for each."""
    shapes, out = [plan.forward.workspace.shape, *plan.forward.results], saved[-1]
    errors = [out.new_zeros(shape) if d is None else d for d, shape in zip(d_results, shapes)]
    there = [k for k in plan.backward(needed).computed if needed[k]]

    def one(*d: Tensor) -> list[Tensor]:
        found = backward(plan, kind, saved, optional, d, needed, addresses)
        return [value for k, value in enumerate(found) if k in there and value is not None]

    gradients: list[Tensor | None] = [None] * len(needed)
    for k, d in zip(there, each_of_a_batch(one, errors, [plan.shapes[k] for k in there])):
        gradients[k] = d
    return gradients


# ------------------------------------------------------------------------------------------------------- kernels
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
