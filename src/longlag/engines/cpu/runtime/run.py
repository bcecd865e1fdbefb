"""The CPU engine around compiled kernels: an autograd function for eager code, operators for ``torch.compile``.

Both call `_forward` and `_backward`; the function has less overhead. Kernels take addresses, so what they read and
write lies in a few blocks of memory: one kept for the backward pass, one for the time of a call.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd.function import _SingleLevelFunction

from longlag.cells import Cell
from longlag.cells._cell import KNOWN
from longlag.engines import reference
from longlag.engines._arguments import Norm, Weights, resets_backwards, zeros_for
from longlag.engines._choose import intercepted
from longlag.engines.cpu.codegen.lstm97 import Blocks
from longlag.engines.cpu.runtime.plan import Pass, Plan, plan
from longlag.engines.cpu.runtime.program import numbers_in, program


class Extras(NamedTuple):
    """What most calls go without."""

    eps: float = 0.0
    mask: Tensor | None = None
    lengths: Tensor | None = None
    reset: Tensor | None = None


class Call(NamedTuple):
    """What a run is given beside the tensors that may need gradients."""

    cell: Any
    names: tuple[str, ...]  # of those tensors, as in the kernels' tables
    reverse: bool
    extras: Extras | None

    @property
    def plain(self) -> bool:
        """Whether U reads nothing but the outputs of the step before."""
        e = self.extras
        return e is None or (e.mask is None and e.reset is None and not (self.reverse and e.lengths is not None))


def run(
    cell: Cell | Blocks,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `longlag.engines.run`."""
    as_operator = torch.compiler.is_compiling() or intercepted(x)  # something that torch sees
    if not as_operator:  # as `Function.apply` does; weights do not leave torch.func
        x = unwrap_if_dead(x)
        state = [value if value is None else unwrap_if_dead(value) for value in state] if state else ()
    W, b, U, b_recurrent, params, norm = w
    if b_recurrent is not None:
        raise ValueError(f"engine 'cpu': biases of cell {cell.name} must come apart, as (bias_ih, bias_hh)")
    given = {"x": x, "W": W}
    if isinstance(b, tuple):
        given["b_x"], given["bias_hh"] = b
    elif b is not None:
        given["b_x"] = b
    if U is not None:
        given["U"] = U
    for s, value in zip(cell.fed_back, state):
        if value is not None:
            given[f"{s}_0"] = value
    for p, value in zip(cell.params, params):
        given[f"{p}_all"] = value
    eps = 0.0
    if norm is not None:
        given["gamma"], given["beta"], eps = norm
    extras = None
    if eps or mask is not None or lengths is not None or reset is not None:
        extras = Extras(eps, mask, lengths, reset)
    if as_operator:
        words = cell.key, list(given), list(given.values()), reverse, eps, mask, lengths, reset
        results = torch.ops.longlag.recurrent(*words)
        return results[0], tuple(results[1:-1])
    call = Call(cell, tuple(given), reverse, extras)
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` would say what could be needed, not what is
        out, ends, _, _ = _forward(call, tuple(given.values()), save=False)
        return out, tuple(ends)
    results = _Recurrent.apply(call, *given.values())  # pyright: ignore[reportAttributeAccessIssue]
    return results[0], results[1:]


class _Recurrent(_SingleLevelFunction):  # `Function` less what its `apply` does for torch.func
    @staticmethod
    def forward(ctx: Any, call: Call, *given: Tensor) -> Any:
        save = any(ctx.needs_input_grad)
        out, ends, kept, plan = _forward(call, given, save)
        if save:
            ctx.call, ctx.kept, ctx.plan = call, kept, plan
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(out, *given)  # an output may not hang on ctx itself: that would be a cycle
        return out, *ends

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        call, (out, *given) = ctx.call, ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a backward pass that is itself to be differentiated
            return (None, *_differentiable_gradients(call, given, d_results, needed))
        return (None, *_backward(ctx.plan, call, given, out, ctx.kept, d_results, needed))


def _differentiable_gradients(
    call: Call, given: Sequence[Tensor], d_results: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the reference engine: its backward pass can be differentiated again."""
    cell = call.cell
    if isinstance(cell, Blocks):
        raise RuntimeError("engine 'cpu' cannot differentiate LSTM97 twice; engine='reference' can")
    named, extras = dict(zip(call.names, given)), call.extras or Extras()
    x, W, b, gamma = named["x"], named["W"], named.get("b_x"), named.get("gamma")
    w = Weights(W, (b, named["bias_hh"]) if "bias_hh" in named else b).together(cell)
    norm = None if gamma is None else Norm(gamma, named["beta"], extras.eps)
    state = zeros_for(cell, x, W, [named.get(f"{s}_0") for s in cell.fed_back])
    y, ends = reference.run(
        cell, reference.net_inputs(cell, x, W, w.b), named.get("U"), state, [named[f"{p}_all"] for p in cell.params],
        bias=w.b_recurrent, norm=norm, mask=extras.mask, lengths=extras.lengths, reset=extras.reset,
        reverse=call.reverse,
    )  # fmt: skip
    wanted = [value for value, need in zip(given, needed) if need]
    results = [y, *(end.unsqueeze(0) for end in ends)]
    values, errors = zip(*[(value, d) for value, d in zip(results, d_results) if d is not None])
    grads = iter(torch.autograd.grad(values, wanted, errors, create_graph=True, allow_unused=True))
    return [next(grads) if need else None for need in needed]


# ------------------------------------------------------------------------------------------------------- kernels
def _planned(call: Call, given: Sequence[Tensor], save: bool) -> Plan:
    cell, names, reverse, extras = call
    shapes, dtype = [], given[0].dtype
    for value in given:
        shapes.append(value.shape)
        if value.dtype is not dtype or not value.is_cpu:  # kernels read memory as they are told
            name, got = names[len(shapes) - 1], f"{value.dtype} on {value.device}"
            raise TypeError(f"engine 'cpu': {name} of cell {cell.name} must be {dtype} on cpu like x, got {got}")
    plain = extras is None or call.plain
    return plan(cell, names, tuple(shapes), dtype, plain, save, reverse, torch.get_num_threads())


def _forward(call: Call, given: Sequence[Tensor], save: bool) -> tuple[Tensor, list[Tensor], Tensor, Plan]:
    """Outputs, final states, the memory that the backward pass reads, and the plan for that."""
    plan, new = _planned(call, given, save), given[0].new_empty
    this = plan.forward
    kept, out, ends = new(this.workspace.kept), new(*this.workspace.shape), [new(*shape) for shape in this.results]
    _run(plan, this, call, given, (kept, new(this.workspace.memory), out, *ends))
    return out, ends, kept, plan


def _backward(
    plan: Plan,
    call: Call,
    given: Sequence[Tensor],
    out: Tensor,
    kept: Tensor,
    d_results: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients of ``given``."""
    this, new = plan.backward(needed), given[0].new_empty
    memory, found = new(this.workspace.memory), [new(*shape) for shape in this.results]
    _run(plan, this, call, given, (kept, memory, out, *found), d_results)
    gradients: list[Tensor | None] = [None] * len(given)
    for k, d in zip(this.computed, found):
        gradients[k] = d.sum(0) if k in this.each else d
    return gradients


def _run(
    plan: Plan,
    this: Pass,
    call: Call,
    given: Sequence[Tensor],
    own: Sequence[Tensor],
    d_results: Sequence[Tensor | None] = (),
) -> None:
    """Fill in a table and run a pass."""
    table, held = this.table[:], [value.contiguous() for value in given]  # they must live until the kernel ends
    for place, tensor in zip(this.places, (*held, *own)):
        table[place] = tensor.data_ptr()
    for place, d in zip(plan.errors, d_results):
        if d is not None:
            held.append(d := d.contiguous())
            table[place] = d.data_ptr()
    if call.extras is not None:
        held += _fill_extras(table, plan.program.places[this.part], call.extras, call.reverse)
    this.run(table)


def _fill_extras(table: array, places: dict[str, int], extras: Extras, reverse: bool) -> list[Tensor]:
    """Returns the tensors whose addresses it fills in."""
    eps, mask, lengths, reset = extras
    if eps:
        table[places["eps"]] = struct.unpack("q", struct.pack("d", eps))[0]
    if reset is not None and reverse:
        reset = resets_backwards(reset, lengths)
    if lengths is not None:
        lengths = lengths.to(torch.int64)
    given = {"mask": mask, "lengths": lengths, "reset": reset}
    held = {name: tensor.contiguous() for name, tensor in given.items() if tensor is not None}
    for name, tensor in held.items():
        table[places[name]] = tensor.data_ptr()
    return list(held.values())


# ------------------------------------------------------------------------------------------------------ operators
def _called(key, names, options):
    """A cell travels by its key: operators take strings and tensors."""
    reverse, *extras = options
    return Call(Blocks.found(key) if key.startswith("blocks ") else KNOWN[key], tuple(names), reverse, Extras(*extras))


def _operator(key, names, given, *options):
    out, ends, kept, _ = _forward(_called(key, names, options), given, save=True)
    return [out, *ends, kept]


def _operator_fake(key, names, given, *options):
    call, (T, B, _), rows = _called(key, names, options), given[0].shape, given[1].shape[0]
    p = program(call.cell, given[1].dtype, "gamma" in names)
    H = rows // p.input_gates
    widths = [given[names.index(f"{s}_0")].shape[-1] if f"{s}_0" in names else H for s in call.cell.fed_back]
    kept = numbers_in(p.kept(T, B, rows, widths, call.plain))
    return [given[0].new_empty(shape) for shape in ((T, B, H), *((1, B, n) for n in widths), (kept,))]


def _operator_back(key, names, given, *options_and_results):
    *options, out, kept, d_results = options_and_results
    call = _called(key, names, options)
    return _backward(_planned(call, given, True), call, given, out, kept, d_results, (True,) * len(given))


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
    "str key, str[] names, Tensor[] given, bool reverse, float eps, Tensor? mask, Tensor? lengths, Tensor? reset"
)
_library = torch.library.Library("longlag", "FRAGMENT")
_library.define(f"recurrent({_ARGUMENTS}) -> Tensor[]")
_library.define(f"recurrent_backward({_ARGUMENTS}, Tensor out, Tensor kept, Tensor[] d_results) -> Tensor[]")
_library.impl("recurrent", _operator, "CPU")
_library.impl("recurrent_backward", _operator_back, "CPU")
torch.library.register_fake("longlag::recurrent", _operator_fake, lib=_library)
torch.library.register_fake("longlag::recurrent_backward", _operator_back_fake, lib=_library)
torch.library.register_autograd("longlag::recurrent", _operator_gradients, setup_context=_operator_keep, lib=_library)
