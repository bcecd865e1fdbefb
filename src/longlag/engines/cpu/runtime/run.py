"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `forward` and `backward` of `passes`; the function has less overhead. Tensors that the backward pass reads are
saved through autograd, so torch detects in-place changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _private, reference
from longlag.engines._arguments import Norm, Weights
from longlag.engines._operators import each_of_a_batch
from longlag.engines.cpu.runtime.passes import backward, forward
from longlag.engines.cpu.runtime.plan import Kind, Plan, kind_of_call, names_of
from longlag.engines.cpu.runtime.validation import Optional

_private.check_torch()
NOTHING: Optional = (None, None, None)
_PLAIN_TYPES = _private.PLAIN_TYPES
_Function: Any = _private.single_level_function()
_unwrap = _private.unwrap_function()
_is_batch = _private.batch_test()


def run(
    cell: Any,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    numbers: Sequence[Tensor],
    seen_by_torch: bool,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """See `longlag.engines.run`; None if a tensor's class overrides operations.

    Args:
        seen_by_torch: run as an operator.
    """
    W, b, U, b_recurrent, params, norm, nonzeros, heads = w
    if b_recurrent is not None:
        raise ValueError(f"engine 'cpu': biases of cell {cell.name} must be the pair (bias_ih, bias_hh)")
    biases = b if isinstance(b, tuple) else () if b is None else (b,)
    initial, eps, values = (), 0.0, [x, W, *biases]
    if U is not None:
        values.append(U)
    if state:
        initial = tuple([part is not None for part in state])
        values += [part if seen_by_torch else _unwrap(part) for part in state if part is not None]
    values += params
    values += numbers
    given = len(biases), U is not None, initial, len(params), len(numbers), norm is not None
    if norm is not None:
        values += norm[:2]
        eps = norm.eps
    if seen_by_torch:
        words = f"{cell.name} {cell.key}", list(names_of(cell, *given)), values, reverse, eps, mask, lengths, reset
        results = torch.ops.longlag.recurrent(*words)
        return results[0], tuple(results[1:-1])
    values[0] = _unwrap(x)  # inputs and states may outlive a torch.func transform, weights do not
    if not _PLAIN_TYPES.issuperset(map(type, values)) and any(map(_private.has_own_operations, values)):
        return None
    plain = mask is None and reset is None and not (reverse and lengths is not None)
    bare = plain and lengths is None
    kind = kind_of_call.of(cell)((x.shape, W.shape), given, reverse, eps, plain, bare, nonzeros, heads)
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` lists gradients that could be needed, not those that are
        results = forward(kind, values, (mask, lengths, reset), save=False)[0]
        return results[0], tuple(results[1:])
    results = _Recurrent.apply(kind, None if bare else (mask, lengths, reset), *values)
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
        results, kept, plan, addresses = forward(kind, given, optional or NOTHING, save)
        if save:
            ctx.kind, ctx.plan, ctx.addresses = kind, plan, addresses
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*given, kept, results[0], *(optional or ()))
        return tuple(results)

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
        numbers=[named[f"{m}_t"] for m in cell.per_step],
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
