"""The reference engine: a plain torch loop under autograd. Its results define correctness.

T steps, B sequences, H units; G gates of the cell, Gx of them with a row in W, Gy with a row in U.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from longlag.cells import Cell
from longlag.engines import _exporting
from longlag.engines._arguments import Norm, Weights, resets_backwards, zeros_for

State = tuple[Tensor, ...]


def scan(
    step: Callable[[State, State], tuple[Tensor, State]],
    inputs: State,
    state: State,
    *,
    rest: State | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, State]:
    """The time loop of every reference network.

    Args:
        step: ``(inputs of the step, state) -> (output, new state)``, each (B, …).
        inputs: tensors (T, B, …); a step receives one slice of each.
        rest: the state after a reset; zeros by default.
        lengths: (B,) steps of each sequence; later steps give output 0 and do not change the state.
        reset: (T, B) bool; where true, the state becomes ``rest`` before that step.
        reverse: run from the last step to the first.

    Returns:
        outputs (T, B, …) and the final state.
    """
    if reset is not None and reverse:
        reset = resets_backwards(reset, lengths)

    def one(t: int | Tensor, x: State, reset_t: Tensor | None, state: State) -> tuple[Tensor, State]:
        before = state
        if reset_t is not None:
            base = rest or tuple(map(torch.zeros_like, state))
            before = tuple(_where(reset_t, new, old) for new, old in zip(base, state))
        y, after = step(x, before)
        if lengths is not None:
            active = t < lengths
            y = _where(active, y, torch.zeros_like(y))
            after = tuple(_where(active, new, old) for new, old in zip(after, state))
        return y, after

    if torch.compiler.is_exporting() and _exporting.many(inputs):  # one operator: the number of steps stays free
        return _exporting.loop(one, inputs, reset, state, reverse)
    slices = list(zip(*(x.unbind(0) for x in inputs)))
    outputs: list[Tensor | None] = [None] * len(slices)
    for t in reversed(range(len(slices))) if reverse else range(len(slices)):  # [BI 1]
        outputs[t], state = one(t, slices[t], None if reset is None else reset[t], state)
    return torch.stack([y for y in outputs if y is not None]), state


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Choose per sequence: condition (B,), yes and no (B, …)."""
    return torch.where(condition.view(-1, *[1] * (no.dim() - 1)), yes, no)


def net_inputs(cell: Cell, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """W x(t) + b for all steps, (T, B, Gx, H)."""
    return linear(x, W, b).unflatten(-1, (len(cell.input_gates), -1))


def run(
    cell: Cell,
    net: Tensor,
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
    numbers: Sequence[Tensor] = (),
) -> tuple[Tensor, State]:
    """Run a cell over time.

    Args:
        net: W x(t) + b, (T, B, Gx, H).
        U: recurrent matrix (Gy·H, H), or None for a local cell.
        state: the initial state, one (B, H) per name in ``cell.fed_back``.
        params: one (H,) per name in ``cell.params``.
        bias: (number of recurrent-only gates, H), added to U y(t−1) of those gates.
        norm: layer normalisation of the gates' net inputs.
        mask: (B, H), multiplies y(t−1) before U; for a local cell, all values that a unit feeds back to itself.
        lengths, reset, reverse: as in `scan`.
        numbers: one (T, B, H) per name in ``cell.per_step``.

    Returns:
        outputs (T, B, H) and the final state, like ``state``.
    """

    def one(now: State, before: State) -> tuple[Tensor, State]:
        return step(cell, now[0], U, before, params, bias=bias, norm=norm, mask=mask, numbers=now[1:])

    return scan(one, (net, *numbers), tuple(state), lengths=lengths, reset=reset, reverse=reverse)


def run_weights(
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    numbers: Sequence[Tensor] = (),
) -> tuple[Tensor, State]:
    """Run a cell over inputs x (T, B, I); see `longlag.engines.run`. Each part of the final state is (1, B, H)."""
    w = w.with_summed_biases(cell)
    y, ends = run(
        cell, net_inputs(cell, x, w.W, w.b), w.U, zeros_for(cell, x, w.W, state), w.params,
        bias=w.b_recurrent, norm=w.norm, mask=mask, lengths=lengths, reset=reset, reverse=reverse, numbers=numbers,
    )  # fmt: skip
    return y, tuple(end.unsqueeze(0) for end in ends)


def step(
    cell: Cell,
    net: Tensor,
    U: Tensor | None,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    mask: Tensor | None = None,
    numbers: Sequence[Tensor] = (),
) -> tuple[Tensor, State]:
    """One step: net (B, Gx, H), numbers (B, H), the rest as in `run`; returns y (B, H) and the new state."""
    inputs = cell_inputs(cell, net, U, state, params, bias=bias, norm=norm, mask=mask, numbers=numbers)
    new = dict(zip(cell.outputs, cell.step(*inputs), strict=True))
    return new["y"], tuple(new[name] for name in cell.fed_back)


def cell_inputs(
    cell: Cell,
    net: Tensor,
    U: Tensor | None,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    mask: Tensor | None = None,
    numbers: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The values of ``cell.inputs`` at one step: gates, then y (if read), states, numbers per step, params."""
    if mask is not None and not cell.dense:
        state = [s * mask for s in state]
    values = dict(zip(cell.fed_back, state, strict=True)) | dict(zip(cell.per_step, numbers, strict=True))
    values |= zip(cell.params, params)
    from_x = dict(zip(cell.input_gates, net.unbind(-2), strict=True))
    late = [gate for gate in cell.recurrent_gates if gate not in from_x]
    biases = dict(zip(late, (0.0,) * len(late) if bias is None else bias.unbind(0)))

    def finish(gate: str, product: Tensor | None) -> None:
        if product is None:
            a = from_x[gate]
        elif gate in from_x:
            a = from_x[gate] + product  # [ELMAN 1 r]
        else:
            a = biases[gate] + product
        if norm is not None:
            k = cell.gates.index(gate)
            a = layer_norm(a, a.shape[-1:], norm.weight[k], norm.bias[k], norm.eps)  # [LN-RNN 5 LN]
        values[gate] = a

    for gate in cell.input_gates:
        if gate not in cell.source_of:
            finish(gate, None)
    for gates, read in cell.reads if U is not None else ():
        source = read(**values)
        source = source if mask is None else source * mask
        product = source @ _rows(cell, U, gates).t()
        for gate, one in zip(gates, product.unflatten(-1, (len(gates), -1)).unbind(-2)):
            finish(gate, one)
    return [values[name] for name in cell.inputs]


def _rows(cell: Cell, U: Tensor | None, gates: Sequence[str]) -> Tensor:
    """The rows of some gates in U."""
    assert U is not None
    if gates == cell.recurrent_gates:
        return U
    rows = dict(zip(cell.recurrent_gates, U.chunk(len(cell.recurrent_gates))))
    return torch.cat([rows[gate] for gate in gates])
