"""Jordan's network on the CPU engine, as an autograd function around `jordan_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longlag.engines import _private
from longlag.engines._arguments import DtypeError, ShapeError
from longlag.engines._operators import each_of_a_batch
from longlag.engines.cpu.runtime import jordan_kernels
from longlag.engines.cpu.runtime.validation import check_memory, check_optional
from longlag.engines.cpu.simd.product import pack


class _Jordan(torch.autograd.Function):
    """(logits, rest, targets, tau, lengths, reset, x, W, b, U, R, V, c_out, fb_0, h_0) -> z, fb, h."""

    @staticmethod
    def forward(ctx: Any, logits: bool, *values: Any) -> Any:
        rest, targets, tau, lengths, reset, x, W, b, U, R, V, c_out, fb_0, h_0 = values
        T, B, (m, l) = x.shape[0], x.shape[1], U.shape
        fed_back, before, h, z = (x.new_empty(T, B, k) for k in (l, m, m, l))
        absent = (x.new_empty((0,) * dimensions) for dimensions in (3, 2))
        teacher = [none if value is None else value for value, none in zip((targets, tau), absent)]
        packed = [_pack(matrix, True, x) for matrix in (W, U, R, V)]
        biases = [_array(x.new_zeros(k) if v is None else v) for v, k in ((b, m), (c_out, l))]
        fb, state = jordan_kernels.forward(
            _array(x), packed[0], biases[0], *packed[1:], biases[1],
            *(_array(value) for value in (fb_0, h_0, rest, *teacher) if value is not None),
            *_flags(lengths, reset), logits, *map(_array, (fed_back, before, h, z)),
        )  # fmt: skip
        ctx.logits = logits
        ctx.dtype = x.dtype
        ctx.save_for_backward(tau, lengths, reset, x, W, b, U, R, V, c_out, fed_back, before, h, z, fb_0, h_0)
        return z, torch.from_numpy(fb), torch.from_numpy(state)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_results: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, saved, needed = ctx.logits, ctx.saved_tensors[:14], ctx.needs_input_grad[6:]
        _check_saved(saved, ctx.dtype)
        batched = _private.batch_test()
        if not (_private.transforms_active() or any(map(batched, d_results))):
            return (*[None] * 6, *_gradients(logits, saved, needed, *d_results))
        values = (*saved[3:10], *ctx.saved_tensors[14:])
        there = [k for k, (need, value) in enumerate(zip(needed, values)) if need and value is not None]

        def one(*d: Tensor) -> list[Tensor]:
            found = _gradients(logits, saved, needed, *d)
            return [value for k, value in enumerate(found) if k in there and value is not None]

        gradients: list[Tensor | None] = [None] * len(values)
        for k, d in zip(there, each_of_a_batch(one, d_results, [values[k].shape for k in there])):
            gradients[k] = d
        return (*[None] * 6, *gradients)


def _gradients(
    logits: bool, saved: Sequence[Any], needed: Sequence[bool], *d_results: Tensor
) -> tuple[Tensor | None, ...]:
    """Of x, W, b, U, R, V, c_out, fb_0, h_0, where there is such a tensor and its gradient is needed."""
    tau, lengths, reset, x, W, b, U, R, V, c_out, fed_back, before, h, z = saved
    d_z_out, d_fb, d_h = (d.resolve_neg().contiguous().clone() for d in d_results)
    d_r, d_z = torch.empty_like(h), torch.empty_like(z)
    d_x = x.new_empty(x.shape if needed[0] else (0, 0, 0))
    jordan_kernels.backward(
        *(_pack(matrix, False, x) for matrix in (W, U, R, V)), _array(x.new_empty(0, 0) if tau is None else tau),
        *_flags(lengths, reset), logits, *map(_array, (h, z, d_z_out, d_fb, d_h, d_r, d_z, d_x)),
    )  # fmt: skip
    rows, out_rows = d_r.flatten(0, 1).t(), d_z.flatten(0, 1).t()
    found = (
        d_x,
        rows @ x.flatten(0, 1),
        None if b is None else rows.sum(1),
        rows @ fed_back.flatten(0, 1),
        None if R is None else rows @ before.flatten(0, 1),
        out_rows @ h.flatten(0, 1),
        None if c_out is None else out_rows.sum(1),
        d_fb,
        d_h,
    )
    return tuple(d if need else None for d, need in zip(found, needed))


def run(
    x: Tensor,
    weights: tuple[Tensor | None, ...],
    state: tuple[Tensor, Tensor],
    rest: Tensor,
    targets: Tensor | None,
    tau: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `longlag.engines.run_jordan`."""
    (T, B, n), (m, l) = x.shape, _shape(weights[2])
    shapes = {"W": (m, n), "b": (m,), "U": (m, l), "R": (m, m), "V": (l, m), "c_out": (l,), "fb": (B, l), "h": (B, m)}
    shapes |= {"rest": (l,), "targets": (T, B, l), "tau": (T, B)}
    for (name, shape), value in zip(shapes.items(), (*weights, *state, rest, targets, tau)):
        if value is None and name in ("b", "R", "c_out", "targets", "tau"):
            continue
        if value is None or value.shape != shape or not value.is_cpu:
            raise ShapeError(f"engine 'cpu': {name} of Jordan must have shape {shape} on cpu, got {_shape(value)}")
        if value.dtype is not x.dtype:
            raise DtypeError(f"engine 'cpu': {name} of Jordan must be {x.dtype} like x, got {value.dtype}")
    check_optional("Jordan", (T, B, l), x.dtype, (None, lengths, reset))
    return _Jordan.apply(logits, rest, targets, tau, lengths, reset, x, *weights, *state)


def _shape(value: Tensor | None) -> Any:
    return "none" if value is None else tuple(value.shape)


def _check_saved(saved: Sequence[Tensor | None], dtype: torch.dtype) -> None:
    """Raise if hooks changed saved tensors."""
    for value in (value for value in saved[3:] if value is not None):
        if value.dtype is not dtype or not value.is_cpu:
            got = f"{value.dtype} on {value.device}"
            raise DtypeError(f"engine 'cpu': tensors of Jordan were saved as {dtype} and must come back so, got {got}")


def _array(value: Tensor) -> np.ndarray:
    check_memory(value)
    return value.detach().resolve_neg().contiguous().numpy()


def _pack(matrix: Tensor | None, transposed: bool, like: Tensor) -> np.ndarray:
    return _array(like.new_empty(0)) if matrix is None else pack(_array(matrix), transposed)


def _flags(lengths: Tensor | None, reset: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.empty(0, np.int64) if lengths is None else _array(lengths.long()),
        np.empty((0, 0), np.bool_) if reset is None else _array(reset),
    )
