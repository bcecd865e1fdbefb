"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `_forward` and `_backward`; the function has less overhead.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import reference
from longlag.engines._arguments import Norm, resets_backwards
from longlag.engines.cpu import kernels as _kernels
from longlag.engines.cpu import product
from longlag.engines.cpu.lstm97 import Blocks

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
WORTH_A_THREAD = 1_000_000  # multiply-adds below which a thread costs more than it brings
CELLS: dict[str, Cell | Blocks] = {}  # operators take strings and tensors: a cell travels by its key


class Call(NamedTuple):
    """What a run is given beside the tensors that may need gradients."""

    key: str
    eps: float
    mask: Tensor | None
    lengths: Tensor | None
    reset: Tensor | None
    reverse: bool

    @property
    def cell(self) -> Any:
        return CELLS[self.key]


class Inputs(NamedTuple):
    """Tensors that may need gradients (or, as results, their gradients)."""

    x: Any  # (T, B, I)
    W: Tensor  # (Gx·H, I)
    b: Tensor | None  # (Gx·H,)
    U: Tensor | None  # (Gy·H, H)
    bias: Tensor | None  # (recurrent-only gates, H)
    gamma: Tensor | None  # (G, H)
    beta: Tensor | None
    state: Sequence[Tensor]  # (B, H) each
    params: Sequence[Tensor]  # (H,) each


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass; arrays, because nothing but kernels reads them."""

    out: Tensor  # (T, B, H)
    hists: Sequence[np.ndarray]  # the states at every step, (T, B, H) each
    a: np.ndarray  # net inputs, (T, B, Gx, H)
    rec: np.ndarray  # U y(t−1), (T, B, Gy, H), where its gates are not those of a; else empty
    source: np.ndarray  # what U read, (T, B, H), where that is not simply the step before; else empty


def run(
    cell: Cell | Blocks,
    x: Tensor,
    W: Tensor,
    b: Tensor | None,
    U: Tensor | None,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `longlag.engines.run`."""
    CELLS.setdefault(cell.key, cell)
    only_y = len(cell.gates) - len(cell.input_gates)
    if bias is None and only_y:
        bias = x.new_zeros(only_y, W.shape[0] // len(cell.input_gates))
    gamma, beta, eps = norm or (None, None, 0.0)
    if torch.compiler.is_compiling():
        given = (x, W, b, U, bias, gamma, beta, list(state), list(params))
        results = torch.ops.longlag.recurrent(cell.key, *given, eps, mask, lengths, reset, reverse)
    else:
        call = Call(cell.key, eps, mask, lengths, reset, reverse)
        results = _Recurrent.apply(call, x, W, b, U, bias, gamma, beta, *state, *params)
    return results[0], tuple(results[1 : 1 + len(cell.fed_back)])


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *given: Any) -> Any:
        rest, n = given[7:], len(call.cell.fed_back)
        save = any(ctx.needs_input_grad)
        ends, kept = _forward(call, Inputs._make([*given[:7], rest[:n], rest[n:]]), save)
        if save:
            ctx.call, ctx.kept = call, kept[1:]
            ctx.save_for_backward(kept.out, *given)  # an output may not hang on ctx itself: that would be a cycle
        return kept.out, *ends

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor) -> Any:
        call, (out, *given) = ctx.call, ctx.saved_tensors
        rest, n = given[7:], len(call.cell.fed_back)
        inputs = Inputs._make([*given[:7], rest[:n], rest[n:]])
        if torch.is_grad_enabled():  # a backward pass that is itself to be differentiated
            return (None, *_differentiable_gradients(call, inputs, d_results, ctx.needs_input_grad[1:]))
        d = _backward(call, inputs, Kept(out, *ctx.kept), d_results[0], d_results[1:], ctx.needs_input_grad[1])
        return (None, *d[:7], *d.state, *d.params)


def _differentiable_gradients(
    call: Call, inputs: Inputs, d_results: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    if isinstance(call.cell, Blocks):
        raise RuntimeError("engine 'cpu' cannot differentiate LSTM97 twice; engine='reference' can")
    x, W, b, U, bias, gamma, beta, state, params = inputs
    norm = None if gamma is None or beta is None else Norm(gamma, beta, call.eps)
    options = {"mask": call.mask, "lengths": call.lengths, "reset": call.reset, "reverse": call.reverse}
    net = reference.net_inputs(call.cell, x, W, b)
    y, ends = reference.run(call.cell, net, U, state, params, bias=bias, norm=norm, **options)
    flat = [x, W, b, U, bias, gamma, beta, *state, *params]
    wanted = [value for value, need in zip(flat, needed) if need]
    grads = iter(torch.autograd.grad([y, *ends], wanted, d_results, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


# ------------------------------------------------------------------------------------------------------- kernels
def _forward(call: Call, given: Inputs, save: bool) -> tuple[list[Tensor], Kept]:
    cell, x, W = call.cell, given.x, given.W
    ends, out, shapes = _shapes(call, x, W, given.state, save)
    dtype = DTYPES[W.dtype]
    *hists, a, rec, source = [np.empty(shape, dtype) for shape in shapes]
    kept = Kept(x.new_empty(out), hists, a, rec, source)
    final = [x.new_empty(end) for end in ends]
    module = _kernels.kernels(cell, dtype, given.gamma is not None)
    b = np.zeros(a.shape[2:], dtype) if given.b is None else given.b.detach().numpy().reshape(a.shape[2:])
    arguments = [*_shared(call, given, kept, forward=True), b, *[end.numpy() for end in final], call.reverse]
    _over_batch(module.forward, arguments, given)
    return final, kept


def _shapes(call: Call, x: Any, W: Tensor, state: Sequence[Tensor], save: bool) -> tuple[list, tuple, list]:
    """Of the final states, of the outputs, and of what is kept: states, a, rec, source."""
    cell, (T, B, _) = call.cell, x.shape
    H, kept_steps = W.shape[0] // len(cell.input_gates), T if save else 1
    plain = call.mask is None and call.reset is None and not (call.reverse and call.lengths is not None)
    own_rec = cell.dense and cell.input_gates != cell.recurrent_gates
    sizes = dict(zip(cell.fed_back, [s.shape[-1] for s in state]))
    kept = [(T, B, sizes[s]) for s in cell.states]
    kept += [(kept_steps, B, len(cell.input_gates), H)]
    kept += [(kept_steps if own_rec else 0, B, len(cell.recurrent_gates), H)]
    kept += [(0 if plain or not cell.dense else T, B, H)]
    return [(B, n) for n in sizes.values()], (T, B, H), kept


def _backward(call: Call, given: Inputs, kept: Kept, d_out: Tensor, d_ends: Sequence[Tensor], needs_x: bool) -> Inputs:
    cell, x, W, a = call.cell, given.x, given.W, kept.a
    B, H = a.shape[1], a.shape[3]
    d_a = np.empty_like(a)
    d_rec = np.empty_like(kept.rec) if kept.rec.size else d_a
    d_x = x.new_empty(x.shape if needs_x else (0, 0, 0))
    d_state = [d.clone(memory_format=torch.contiguous_format) for d in d_ends]
    d_params = [np.zeros((B, H), a.dtype) for _ in cell.params]
    d_norm = [] if given.gamma is None else [np.zeros((B, *given.gamma.shape), a.dtype) for _ in range(2)]
    module = _kernels.kernels(cell, DTYPES[W.dtype], given.gamma is not None)
    outputs = [*[d.numpy() for d in d_state], d_a, *([d_rec] if kept.rec.size else []), d_x.numpy(), *d_params, *d_norm]
    arguments = [*_shared(call, given, kept, forward=False), d_out.contiguous().numpy(), *outputs, call.reverse]
    _over_batch(module.backward, arguments, given)
    rows = d_a.reshape(-1, W.shape[0])
    d_U = d_bias = None
    if given.U is not None:
        d_U = _outer(d_rec.reshape(-1, given.U.shape[0]), _heard(kept, given.state[0], call.reverse))
    if given.bias is not None:
        only = [k for k, gate in enumerate(cell.recurrent_gates) if gate not in cell.input_gates]
        d_bias = torch.from_numpy(d_rec)[:, :, only].sum((0, 1))
    d_params, d_norm = ([torch.from_numpy(d).sum(0) for d in sums] for sums in (d_params, d_norm))
    return Inputs(
        x=d_x if needs_x else None,
        W=_outer(rows, x.detach().contiguous().numpy().reshape(len(rows), -1)),
        b=None if given.b is None else torch.from_numpy(rows).sum(0),
        U=d_U,
        bias=d_bias,
        gamma=d_norm[0] if d_norm else None,
        beta=d_norm[1] if d_norm else None,
        state=d_state,
        params=d_params,
    )


def _heard(kept: Kept, y0: Tensor, reverse: bool) -> np.ndarray:
    """What U read at every step, (T·B, H)."""
    if kept.source.size:
        return kept.source.reshape(-1, kept.source.shape[-1])
    first, out = y0.detach().numpy()[None], kept.out.detach().numpy()
    return np.concatenate([out[1:], first] if reverse else [first, out[:-1]]).reshape(-1, out.shape[-1])


def _outer(A: np.ndarray, B: np.ndarray) -> Tensor:
    """Σ_k A_k B_kᵀ (M, N) for A (K, M) and B (K, N), the same bits for any number of threads."""
    (K, M), N = A.shape, B.shape[1]
    width, tiles = product.VECTORS * product.VECTOR_BYTES // A.itemsize, -(-M // 8)
    C = np.empty((tiles * 8, -(-N // width) * width), A.dtype)
    _in_pieces(product.sum_of_outer_products, [A, B, C], tiles, K * M * N)
    return torch.from_numpy(C)[:M, :N]


def _arrays(*tensors: Tensor | None) -> list[np.ndarray]:
    return [value.detach().contiguous().numpy() for value in tensors if value is not None]


def _shared(call: Call, given: Inputs, kept: Kept, *, forward: bool) -> list[Any]:
    """The arguments that ``forward`` and ``backward`` share, in the order of `generate`."""
    arguments: list[Any] = _arrays(given.x)
    arguments += [product.pack(_arrays(given.W)[0], forward), kept.a]
    if given.U is not None:
        arguments += [product.pack(_arrays(given.U)[0], forward), kept.source]
    if kept.rec.size:
        arguments.append(kept.rec)
    arguments += _arrays(given.bias, *given.state, *given.params, given.gamma, given.beta)
    if given.gamma is not None:
        arguments.append(kept.a.dtype.type(call.eps))
    absent = _absent(DTYPES[given.W.dtype])
    if call.mask is None and call.lengths is None and call.reset is None:
        arguments += absent
    else:
        reset = call.reset
        if reset is not None and call.reverse:
            reset = resets_backwards(reset, call.lengths)
        for value, none in zip((call.mask, call.lengths, reset), absent):
            arguments.append(none if value is None else _arrays(value)[0].astype(none.dtype, copy=False))
    arguments += call.cell.extra if isinstance(call.cell, Blocks) else ()
    return [*arguments, kept.out.detach().numpy(), *kept.hists]


@functools.cache
def _absent(dtype: str) -> tuple[np.ndarray, ...]:
    """Empty arrays for a mask, lengths and resets that are not there."""
    return np.empty((0, 0), dtype), np.empty(0, np.int64), np.empty((0, 0), np.bool_)


def _over_batch(kernel: Any, arguments: list[Any], given: Inputs) -> None:
    """Run a kernel on the batch; a row's numbers do not depend on how it is cut."""
    T, batch, _ = given.x.shape
    work = T * batch * (given.W.numel() + (0 if given.U is None else given.U.numel()))
    _in_pieces(kernel, arguments, batch, work)


def _in_pieces(kernel: Any, arguments: list[Any], size: int, work: int) -> None:
    """``kernel(*arguments, first, last)`` over 0:size, one piece per thread."""
    threads = max(1, min(torch.get_num_threads(), size, work // WORTH_A_THREAD))
    if threads == 1 or not _kernels.is_ready(kernel):
        _kernels.call(kernel, *arguments, 0, size)
        return
    cuts = [size * k // threads for k in range(threads + 1)]
    list(_pool().map(lambda k: kernel(*arguments, cuts[k], cuts[k + 1]), range(threads)))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="longlag")


os.register_at_fork(after_in_child=_pool.cache_clear)


# ------------------------------------------------------------------------------------------------------ operators
def _operator(key, x, W, b, U, bias, gamma, beta, state, params, *options):
    inputs = Inputs(x, W, b, U, bias, gamma, beta, state, params)
    ends, kept = _forward(Call(key, *options), inputs, save=True)
    return [kept.out, *ends, *map(torch.from_numpy, [*kept.hists, *kept[2:]])]


def _operator_fake(key, x, W, b, U, bias, gamma, beta, state, params, *options):
    ends, out, kept = _shapes(Call(key, *options), x, W, state, save=True)
    return [x.new_empty(shape) for shape in [out, *ends, *kept]]


def _operator_back(key, x, W, b, U, bias, gamma, beta, state, params, *options_and_results):
    *options, (out, *rest), d_out, d_ends = options_and_results
    *hists, a, rec, source = _arrays(*rest)
    inputs, kept = Inputs(x, W, b, U, bias, gamma, beta, state, params), Kept(out, hists, a, rec, source)
    d = _backward(Call(key, *options), inputs, kept, d_out, d_ends, needs_x=True)
    return [value.contiguous() for value in (*d[:7], *d.state, *d.params) if value is not None]


def _operator_back_fake(key, x, W, b, U, bias, gamma, beta, state, params, *options_and_results):
    flat = [x, W, b, U, bias, gamma, beta, *state, *params]
    return [value.new_empty(value.shape) for value in flat if value is not None]


def _operator_keep(ctx, inputs, output):
    key, *given, state, params, eps, mask, lengths, reset, reverse = inputs
    ctx.key, ctx.options, ctx.sizes = key, (eps, mask, lengths, reset, reverse), (len(state), len(params))
    ctx.save_for_backward(*given, *state, *params, output[0], *output[1 + len(state) :])


def _operator_gradients(ctx, d_results):
    given, rest, (n, p) = ctx.saved_tensors[:7], ctx.saved_tensors[7:], ctx.sizes
    results = [rest[n + p :], d_results[0], d_results[1 : 1 + n]]
    flat = iter(
        torch.ops.longlag.recurrent_backward(ctx.key, *given, rest[:n], rest[n : n + p], *ctx.options, *results)
    )
    tensors = [None if value is None else next(flat) for value in given]
    return None, *tensors, [next(flat) for _ in range(n)], [next(flat) for _ in range(p)], *[None] * 5


# Defined through `Library`: `custom_op` would load torch._dynamo, a second, at the first call.
_ARGUMENTS = (
    "str key, Tensor x, Tensor W, Tensor? b, Tensor? U, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor[] state, "
    "Tensor[] params, float eps, Tensor? mask, Tensor? lengths, Tensor? reset, bool reverse"
)
_library = torch.library.Library("longlag", "FRAGMENT")
_library.define(f"recurrent({_ARGUMENTS}) -> Tensor[]")
_library.define(f"recurrent_backward({_ARGUMENTS}, Tensor[] kept, Tensor d_out, Tensor[] d_ends) -> Tensor[]")
_library.impl("recurrent", _operator, "CPU")
_library.impl("recurrent_backward", _operator_back, "CPU")
torch.library.register_fake("longlag::recurrent", _operator_fake, lib=_library)
torch.library.register_fake("longlag::recurrent_backward", _operator_back_fake, lib=_library)
torch.library.register_autograd("longlag::recurrent", _operator_gradients, setup_context=_operator_keep, lib=_library)
