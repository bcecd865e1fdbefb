"""A run of a cell on the GPU engine, as an operator of torch, and its implementations (see `longlag.engines._gpu`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from longlag.cells import Cell
from longlag.engines import _private, reference
from longlag.engines._arguments import Norm, ShapeError, Weights, own_precision, zeros_for
from longlag.engines._choose import as_operator
from longlag.engines._operators import cell_called
from longlag.engines.gpu import run as kernels
from longlag.engines.gpu.run import Call

_private.check_torch()
_Function: Any = _private.single_level_function()


def run(
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    numbers: Sequence[Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `longlag.engines.run`."""
    w = w.with_summed_biases(cell)
    with own_precision(x):
        net, norm = torch.nn.functional.linear(x, w.W, w.b), w.norm
    if norm is not None and not cell.dense:  # a local cell's net inputs are known before the loop
        rows = net.unflatten(-1, (len(cell.gates), -1))
        net = (layer_norm(rows, rows.shape[-1:], None, None, norm.eps) * norm.weight + norm.bias).flatten(2)
        norm = None
    names = kernels.names(cell, w.b_recurrent is not None, norm is not None)
    given = [net, w.U, w.b_recurrent, *zeros_for(cell, x, w.W, state), *numbers, *w.params, *(norm or ())[:2]]
    tensors = [value for value in given if value is not None]
    save = torch.is_grad_enabled() and any(value.requires_grad for value in tensors)
    eps, n = 0.0 if norm is None else norm.eps, 1 + len(cell.fed_back)
    if not as_operator():
        call = Call(cell, dict(zip(names, tensors)), reverse, eps, w.heads, mask, lengths, reset)
        _check(call)
        found = _Recurrent.apply(call, *tensors) if save else kernels.forward(call, False)
        return found[0], tuple(found[1:n])
    key = f"{cell.name} {cell.key}"
    found = torch.ops.longlag.recurrent_gpu(key, names, tensors, reverse, eps, w.heads, mask, lengths, reset, save)
    return found[0], tuple(found[1:n])


class _Recurrent(_Function):
    """The same for eager calls: an operator with a list of tensors costs half a millisecond more per training call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: Tensor) -> Any:
        results, n = kernels.forward(call, True), 1 + len(call.cell.fed_back)
        ctx.call = call._replace(given=dict.fromkeys(call.given), mask=None, lengths=None, reset=None)
        ctx.save_for_backward(call.mask, call.lengths, call.reset, *given, results[0], *results[n:])
        return tuple(results[:n])

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> Any:
        mask, lengths, reset, *tensors = ctx.saved_tensors
        n = len(ctx.call.given)
        given = dict(zip(ctx.call.given, tensors))
        call = ctx.call._replace(given=given, mask=mask, lengths=lengths, reset=reset)
        if torch.is_grad_enabled():
            return None, *_differentiable_gradients(call, errors)
        return None, *kernels.backward(call, tensors[n], tensors[n + 1 :], errors)


def _call(key: str, names: list[str], given: Sequence[Tensor], options: Sequence[Any]) -> Call:
    name, _, own = key.rpartition(" ")
    call = Call(cell_called("gpu", name, own), dict(zip(names, given)), *options)
    _check(call)
    return call


def _check(call: Call) -> None:
    """Kernels read without bounds: every tensor must have its shape, dtype and device."""
    cell, (net, *_) = call.cell, call.given.values()
    (T, B, H), Gy, G = call.sizes, len(cell.recurrent_gates), len(cell.gates)
    only_U = sum(gate not in cell.input_gates for gate in cell.gates)
    right = {"net": (T, B, len(cell.input_gates) * H), "U": (Gy * H, H), "bias": (only_U, H)}
    right |= {f"first_{v}": (B, H) for v in cell.fed_back} | {f"param_{p}": (H,) for p in cell.params}
    right |= {f"number_{m}": (T, B, H) for m in cell.per_step} | {"norm_weight": (G, H), "norm_bias": (G, H)}
    if call.heads < 1 or H % call.heads:
        raise ShapeError(f"engine 'gpu': heads of cell {cell.name} must divide its {H} units, got {call.heads}")
    must = kernels.names(cell, "bias" in call.given, call.norm)
    if list(call.given) != must:
        raise ShapeError(f"engine 'gpu': cell {cell.name} takes the tensors {must}, got {list(call.given)}")
    checked: list[tuple[str, Tensor | None, tuple[int, ...], Any]]
    checked = [(name, value, right[name], (net.dtype,)) for name, value in call.given.items()]
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    checked += [("mask", call.mask, (B, H), (net.dtype,)), ("lengths", call.lengths, (B,), integers)]
    checked += [("reset", call.reset, (T, B), (torch.bool,))]
    for name, value, shape, dtypes in checked:
        if value is not None and (value.shape != shape or value.dtype not in dtypes or value.device != net.device):
            wanted, got = f"{dtypes[0]} of shape {shape} on {net.device}", f"{value.dtype} of {tuple(value.shape)}"
            raise ShapeError(f"engine 'gpu': {name} of cell {cell.name} must be {wanted}, got {got} on {value.device}")


def forward(key: str, names: list[str], given: list[Tensor], *options_and_save: Any) -> list[Tensor]:
    """``longlag::recurrent_gpu``: outputs, final states and what the backward operator reads."""
    *options, save = options_and_save
    return kernels.forward(_call(key, names, given, options), save)


def shapes(key: str, names: list[str], given: list[Tensor], *options_and_save: Any) -> list[Tensor]:
    """Empty tensors like the results of `forward`."""
    *options, save = options_and_save
    call, net = _call(key, names, given, options), given[0]
    T, B, H = call.sizes
    results = [net.new_empty(T, B, H), *(net.new_empty(1, B, H) for _ in call.cell.fed_back)]
    kept = kernels.kept_shapes(call, save)
    return [*results, *(net.new_empty(shape, dtype=dtype) for shape, dtype in kept)]


def backward(key: str, names: list[str], given: list[Tensor], *rest: Any) -> list[Tensor]:
    """``longlag::recurrent_gpu_backward``: the gradients of ``given``."""
    *options, results, d_results = rest
    call = _call(key, names, given, options)
    (T, B, H), n = call.sizes, 1 + len(call.cell.fed_back)
    out, kept = results[0], results[1:]
    wanted = [((T, B, H), given[0].dtype), *([((1, B, H), given[0].dtype)] * (n - 1)), ((T, B, H), given[0].dtype)]
    wanted += kernels.kept_shapes(call, True)
    for value, (shape, dtype) in zip((*d_results, *results), wanted, strict=True):
        if value.shape != shape or value.dtype != dtype or value.device != out.device:
            got = f"{value.dtype} of {tuple(value.shape)} on {value.device}"
            raise ShapeError(f"engine 'gpu': cell {call.cell.name} needs {dtype} of {tuple(shape)}, got {got}")
    return kernels.backward(call, out, kept, d_results)


def differentiable_gradients(
    key: str, names: list[str], given: list[Tensor], options: Sequence[Any], d_results: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    return _differentiable_gradients(_call(key, names, given, options), d_results)


def _differentiable_gradients(call: Call, d_results: Sequence[Tensor]) -> list[Tensor | None]:
    cell, found = call.cell, call.given
    net = found["net"].unflatten(-1, (len(cell.input_gates), -1))
    norm = Norm(found["norm_weight"], found["norm_bias"], call.eps) if call.norm else None
    y, ends = reference.run(
        cell, net, found.get("U"),
        [found[f"first_{v}"] for v in cell.fed_back], [found[f"param_{p}"] for p in cell.params],
        bias=found.get("bias"), norm=norm, mask=call.mask, lengths=call.lengths, reset=call.reset, reverse=call.reverse,
        numbers=[found[f"number_{m}"] for m in cell.per_step],
    )  # fmt: skip
    wanted = [value for value in found.values() if value.requires_grad]
    values = [y, *(end.unsqueeze(0) for end in ends)]
    grads = iter(torch.autograd.grad(values, wanted, d_results, create_graph=True, allow_unused=True))
    return [next(grads) if value.requires_grad else None for value in found.values()]
