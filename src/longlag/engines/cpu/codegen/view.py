"""A kernel's view of its table: sizes, pointers and per-row access, shared by `forward` and `backward`.

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
from longlag.engines.cpu.codegen.pointers import (
    CALLED,
    INLINE,
    address,
    given_or,
    moved,
    moved_by,
    picked,
    pointer,
    pointers,
    row,
    rows_of_runs,
    strides_of,
)
from longlag.engines.cpu.codegen.structure import Structure
from longlag.engines.cpu.simd.job import HEADS


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
    lone: Any  # options of products with U: a batch of one row is summed in a faster order; heads
    of_U: Any  # the same without the first
    x: Any
    out: Any
    a: Any
    rec: Any
    rec_steps: Any  # rows of H numbers in rec for every gate
    source: Any  # the input of U, if it is not just the outputs of the previous step
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
    numbers: Any  # per step, of every unit


def open_table(cell: Structure, number: Any) -> Any:
    """``view(table, first, last, thread)``."""
    uniform, separate, scratch_rows = cell.uniform, cell.separate, cell.scratch_rows
    words = at.sections(cell.states, cell.params, cell.numbers)
    initial_word, states_word, params_word, numbers_word = words.initial, words.values, words.params, words.numbers
    of_states, of_params, of_numbers = (pointers(n, number) for n in (cell.states, cell.params, cell.numbers))

    @njit(**INLINE)
    def view(table, first, last, thread):
        H, kept, memory = table[at.H], table[at.kept], table[at.memory]
        S = H if uniform else table[at.S]
        a = pointer(kept + table[at.a], number)
        rec = pointer(kept + table[at.rec], number) if separate else a
        scratch = row(pointer(memory + table[at.scratch], number), thread * table[at.scratch_size])
        y_0 = pointer(table[at.y_0], number) if table[at.y_0] != 0 else scratch
        y_0_stride = H if table[at.y_0] != 0 else 0
        lone, initial = 2 if table[at.B] == 1 else 0, of_states(table, initial_word, 0)
        of_U = table[at.heads] << HEADS
        rec_steps = table[at.B] * (table[at.T] if table[at.save] != 0 else 1)
        return View(
            table[at.T], table[at.B], table[at.I], H, S, first, last, table[at.chunk], table[at.reverse] != 0,
            table[at.save] != 0, memory + table[at.PW], memory + table[at.PU],
            address(scratch, (scratch_rows + last - first) * H), lone | of_U, of_U,
            pointer(table[at.x], number), pointer(table[at.out], number), a, rec, rec_steps,
            pointer(kept + table[at.source], number), table[at.source] >= 0,
            pointer(table[at.mask], number), table[at.mask] != 0,
            pointer(table[at.lengths], np.int64), table[at.lengths] != 0,
            pointer(table[at.reset], np.uint8), table[at.reset] != 0,
            pointer(table[at.bias_hh], number), table[at.bias_hh] != 0,
            scratch, y_0, y_0_stride, given_or(initial, scratch), strides_of(initial, S),
            of_states(table, states_word, kept), of_params(table, params_word, 0), of_numbers(table, numbers_word, 0),
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
    """Whether row b is reset at step t."""
    return v.reset_given and v.reset[t * v.B + b] != 0


def previous_for(cell: Structure) -> Any:
    """``previous(v, n, t, before, b)``: rows of y, if the equations read it, and of the states, as row b reads them."""
    reads_y, masked, anything = cell.reads_y, cell.masked, cell.states > 0 or cell.reads_y
    zeros, masked_rows = picked([0] * (cell.states + cell.reads_y)), picked(range(1, 1 + masked))

    @njit(**INLINE)
    def previous(v, n, t, before, b):
        if not anything:
            return ()
        kept = moved(v.states, (before * v.B + b) * v.S)
        initial = moved_by(v.initial, b, v.strides)
        if reads_y:
            kept = (row(v.out, (before * v.B + b) * v.H),) + kept
            initial = (row(v.y_0, b * v.y_0_stride),) + initial
        rows = initial if begins(v, n, t, b) else kept
        rows = zeros(v.scratch, 0, 0) if cleared(v, t, b) else rows
        if masked > 0 and v.mask_given:
            mask, into = row(v.mask, b * v.H), masked_rows(v.scratch, 0, v.H)
            for k in range(masked):
                for j in range(v.H):
                    into[k][j] = rows[k][j] * mask[j]
            rows = into
        return rows

    return previous


def net_inputs_for(cell: Structure, number: Any) -> Any:
    """``net_inputs(v, table, at_a, step)``: rows of which the gates' net inputs are sums.

    at_a: where the row of a begins; step: the row of rec. Without norm: the rows of a, those of rec if separate, those
    of bias_hh for gates without a row in W.
    With norm: the normalised net input of every gate.
    """
    gates, norm, norm_row, separate = cell.gates, cell.norm, cell.norm_row, cell.separate
    in_W, in_U = picked(range(cell.input_gates)), rows_of_runs(cell.runs if separate else ())
    biases, normal_rows = picked(cell.only_U), picked(range(1, 1 + 3 * len(gates), 3))
    normalise = normalise_for(number)

    @njit(**(CALLED if norm else INLINE))  # inlined at every use, norms would take long to compile
    def net_inputs(v, table, at_a, step):
        bias = v.bias_hh if v.bias_hh_given else v.scratch
        bias_stride = v.H if v.bias_hh_given else 0
        if not norm:
            return in_W(v.a, at_a, v.H) + in_U(v.rec, v.rec_steps, step, v.H) + biases(bias, 0, bias_stride)
        net, eps = row(v.scratch, norm_row * v.H), number(real(table[at.eps]))
        gamma, beta = pointer(table[at.gamma], number), pointer(table[at.beta], number)
        terms = in_U(v.rec, v.rec_steps, step, v.H)
        for k in range(len(gates)):
            W_row, U_row = gates[k]
            if W_row >= 0:
                term = row(v.a, at_a + W_row * v.H)
                for j in range(v.H):
                    net[j] = term[j]
            if separate and U_row >= 0:
                term = terms[U_row]
                first = net if W_row >= 0 else row(bias, U_row * bias_stride)
                for j in range(v.H):
                    net[j] = first[j] + term[j]
            normal = row(net, (1 + 3 * k) * v.H)
            r, scale = row(normal, v.H), row(normal, 2 * v.H)
            scale[0] = normalise(v.H, net, row(gamma, k * v.H), row(beta, k * v.H), eps, r, normal)
        return normal_rows(net, 0, v.H)

    return net_inputs
