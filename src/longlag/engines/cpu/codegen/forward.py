"""The forward pass over time, written once for all cells and compiled by Numba for each.

Two things differ between cells: the `Structure` (numbers of gates and states, …), constants by which Numba removes
the branches that a cell does not need, and ``units``, which computes one row of units from the cell's equations
(`rows.over_units`). `words` explains the table and the shapes of all arrays. Net inputs W x + b are computed for
``chunk`` steps together, because products of many rows are faster. Every row of a product is summed in one fixed
order, so that results do not depend on how threads share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.pointers import INLINE, address, moved, pointer, row
from longlag.engines.cpu.codegen.sources import forward_for, pack_for
from longlag.engines.cpu.codegen.structure import Structure
from longlag.engines.cpu.codegen.view import (
    begins,
    chunk_of,
    cleared,
    ended,
    net_inputs_for,
    open_table,
    previous_for,
    time_of,
)

PACK, ROWS = at.PACK, at.ROWS


@njit(**INLINE)
def copy_source(v, n, t, before):
    """Copy what U reads at step t: the outputs before, or the initial ones, or zeros; multiplied by the mask."""
    for b in range(v.first, v.last):
        y = row(v.y_0, b * v.y_0_stride) if begins(v, n, t, b) else row(v.out, (before * v.B + b) * v.H)
        y = v.scratch if cleared(v, t, b) or ended(v, t, b) else y
        source, mask = row(v.source, (t * v.B + b) * v.H), row(v.mask, b * v.H)
        for j in range(v.H):
            source[j] = y[j] * mask[j] if v.mask_given else y[j]


def forward(cell: Structure, units: Any, number: Any, reads: Sequence[Any] = ()) -> Callable[..., None]:
    """The kernel; ``units(table, H, rows read, rows written)``, ``reads``: the same for every source, see `sources`.

    Rows read: net inputs, y if the equations read it, the states of the step before, numbers of this step, params.
    Rows written: y, states.
    """
    Gx, Gy, dense, separate = cell.input_gates, cell.recurrent_gates, cell.dense, cell.separate
    both, shared, fed_back, states = cell.both, len(cell.both), cell.fed_back, cell.states
    bias_row, final_word = cell.bias_row, at.sections(states, cell.params, cell.numbers).final
    view, previous, net_inputs = open_table(cell, number), previous_for(cell), net_inputs_for(cell, number)

    @njit(**INLINE)
    def bias_of_gates(v, table):
        bias, b_x, given = row(v.scratch, bias_row * v.H), pointer(table[at.b_x], number), table[at.b_x] != 0
        for j in range(Gx * v.H):
            bias[j] = b_x[j] if given else number(0)
        if shared > 0:
            for k in range(shared if v.bias_hh_given else 0):
                W_row, U_row = both[k]
                for j in range(v.H):
                    bias[W_row * v.H + j] += v.bias_hh[U_row * v.H + j]
        return bias

    @njit(**INLINE)
    def multiply_by_W(v, table, t, bias):
        """Net inputs W x + b of a chunk of steps; returns the first of them."""
        low, high = chunk_of(v, t)
        rows = v.last - v.first
        products, rows = (1, (high - low) * v.B) if rows == v.B else (high - low, rows)
        base = low if v.save else 0
        for s in range(products):
            start = ((base + s) * v.B + v.first) * Gx * v.H
            for m in range(rows):
                for j in range(Gx * v.H):
                    v.a[start + m * Gx * v.H + j] = bias[j]
            x = address(v.x, ((low + s) * v.B + v.first) * v.I)
            call(table[at.multiply], (x, v.I, rows, v.I, v.PW, address(v.a, start), Gx * v.H, 1, v.edge))
        return low

    @njit(**INLINE)
    def pack_y(v, table):
        call(table[at.pack_U], (v.PU, table[at.U], Gy * v.H, v.H, 1 | v.of_U))

    @njit(**INLINE)
    def multiply_by_y(v, table, n, t, before, t_a, t_rec):
        """U y, added to the net inputs or, if separate, written to rec."""
        y, stride, rows = address(v.out, (before * v.B + v.first) * v.H), v.H, v.last - v.first
        if v.source_given:
            copy_source(v, n, t, before)
            y = address(v.source, (t * v.B + v.first) * v.H)
        elif n == 0:
            y, stride = address(v.y_0, v.first * v.y_0_stride), v.y_0_stride
        if separate:
            into = address(v.rec, (t_rec * v.B + v.first) * Gy * v.H)
            call(table[at.multiply_U], (y, stride, rows, v.H, v.PU, into, Gy * v.H, v.lone, v.edge))
        else:
            into = address(v.a, (t_a * v.B + v.first) * Gx * v.H)
            call(table[at.multiply_U], (y, stride, rows, v.H, v.PU, into, Gx * v.H, 1 | v.lone, v.edge))

    pack_U, multiply_by_U = pack_y, multiply_by_y
    if cell.sources:
        pack_U, multiply_by_U = pack_for(cell, number, True), forward_for(cell, reads, number)

    @njit(**INLINE)
    def finals(v, table):
        y_end = pointer(table[at.y_end], number)
        for b in range(v.first, v.last):
            # layers check lengths, torch.compile does not: a length below 1 gives no step, one above T gives T
            steps = min(v.lengths[b], v.T) if v.lengths_given else v.T
            end = (0 if v.reverse else steps - 1) * v.B + b
            if fed_back:
                y = row(v.out, end * v.H) if steps > 0 else row(v.y_0, b * v.y_0_stride)
                for j in range(v.H):
                    y_end[b * v.H + j] = y[j]
            if states > 0:
                for k in range(states):
                    state = row(v.states[k], end * v.S) if steps > 0 else row(v.initial[k], b * v.strides[k])
                    s_end = row(pointer(table[final_word + k], number), b * v.S)
                    for j in range(v.S):
                        s_end[j] = state[j]

    def kernel(table, first, last, thread):
        v, stage = view(table, first, last, thread), table[at.stage]
        if stage & PACK:
            call(table[at.pack], (v.PW, table[at.W], Gx * v.H, v.I, 1))
            if dense:
                pack_U(v, table)
        if stage & ROWS:
            for j in range(v.H):
                v.scratch[j] = number(0)
            bias, low = bias_of_gates(v, table), 0
            for n in range(v.T):
                t, before = time_of(v, n)
                if n % v.chunk == 0:
                    low = multiply_by_W(v, table, t, bias)
                t_a, t_rec = (t, t) if v.save else (t - low, 0)
                if dense:
                    multiply_by_U(v, table, n, t, before, t_a, t_rec)
                for b in range(first, last):
                    y = row(v.out, (t * v.B + b) * v.H)
                    if ended(v, t, b):
                        for j in range(v.H):
                            y[j] = number(0)
                        continue
                    net = net_inputs(v, table, (t_a * v.B + b) * Gx * v.H, t_rec * v.B + b)
                    read = net + previous(v, n, t, before, b) + moved(v.numbers, (t * v.B + b) * v.H) + v.params
                    units(table, v.H, read, (y,) + moved(v.states, (t * v.B + b) * v.S))
            if fed_back or states > 0:
                finals(v, table)

    return kernel
