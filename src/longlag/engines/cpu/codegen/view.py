"""A kernel's table opened: sizes, pointers and per-row access, shared by `forward` and `backward`.

The functions here are factories: given the `Structure` of a cell they return compiled functions in which numbers of
gates and states are constants. All of them are inlined into the kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.compile import real
from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.norm import normalise_for
from longlag.engines.cpu.codegen.pointers import INLINE, address, each, pointer, row
from longlag.engines.cpu.codegen.structure import Structure


class View(NamedTuple):
    """What a kernel reads from its table, for the rows first:last of a batch."""

    T: Any
    B: Any
    I: Any
    H: Any
    S: Any  # numbers per row of a state
    first: Any
    last: Any
    chunk: Any  # time steps whose net inputs are computed together
    reverse: Any
    save: Any  # whether a backward pass will read the net inputs of all steps
    PW: Any  # packed matrices
    PU: Any
    edge: Any  # scratch memory of products
    lone: Any  # flag for products: a batch of one row is summed in a faster order
    x: Any
    out: Any
    a: Any
    rec: Any
    source: Any  # what U reads, where that is not simply the step before
    source_given: Any
    mask: Any
    mask_given: Any
    lengths: Any
    lengths_given: Any
    reset: Any
    reset_given: Any
    bias_hh: Any
    bias_hh_given: Any
    scratch: Any  # of this thread; its first row is zero
    y_0: Any
    y_0_stride: Any  # 0 if no initial output is given: one row of zeros serves the whole batch
    initial: Any  # of every state
    strides: Any  # of those, as y_0_stride
    states: Any  # at all time steps
    params: Any  # of every unit


def open_table(cell: Structure, number: Any) -> Any:
    """``view(table, first, last, thread)``."""
    uniform, separate, scratch_rows = cell.uniform, cell.separate, cell.scratch_rows
    of_params = at.STATES + at.PER_STATE * cell.states

    def initial(k: int) -> Any:
        word = at.of_state(k, at.INITIAL)
        return lambda table, zero: pointer(table[word], number) if table[word] != 0 else zero

    def stride(k: int) -> Any:
        word = at.of_state(k, at.INITIAL)
        return lambda table, S: S if table[word] != 0 else 0

    def values(k: int) -> Any:
        word = at.of_state(k, at.ALL)
        return lambda table: pointer(table[at.kept] + table[word], number)

    def param(k: int) -> Any:
        word = of_params + at.PER_PARAM * k
        return lambda table: pointer(table[word], number)

    initials, strides, states = (each(cell.states, make) for make in (initial, stride, values))
    params = each(cell.params, param)

    @njit(**INLINE)
    def view(table, first, last, thread):
        H, kept, memory = table[at.H], table[at.kept], table[at.memory]
        S = H if uniform else table[at.S]
        a = pointer(kept + table[at.a], number)
        rec = pointer(kept + table[at.rec], number) if separate else a
        scratch = row(pointer(memory + table[at.scratch], number), thread * table[at.scratch_size])
        y_0 = pointer(table[at.y_0], number) if table[at.y_0] != 0 else scratch
        y_0_stride = H if table[at.y_0] != 0 else 0
        lone = 2 if table[at.B] == 1 else 0
        return View(
            table[at.T], table[at.B], table[at.I], H, S, first, last, table[at.chunk], table[at.reverse] != 0,
            table[at.save] != 0, memory + table[at.PW], memory + table[at.PU],
            address(scratch, (scratch_rows + last - first) * H), lone,
            pointer(table[at.x], number), pointer(table[at.out], number), a, rec,
            pointer(kept + table[at.source], number), table[at.source] >= 0,
            pointer(table[at.mask], number), table[at.mask] != 0,
            pointer(table[at.lengths], np.int64), table[at.lengths] != 0,
            pointer(table[at.reset], np.uint8), table[at.reset] != 0,
            pointer(table[at.bias_hh], number), table[at.bias_hh] != 0,
            scratch, y_0, y_0_stride, initials(table, scratch), strides(table, S), states(table), params(table),
        )  # fmt: skip

    return view


@njit(**INLINE)
def time_of(v, n):
    """The time step that is computed n-th, and the one whose outputs it reads."""
    return (v.T - 1 - n, v.T - n) if v.reverse else (n, n - 1)


@njit(**INLINE)
def chunk_of(v, t):
    """First and last + 1 of the time steps whose net inputs are computed together with those of step t."""
    return (max(0, t - v.chunk + 1), t + 1) if v.reverse else (t, min(v.T, t + v.chunk))


@njit(**INLINE)
def begins(v, n, t, b):
    """Whether step t, computed n-th, is the first one of row b."""
    return n == 0 or (v.reverse and v.lengths_given and t == v.lengths[b] - 1)


@njit(**INLINE)
def ended(v, t, b):
    """Whether step t lies beyond the length of row b."""
    return v.lengths_given and t >= v.lengths[b]


@njit(**INLINE)
def cleared(v, t, b):
    """Whether row b begins anew at step t."""
    return v.reset_given and v.reset[t * v.B + b] != 0


def previous_for(cell: Structure) -> Any:
    """``previous(v, n, t, before, b)``: rows of y, if the equations read it, and of the states, as row b reads them."""
    states, reads_y, masked = cell.states, cell.reads_y, cell.masked > 0
    anything = states > 0 or reads_y

    def state(k: int) -> Any:
        def values(v, begin, clear, before, b):
            kept = row(v.states[k], (before * v.B + b) * v.S)
            return v.scratch if clear else (row(v.initial[k], b * v.strides[k]) if begin else kept)

        return values

    def output(_: int) -> Any:
        def values(v, begin, clear, before, b):
            kept = row(v.out, (before * v.B + b) * v.H)
            return v.scratch if clear else (row(v.y_0, b * v.y_0_stride) if begin else kept)

        return values

    def masked_row(k: int) -> Any:
        def values(v, rows, b):
            into, mask = row(v.scratch, (1 + k) * v.H), row(v.mask, b * v.H)
            for j in range(v.H):
                into[j] = rows[k][j] * mask[j]
            return into

        return values

    of_y, of_states, with_mask = each(int(reads_y), output), each(states, state), each(states + reads_y, masked_row)

    @njit(**INLINE)
    def previous(v, n, t, before, b):
        begin, clear = (begins(v, n, t, b), cleared(v, t, b)) if anything else (False, False)
        rows = of_y(v, begin, clear, before, b) + of_states(v, begin, clear, before, b)
        if masked:
            rows = with_mask(v, rows, b) if v.mask_given else rows
        return rows

    return previous


def net_inputs_for(cell: Structure, number: Any) -> Any:
    """``net_inputs(v, table, at_a, at_rec)``: rows of which the gates' net inputs are sums, and scales of the norm.

    Without norm: the rows of a, those of rec if that is separate, those of bias_hh for gates without a row in W.
    With norm: the normalised net input of every gate.
    """
    gates, only_U, norm, norm_row, separate = cell.gates, cell.only_U, cell.norm, cell.norm_row, cell.separate
    normalise = normalise_for(number)

    def bias(k: int) -> Any:
        in_U = only_U[k]
        return lambda v: row(v.bias_hh, in_U * v.H) if v.bias_hh_given else v.scratch

    def normal_scale(k: int) -> Any:
        (in_W, in_U), normal_row = gates[k], 1 + 2 * k

        def scale(v, table, at_a, at_rec, scratch):
            H, from_W, from_U = v.H, row(v.a, at_a + in_W * v.H), row(v.rec, at_rec + in_U * v.H)
            if in_W < 0:
                from_bias = row(v.bias_hh, in_U * H) if v.bias_hh_given else v.scratch
                for j in range(H):
                    scratch[j] = from_U[j] + from_bias[j]
            elif in_U >= 0 and separate:
                for j in range(H):
                    scratch[j] = from_W[j] + from_U[j]
            else:
                for j in range(H):
                    scratch[j] = from_W[j]
            gamma, beta = pointer(table[at.gamma], number), pointer(table[at.beta], number)
            eps, normal = number(real(table[at.eps])), row(scratch, normal_row * H)
            return normalise(H, scratch, row(gamma, k * H), row(beta, k * H), eps, row(normal, H), normal)

        return scale

    in_W = each(cell.input_gates, lambda k: lambda v, start: row(v.a, start + k * v.H))
    in_U = each(cell.recurrent_gates if separate else 0, lambda k: lambda v, start: row(v.rec, start + k * v.H))
    biases = each(len(only_U), bias)
    scales_of = each(len(gates) if norm else 0, normal_scale)
    normal_rows = each(len(gates), lambda k: lambda v, scratch: row(scratch, (1 + 2 * k) * v.H))

    @njit(**INLINE)
    def net_inputs(v, table, at_a, at_rec):
        if norm:
            scratch = row(v.scratch, norm_row * v.H)
            scales = scales_of(v, table, at_a, at_rec, scratch)
            return normal_rows(v, scratch), scales
        return in_W(v, at_a) + in_U(v, at_rec) + biases(v), ()

    return net_inputs
