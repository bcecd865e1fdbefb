"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `_forward` and `_backward`; the function has less overhead. Kernels take addresses, so what they read and
write lies in a few blocks of memory: one kept for the backward pass, one for the time of a call.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.cells._cell import KNOWN
from longlag.engines import reference
from longlag.engines._arguments import Biases, Norm, resets_backwards, zeros_for
from longlag.engines.cpu.generate import SUM_U, SUM_W
from longlag.engines.cpu.lstm97 import Blocks
from longlag.engines.cpu.program import Program, Room, numbers_in, program


class Call(NamedTuple):
    """What a run is given beside the tensors that may need gradients."""

    cell: Any
    names: tuple[str, ...]  # of those tensors, as in the kernels' tables
    eps: float
    mask: Tensor | None
    lengths: Tensor | None
    reset: Tensor | None
    reverse: bool


def run(
    cell: Cell | Blocks,
    x: Tensor,
    W: Tensor,
    b: Biases,
    U: Tensor | None,
    state: Sequence[Tensor | None],
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
    only_y = len(cell.gates) - len(cell.input_gates)
    if bias is None and only_y:
        bias = x.new_zeros(only_y, W.shape[0] // len(cell.input_gates))
    given = {"x": x, "W": W}
    if isinstance(b, tuple):
        given["b_x"], given["b_too"] = b
    elif b is not None:
        given["b_x"] = b
    for name, value in (("U", U), ("bias_y", bias), *zip(_states(cell), state), *zip(_params(cell), params)):
        if value is not None:
            given[name] = value
    if norm is not None:
        given["gamma"], given["beta"] = norm.weight, norm.bias
    eps = 0.0 if norm is None else norm.eps
    call = Call(cell, tuple(given), eps, mask, lengths, reset, reverse)
    if torch.compiler.is_compiling():
        results = torch.ops.longlag.recurrent(cell.key, list(given), list(given.values()), *call[2:])
    else:
        results = _Recurrent.apply(call, *given.values())
    return results[0], tuple(results[1 : 1 + len(cell.fed_back)])


def _states(cell: Any) -> list[str]:
    return [f"{s}_0" for s in cell.fed_back]


def _params(cell: Any) -> list[str]:
    return [f"{p}_all" for p in cell.params]


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *given: Tensor) -> Any:
        save = any(ctx.needs_input_grad)
        out, ends, kept = _forward(call, given, save)
        if save:
            ctx.call, ctx.kept = call, kept
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(out, *given)  # an output may not hang on ctx itself: that would be a cycle
        return out, *ends

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        call, (out, *given) = ctx.call, ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a backward pass that is itself to be differentiated
            return (None, *_differentiable_gradients(call, given, d_results, needed))
        return (None, *_backward(call, given, out, ctx.kept, d_results, needed))


def _differentiable_gradients(
    call: Call, given: Sequence[Tensor], d_results: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    cell = call.cell
    if isinstance(cell, Blocks):
        raise RuntimeError("engine 'cpu' cannot differentiate LSTM97 twice; engine='reference' can")
    named = dict(zip(call.names, given))
    x, W, b, gamma = named["x"], named["W"], named.get("b_x"), named.get("gamma")
    biases = (b, named["b_too"]) if b is not None and "b_too" in named else b
    norm = None if gamma is None else Norm(gamma, named["beta"], call.eps)
    state = zeros_for(cell, x, W, [named.get(name) for name in _states(cell)])
    options = {"mask": call.mask, "lengths": call.lengths, "reset": call.reset, "reverse": call.reverse}
    y, ends = reference.run(
        cell, reference.net_inputs(cell, x, W, biases), named.get("U"), state, [named[p] for p in _params(cell)],
        bias=named.get("bias_y"), norm=norm, **options,
    )  # fmt: skip
    wanted = [value for value, need in zip(given, needed) if need]
    values, errors = zip(*[(value, d) for value, d in zip([y, *ends], d_results) if d is not None])
    grads = iter(torch.autograd.grad(values, wanted, errors, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


# ------------------------------------------------------------------------------------------------------- kernels
class Target(NamedTuple):
    """Where a gradient goes: its name in the table, the stage that computes it, whether there is one per sequence."""

    name: str
    stage: int = 0
    each: bool = False


TARGETS = {
    "x": Target("dx"),
    "W": Target("dW", SUM_W),
    "b_x": Target("db", SUM_W),
    "b_too": Target("db_too", SUM_W),
    "U": Target("dU", SUM_U),
    "gamma": Target("dGamma", each=True),
    "beta": Target("dBeta", each=True),
}


@functools.cache
def _targets(names: tuple[str, ...]) -> list[Target]:
    local = {name: Target(f"d_{name.removesuffix('_all')}_sum", each=True) for name in names if name.endswith("_all")}
    return [TARGETS.get(name) or local.get(name) or Target(f"d_{name}") for name in names]


@functools.cache
def _state_places(cell: Any, names: tuple[str, ...]) -> list[int | None]:
    """Which of the given tensors each state is."""
    return [names.index(name) if name in names else None for name in _states(cell)]


def _prepared(part: str, call: Call, given: Sequence[Tensor], save: bool) -> tuple[Program, Room]:
    p = program(call.cell, given[1].dtype, "gamma" in call.names)
    widths = tuple([None if k is None else given[k].shape[-1] for k in _state_places(call.cell, call.names)])
    x, rows = given[0].shape, given[1].shape[0]
    return p, p.room(part, x, rows, widths, _plain(call), save, call.reverse, torch.get_num_threads())


def _plain(call: Call) -> bool:
    """Whether U reads nothing but the outputs of the step before."""
    return call.mask is None and call.reset is None and not (call.reverse and call.lengths is not None)


def _forward(call: Call, given: Sequence[Tensor], save: bool) -> tuple[Tensor, list[Tensor], Tensor]:
    """Outputs, final states, and the memory that the backward pass reads."""
    x = given[0]
    p, r = _prepared("forward", call, given, save)
    out, kept, memory = x.new_empty(r.shape), x.new_empty(r.kept), x.new_empty(r.memory)
    ends = [x.new_empty((r.shape[1], n)) for n in r.widths]
    table, places = r.table[:], p.places["forward"]
    held = _fill(table, places, call, given, out, kept, memory)
    for end, place in zip(ends, p.end_places):
        table[place] = end.data_ptr()
    p.run("forward", table, r)
    del held
    return out, ends, kept


def _backward(
    call: Call,
    given: Sequence[Tensor],
    out: Tensor,
    kept: Tensor,
    d_results: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of ``given``."""
    x, targets = given[0], _targets(call.names)
    p, r = _prepared("backward", call, given, True)
    memory, table, places = x.new_empty(r.memory), r.table[:], p.places["backward"]
    held = _fill(table, places, call, given, out, kept, memory)
    for name, d in zip(_ends(call.cell), d_results):
        if d is not None:
            table[places[name]] = _held(d, held)
    stages = 0
    for target, need in zip(targets, needed):
        stages |= target.stage if need else 0
    table[places["stage"]] |= stages
    gradients: list[Tensor | None] = []
    for target, value, need in zip(targets, given, needed):
        place, d = places.get(target.name), None
        if place is not None and (target.stage & stages if target.stage else need or target.each):
            d = x.new_empty((r.shape[1], *value.shape) if target.each else value.shape)
            table[place] = d.data_ptr()
        gradients.append(d)
    p.run("backward", table, r)
    del held
    for k, target in enumerate(targets):
        if target.each:
            gradients[k] = cast(Tensor, gradients[k]).sum(0)
        elif target.name == "d_bias_y":
            T, B, H = r.shape
            d_rec = memory[r.d_rec :][: T * B * H * p.recurrent_gates].view(T, B, -1, H)
            gradients[k] = d_rec[:, :, p.only_y].sum((0, 1))
    return gradients


@functools.cache
def _ends(cell: Any) -> tuple[str, ...]:
    """Names of the errors that come from outside."""
    return ("dOut", *(f"d_{s}_end" for s in cell.fed_back))


def _fill(
    table: array, places: dict[str, int], call: Call, given: Sequence[Tensor], out: Tensor, kept: Tensor, memory: Tensor
) -> list[Tensor]:
    """Enter addresses into a table; the tensors that must live until the kernel ends."""
    held: list[Tensor] = []
    for name, tensor in zip(call.names, given):
        place = places.get(name)
        if place is not None:
            table[place] = _held(tensor, held)
    table[places["out"]], table[places["kept"]] = out.data_ptr(), kept.data_ptr()
    table[places["memory"]] = memory.data_ptr()
    if "eps" in places:
        table[places["eps"]] = struct.unpack("q", struct.pack("d", call.eps))[0]
    if call.mask is not None:
        table[places["mask"]] = _held(call.mask, held)
    if call.lengths is not None:
        table[places["lengths"]] = _held(call.lengths.to(torch.int64), held)
    if call.reset is not None:
        reset = resets_backwards(call.reset, call.lengths) if call.reverse else call.reset
        table[places["reset"]] = _held(reset, held)
    return held


def _held(tensor: Tensor, held: list[Tensor]) -> int:
    """The address of a tensor's numbers in a row; it lives as long as ``held``."""
    tensor = tensor.contiguous()
    held.append(tensor)
    return tensor.data_ptr()


# ------------------------------------------------------------------------------------------------------ operators
def _called(key, names, options):
    """A cell travels by its key: operators take strings and tensors."""
    return Call(Blocks.found(key) if key.startswith("blocks ") else KNOWN[key], tuple(names), *options)


def _operator(key, names, given, *options):
    out, ends, kept = _forward(_called(key, names, options), given, save=True)
    return [out, *ends, kept]


def _operator_fake(key, names, given, *options):
    call, (T, B, _), rows = _called(key, names, options), given[0].shape, given[1].shape[0]
    p = program(call.cell, given[1].dtype, "gamma" in names)
    H = rows // p.input_gates
    widths = [H if k is None else given[k].shape[-1] for k in _state_places(call.cell, call.names)]
    kept = numbers_in(p.kept(T, B, rows, widths, _plain(call)))
    return [given[0].new_empty(shape) for shape in ((T, B, H), *((B, n) for n in widths), (kept,))]


def _operator_back(key, names, given, *options_and_results):
    *options, out, kept, d_results = options_and_results
    return _backward(_called(key, names, options), given, out, kept, d_results, [True] * len(given))


def _operator_back_fake(key, names, given, *options_and_results):
    return [value.new_empty(value.shape) for value in given]


def _operator_keep(ctx, inputs, output):
    ctx.key, ctx.names, given, *ctx.options = inputs
    ctx.save_for_backward(output[0], output[-1], *given)


def _operator_gradients(ctx, d_results):
    out, kept, *given = ctx.saved_tensors
    d = torch.ops.longlag.recurrent_backward(ctx.key, ctx.names, given, *ctx.options, out, kept, d_results[:-1])
    return None, None, d, *[None] * 5


# Defined through `Library`: `custom_op` would load torch._dynamo, a second, at the first call.
_ARGUMENTS = (
    "str key, str[] names, Tensor[] given, float eps, Tensor? mask, Tensor? lengths, Tensor? reset, bool reverse"
)
_library = torch.library.Library("longlag", "FRAGMENT")
_library.define(f"recurrent({_ARGUMENTS}) -> Tensor[]")
_library.define(f"recurrent_backward({_ARGUMENTS}, Tensor out, Tensor kept, Tensor[] d_results) -> Tensor[]")
_library.impl("recurrent", _operator, "CPU")
_library.impl("recurrent_backward", _operator_back, "CPU")
torch.library.register_fake("longlag::recurrent", _operator_fake, lib=_library)
torch.library.register_fake("longlag::recurrent_backward", _operator_back_fake, lib=_library)
torch.library.register_autograd("longlag::recurrent", _operator_gradients, setup_context=_operator_keep, lib=_library)
