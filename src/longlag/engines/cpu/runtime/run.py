"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `_forward` and `_backward`; the function has less overhead. Kernels take addresses. Their arrays lie in two
blocks of memory: one is kept for the backward pass, one is freed after the call.

An address is taken only in `_run`, of tensors whose class, dtype, device, negative bit, shape and storage were checked
in the same call. Tensors that the backward pass reads are saved through autograd, so torch detects in-place changes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _private, reference
from longlag.engines._arguments import DtypeError, Norm, ShapeError, Weights, resets_backwards
from longlag.engines._choose import as_operator
from longlag.engines._operators import each_of_a_batch
from longlag.engines.cpu.runtime.plan import Pass, Plan, plan
from longlag.engines.cpu.runtime.validation import Optional, check_memory, check_optional

_private.check_torch()
_PLAIN_TYPES = _private.PLAIN_TYPES
_Function: Any = _private.single_level_function()
_unwrap = _private.unwrap_function()
_is_batch = _private.batch_test()


class Call(NamedTuple):
    """The arguments of a run that are not tensors."""

    cell: Any
    names: tuple[str, ...]  # of the tensors that may need gradients, as in the kernels' tables
    reverse: bool
    eps: float
    plain: bool  # whether U reads nothing but the outputs of the step before
    bare: bool  # whether there is no mask, no lengths, no reset and no eps
    nonzeros: int = 0  # entries of U that may be other than zero; 0: U is dense


def run(
    cell: Any,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    numbers: Sequence[Tensor] = (),
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """See `longlag.engines.run`; None if a tensor's class overrides operations."""
    W, b, U, b_recurrent, params, norm, nonzeros = w
    if b_recurrent is not None:
        raise ValueError(f"engine 'cpu': biases of cell {cell.name} must be the pair (bias_ih, bias_hh)")
    seen_by_torch = as_operator()
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
    for m, value in zip(cell.per_step, numbers):
        given[f"{m}_t"] = value
    eps = 0.0
    if norm is not None:
        given["gamma"], given["beta"], eps = norm
    if seen_by_torch:
        words = f"{cell.name} {cell.key}", list(given), list(given.values()), reverse, eps, mask, lengths, reset
        results = torch.ops.longlag.recurrent(*words)
        return results[0], tuple(results[1:-1])
    given["x"] = _unwrap(x)  # inputs and states may outlive a torch.func transform, weights do not
    for value in given.values():
        if type(value) not in _PLAIN_TYPES and _private.has_own_operations(value):
            return None
    if any(map(Tensor.is_neg, given.values())):
        given = {name: value.resolve_neg() for name, value in given.items()}
    plain = mask is None and reset is None and not (reverse and lengths is not None)
    call = Call(cell, tuple(given), reverse, eps, plain, plain and lengths is None and not eps, nonzeros)
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` lists gradients that could be needed, not those that are
        out, ends, *_ = forward(call, tuple(given.values()), (mask, lengths, reset), save=False)
        return out, tuple(ends)
    results = _Recurrent.apply(call, mask, lengths, reset, *given.values())
    return results[0], results[1:]


def _in_batches(errors: Sequence[Tensor | None]) -> bool:
    """Whether the gradients are batched (vmap)."""
    for d in errors:
        if d is not None and _is_batch(d):
            return True
    return _private.transforms_active()


class _Recurrent(_Function):
    @staticmethod
    def forward(ctx: Any, call: Call, mask: Any, lengths: Any, reset: Any, *given: Tensor) -> Any:
        save, optional = any(ctx.needs_input_grad), (mask, lengths, reset)
        out, ends, kept, plan, addresses = forward(call, given, optional, save)
        if save:
            ctx.call, ctx.plan, ctx.addresses = call, plan, addresses
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(out, kept, mask, lengths, reset, *given)
        return out, *ends

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        call, needed = ctx.call, ctx.needs_input_grad[4:]
        out, kept, mask, lengths, reset, *given = ctx.saved_tensors
        optional = mask, lengths, reset
        if torch.is_grad_enabled():  # create_graph=True: this backward pass will be differentiated
            return (*[None] * 4, *_differentiable_gradients(call, given, optional, d_results, needed))
        gradients = _batched_gradients if _in_batches(d_results) else backward
        return (*[None] * 4, *gradients(ctx.plan, call, given, optional, out, kept, d_results, needed, ctx.addresses))


def _differentiable_gradients(
    call: Call, given: Sequence[Tensor], optional: Optional, d_results: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    cell, (mask, lengths, reset) = call.cell, optional
    if not isinstance(cell, Cell):
        raise RuntimeError("engine 'cpu' cannot differentiate LSTM97 twice; engine='reference' can")
    named = dict(zip(call.names, given))
    b, gamma = named.get("b_x"), named.get("gamma")
    norm = None if gamma is None else Norm(gamma, named["beta"], call.eps)
    biases = (b, named["bias_hh"]) if "bias_hh" in named else b
    w = Weights(named["W"], biases, named.get("U"), None, tuple(named[f"{p}_all"] for p in cell.params), norm)
    y, ends = reference.run_weights(
        cell, named["x"], w, [named.get(f"{s}_0") for s in cell.fed_back],
        mask=mask, lengths=lengths, reset=reset, reverse=call.reverse, numbers=[named[f"{m}_t"] for m in cell.per_step],
    )  # fmt: skip
    wanted = [value for value, need in zip(given, needed) if need]
    values, errors = zip(*[(value, d) for value, d in zip((y, *ends), d_results) if d is not None])
    grads = iter(torch.autograd.grad(values, wanted, errors, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


def _batched_gradients(
    plan: Plan,
    call: Call,
    given: Sequence[Tensor],
    optional: Optional,
    out: Tensor,
    kept: Tensor,
    d_results: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    addresses: Sequence[int],
) -> list[Tensor | None]:
    """The gradients of batched errors: one backward pass for each."""
    shapes = [plan.forward.workspace.shape, *plan.forward.results]
    errors = [out.new_zeros(shape) if d is None else d for d, shape in zip(d_results, shapes)]
    there = [k for k in plan.backward(needed).computed if needed[k]]

    def one(*d: Tensor) -> list[Tensor]:
        found = backward(plan, call, given, optional, out, kept, d, needed, addresses)
        return [value for k, value in enumerate(found) if k in there and value is not None]

    gradients: list[Tensor | None] = [None] * len(given)
    for k, d in zip(there, each_of_a_batch(one, errors, [plan.shapes[k] for k in there])):
        gradients[k] = d
    return gradients


# ------------------------------------------------------------------------------------------------------- kernels
def planned(call: Call, given: Sequence[Tensor], optional: Optional, save: bool) -> Plan:
    cell, names, reverse, _, plain, bare, nonzeros = call
    shapes, dtype = [], given[0].dtype
    for value in given:
        shapes.append(value.shape)
        if value.dtype is not dtype or not value.is_cpu:
            name, got = names[len(shapes) - 1], f"{value.dtype} on {value.device}"
            raise DtypeError(f"engine 'cpu': {name} of cell {cell.name} must be {dtype} on cpu like x, got {got}")
    this = plan(cell, names, tuple(shapes), dtype, plain, save, reverse, nonzeros, torch.get_num_threads())
    if not bare:
        check_optional(f"cell {cell.name}", this.forward.workspace.shape, dtype, optional)
    return this


def forward(
    call: Call, given: Sequence[Tensor], optional: Optional, save: bool
) -> tuple[Tensor, list[Tensor], Tensor, Plan, list[int]]:
    """Outputs, final states, the memory that the backward pass reads, the plan for that, and addresses.

    The addresses are those of ``given``, of that memory and of the outputs.
    """
    plan, new = planned(call, given, optional, save), given[0].new_empty
    this = plan.forward
    kept, out, ends = new(this.workspace.kept), new(*this.workspace.shape), [new(*shape) for shape in this.results]
    if not all(map(Tensor.is_contiguous, given)):
        given = [value if value.is_contiguous() else check_memory(value).contiguous() for value in given]
    addresses = list(map(Tensor.data_ptr, given))
    for value, at, size in zip(given, addresses, plan.sizes):
        if not at or value.untyped_storage().nbytes() < size + value.storage_offset() * plan.number:
            check_memory(value)
    _run(plan, this, call, addresses, optional, (kept, new(this.workspace.memory), out, *ends))
    return out, ends, kept, plan, [*addresses, kept.data_ptr(), out.data_ptr()]


def backward(
    plan: Plan,
    call: Call,
    given: Sequence[Tensor],
    optional: Optional,
    out: Tensor,
    kept: Tensor,
    d_results: Sequence[Tensor | None],
    needed: tuple[bool, ...],
    addresses: Sequence[int] = (),
) -> list[Tensor | None]:
    """The gradients of ``given``; a tensor at the address that the forward pass read (``addresses``) is unchanged."""
    dtype, workspace, held = plan.dtype, plan.forward.workspace, []
    saved, shapes = (*given, kept, out), (*plan.shapes, (workspace.kept,), workspace.shape)
    for value, size, at in zip(saved, plan.saved_bytes, addresses or [0] * len(saved)):
        if value.data_ptr() != at or value.nbytes != size or value.dtype is not dtype:
            _check_saved(call, saved, shapes, dtype)  # hooks on saved tensors may bring back anything
            addresses = [_address(value, held) for value in saved]
            break
    if not call.bare:
        check_optional(f"cell {call.cell.name}", workspace.shape, dtype, optional)
    this, new = plan.backward(needed), out.new_empty
    memory, found = new(this.workspace.memory), [new(*shape) for shape in this.results]
    _run(plan, this, call, addresses[: len(given)], optional, (kept, memory, out, *found), d_results)
    gradients: list[Tensor | None] = [None] * len(given)
    for k, d in zip(this.computed, found):
        gradients[k] = d.sum(0) if k in this.each else d
    return gradients


def _check_saved(call: Call, saved: Sequence[Tensor], shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> None:
    """Raise if a tensor is not the one that the forward pass saved."""
    for name, value, shape in zip((*call.names, "kept", "out"), saved, shapes):
        same = value.shape == shape and value.dtype is dtype and value.is_cpu
        if not same or _private.has_own_operations(value):
            got = f"a {type(value).__name__} of {value.dtype}, shape {tuple(value.shape)} on {value.device}"
            wanted = f"{dtype}, shape {tuple(shape)} on cpu"
            raise ShapeError(
                f"engine 'cpu': {name} of cell {call.cell.name} was saved for the backward pass as {wanted} and must "
                f"come back so, got {got}"
            )


def _run(
    plan: Plan,
    this: Pass,
    call: Call,
    addresses: Sequence[int],
    optional: Optional,
    own: Sequence[Tensor],
    d_results: Sequence[Tensor | None] = (),
) -> None:
    """Fill in a table and run a pass; ``own``: tensors allocated for this pass and by the forward pass."""
    table, held = this.table[:], []  # tensors must live until the kernel ends
    for place, at in zip(this.places, (*addresses, *[tensor.data_ptr() for tensor in own])):
        table[place] = at
    for place, d in zip(plan.errors, d_results):
        if d is not None:
            if type(d) not in _PLAIN_TYPES and _private.has_own_operations(d):
                what, kind = f"a gradient of cell {call.cell.name}", type(d).__name__
                raise ShapeError(f"engine 'cpu': {what} must be a plain tensor, got {kind}")
            table[place] = _address(d, held)
    if not call.bare:
        _fill_optional(table, plan.program.places[this.part], call, optional, held)
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


def _fill_optional(table: array, places: dict[str, int], call: Call, optional: Optional, held: list[Tensor]) -> None:
    mask, lengths, reset = optional
    if call.eps:
        table[places["eps"]] = struct.unpack("q", struct.pack("d", call.eps))[0]
    if reset is not None and call.reverse:
        reset = resets_backwards(reset, lengths)
    if lengths is not None:
        lengths = lengths.to(torch.int64)
    for name, tensor in (("mask", mask), ("lengths", lengths), ("reset", reset)):
        if tensor is not None:
            held.append(tensor)
            table[places[name]] = _address(tensor, held)
