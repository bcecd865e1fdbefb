"""The backward pass over time, written once for all cells and compiled by Numba for each; see `forward`.

dA (T, B, Gx, H) and dRec (T, B, Gy, H) are the gradients at the net inputs. The gradients of W, U and the biases are
sums of outer products over all steps, computed at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.norm import normalise_back_for
from longlag.engines.cpu.codegen.pointers import INLINE, address, each, pointer, row
from longlag.engines.cpu.codegen.structure import Structure
from longlag.engines.cpu.codegen.view import (
    chunk_of,
    cleared,
    ended,
    net_inputs_for,
    open_table,
    previous_for,
    time_of,
)

PACK, ROWS, SUM_W, SUM_U = at.PACK, at.ROWS, at.SUM_W, at.SUM_U


@njit(**INLINE)
def fill(numbers, first, last, value):
    """numbers[first:last] = value."""
    for j in range(first, last):
        numbers[j] = value


def backward(cell: Structure, units: Any, number: Any) -> Callable[..., None]:
    """The kernel; ``units(table, H, rows read, rows written)``.

    Rows read: those of the forward pass, new y and states, gradients of the output, of y if it is fed back, of the
    states, and sums of gradients of params. Rows written: gradients of all gates, then those of y, states and params.
    """
    Gx, Gy, dense, separate, norm = cell.input_gates, cell.recurrent_gates, cell.dense, cell.separate, cell.norm
    gates, both, norm_row, bias_row = cell.gates, cell.both, cell.norm_row, cell.scratch_rows
    count, states, params, fed_back, masked = len(gates), cell.states, cell.params, cell.fed_back, cell.masked > 0
    of_params = at.STATES + at.PER_STATE * states
    view, previous, net_inputs = open_table(cell, number), previous_for(cell), net_inputs_for(cell, number)
    normalise_back, zero = normalise_back_for(number), number(0)

    def d_state(k: int) -> Any:
        given, own = at.of_state(k, at.D_INITIAL), at.of_state(k, at.D_OWN)
        return lambda table: pointer(table[given] if table[given] != 0 else table[at.memory] + table[own], number)

    def d_param(k: int) -> Any:
        word = of_params + at.PER_PARAM * k + 1
        return lambda table: pointer(table[word], number)

    def start_state(k: int) -> Any:
        word = at.of_state(k, at.D_FINAL)

        def copy(v, table, d_states):
            d, d_end, given = d_states[k], pointer(table[word], number), table[word] != 0
            for j in range(v.first * v.S, v.last * v.S):
                d[j] = d_end[j] if given else zero

        return copy

    def gate_gradient(k: int) -> Any:
        in_W, in_U = gates[k]
        if in_W >= 0:
            return lambda v, dA, at_a, dRec, at_rec: row(dA, at_a + in_W * v.H)
        return lambda v, dA, at_a, dRec, at_rec: row(dRec, at_rec + in_U * v.H)

    def norm_back(k: int) -> Any:
        r_row = norm_row + 2 + 2 * k

        def back(v, table, d, scales, b):
            gamma, r, start = pointer(table[at.gamma], number), row(v.scratch, r_row * v.H), (b * count + k) * v.H
            dGamma, dBeta = pointer(table[at.dGamma], number), pointer(table[at.dBeta], number)
            normalise_back(v.H, d[k], row(gamma, k * v.H), r, scales[k], row(dGamma, start), row(dBeta, start))

        return back

    def copy_gradient(k: int) -> Any:
        in_W, in_U = both[k]

        def copy(v, dA, at_a, dRec, at_rec):
            for j in range(v.H):
                dRec[at_rec + in_U * v.H + j] = dA[at_a + in_W * v.H + j]

        return copy

    def mask_state(k: int) -> Any:
        def multiply(v, d_states, b):
            for j in range(b * v.H, (b + 1) * v.H):
                d_states[k][j] *= v.mask[j]

        return multiply

    d_states_of, start_states, mask_states = (each(states, make) for make in (d_state, start_state, mask_state))
    d_params_of = each(params, d_param)
    clear_params = each(params, lambda k: lambda v, d: fill(d[k], v.first * v.H, v.last * v.H, zero))
    clear_states = each(states, lambda k: lambda v, d, b: fill(d[k], b * v.S, (b + 1) * v.S, zero))
    rows_of_states = each(states, lambda k: lambda arrays, start: row(arrays[k], start))
    rows_of_params = each(params, lambda k: lambda arrays, start: row(arrays[k], start))
    row_of_y = each(int(fed_back), lambda k: lambda d_y, start: row(d_y, start))
    gate_gradients, norms_back = each(count, gate_gradient), each(count if norm else 0, norm_back)
    copy_gradients = each(len(both) if separate else 0, copy_gradient)

    @njit(**INLINE)
    def start(v, table, d_y, d_states, d_params):
        """Gradients of the final states; sums that begin at zero."""
        fill(v.scratch, 0, v.H, zero)
        if fed_back:
            d_end, given = pointer(table[at.d_y_end], number), table[at.d_y_end] != 0
            for j in range(v.first * v.H, v.last * v.H):
                d_y[j] = d_end[j] if given else zero
        start_states(v, table, d_states)
        clear_params(v, d_params)
        if norm:
            fill(pointer(table[at.dGamma], number), v.first * count * v.H, v.last * count * v.H, zero)
            fill(pointer(table[at.dBeta], number), v.first * count * v.H, v.last * count * v.H, zero)

    @njit(**INLINE)
    def multiply_by_U(v, table, errors, d_y):
        """d_y += Uᵀ errors, multiplied by the mask."""
        G, rows, multiply = (Gy if separate else Gx) * v.H, v.last - v.first, table[at.multiply]
        if not v.mask_given:
            call(multiply, (errors, G, rows, G, v.PU, address(d_y, v.first * v.H), v.H, 1 | v.lone, v.edge))
        else:
            through = row(v.scratch, bias_row * v.H)
            call(multiply, (errors, G, rows, G, v.PU, address(through, 0), v.H, 0, v.edge))
            for b in range(v.first, v.last):
                for j in range(v.H):
                    d_y[b * v.H + j] += through[(b - v.first) * v.H + j] * v.mask[b * v.H + j]

    @njit(**INLINE)
    def multiply_by_W(v, table, t, dA):
        """dx of a chunk of steps."""
        low, high = chunk_of(v, t)
        rows = v.last - v.first
        products, rows = (1, (high - low) * v.B) if rows == v.B else (high - low, rows)
        for s in range(products):
            start = (low + s) * v.B + v.first
            errors, dx = address(dA, start * Gx * v.H), address(pointer(table[at.dx], number), start * v.I)
            call(table[at.multiply], (errors, Gx * v.H, rows, Gx * v.H, v.PW, dx, v.I, 0, v.edge))

    @njit(**INLINE)
    def sum_of_W(v, table, dA, first, last, thread):
        """dW = Σ dA xᵀ and the biases' sums, rows 8 first : 8 last."""
        steps, twice = v.T * v.B, 0 if separate else table[at.dbias_hh]
        arrays = (address(dA, 0), Gx * v.H, steps, table[at.x], steps, 0, v.I, table[at.dW], table[at.db], twice)
        call(table[at.outer_W], arrays + (table[at.memory] + table[at.outer_scratch], first, last, thread))

    @njit(**INLINE)
    def sum_of_U(v, table, d, first, last, thread):
        """dU = Σ d yᵀ, rows 8 first : 8 last; y (t − 1) lies in y_0 for one step and in out for the others."""
        errors, G, steps, split = address(d, 0), Gy * v.H, v.T * v.B, v.B
        early, late, later = address(v.y_0, 0), address(v.out, 0), address(v.out, v.B * v.H)
        if v.source_given:
            early, split, late = address(v.source, 0), steps, 0
        elif v.y_0_stride == 0:  # the first step read zeros: it is left out
            steps, split = steps - v.B, steps - v.B
            errors = errors if v.reverse else address(d, v.B * G)
            early = later if v.reverse else late
        elif v.reverse:
            early, split, late = later, steps - v.B, early
        sums = table[at.dbias_hh] if separate else 0
        arrays = (errors, G, steps, early, split, late, v.H, table[at.dU], sums, 0)
        call(table[at.outer_U], arrays + (table[at.memory] + table[at.outer_scratch], first, last, thread))
        if sums != 0 and v.y_0_stride == 0 and not v.source_given:  # the step that was left out has a bias, too
            d_bias, skipped = pointer(sums, number), (v.T - 1) * v.B if v.reverse else 0
            for j in range(first * 8, min(last * 8, G)):
                for b in range(v.B):
                    d_bias[j] += d[(skipped + b) * G + j]

    def kernel(table, first, last, thread):
        v, stage = view(table, first, last, thread), table[at.stage]
        dOut, dx_given = pointer(table[at.dOut], number), table[at.dx] != 0
        dA = pointer(table[at.memory] + table[at.dA], number)
        dRec = pointer(table[at.memory] + table[at.dRec], number) if separate else dA
        d_y = pointer(table[at.d_y_0] if table[at.d_y_0] != 0 else table[at.memory] + table[at.d_y_own], number)
        d_states, d_params = d_states_of(table), d_params_of(table)
        if stage & PACK:
            if dx_given:
                call(table[at.pack], (v.PW, table[at.W], Gx * v.H, v.I, 0))
            if dense:
                call(table[at.pack], (v.PU, table[at.U], Gy * v.H, v.H, 0))
        if stage & ROWS:
            start(v, table, d_y, d_states, d_params)
            for n in range(v.T - 1, -1, -1):
                t, before = time_of(v, n)
                for b in range(first, last):
                    at_b = t * v.B + b
                    at_a, at_rec = at_b * Gx * v.H, at_b * Gy * v.H
                    if ended(v, t, b):
                        fill(dA, at_a, at_a + Gx * v.H, zero)
                        if separate:
                            fill(dRec, at_rec, at_rec + Gy * v.H, zero)
                        continue
                    net, scales = net_inputs(v, table, at_a, at_rec)
                    d_out = row(dOut, at_b * v.H) if table[at.dOut] != 0 else v.scratch
                    d_gates = gate_gradients(v, dA, at_a, dRec, at_rec)
                    d_fed_back = row_of_y(d_y, b * v.H) + rows_of_states(d_states, b * v.S)
                    d_sums = rows_of_params(d_params, b * v.H)
                    read = net + previous(v, n, t, before, b) + v.params + (row(v.out, at_b * v.H),)
                    read = read + rows_of_states(v.states, at_b * v.S) + (d_out,) + d_fed_back + d_sums
                    units(table, v.H, read, d_gates + d_fed_back + d_sums)
                    norms_back(v, table, d_gates, scales, b)
                    copy_gradients(v, dA, at_a, dRec, at_rec)
                    if masked and v.mask_given:
                        mask_states(v, d_states, b)
                        if fed_back:
                            for j in range(b * v.H, (b + 1) * v.H):
                                d_y[j] *= v.mask[j]
                if dense:
                    errors = address(dRec, (t * v.B + first) * (Gy if separate else Gx) * v.H)
                    multiply_by_U(v, table, errors, d_y)
                if dx_given and n % v.chunk == 0:
                    multiply_by_W(v, table, t, dA)
                if v.reset_given:
                    for b in range(first, last):
                        if cleared(v, t, b) and not ended(v, t, b):
                            if fed_back:
                                fill(d_y, b * v.H, (b + 1) * v.H, zero)
                            clear_states(v, d_states, b)
        alone = stage & ROWS  # one thread does all stages in one call; else every thread gets a range of tiles
        if stage & SUM_W:
            sum_of_W(v, table, dA, 0 if alone else first, table[at.tiles_W] if alone else last, thread)
        if dense:
            if stage & SUM_U:
                sum_of_U(v, table, dRec, 0 if alone else first, table[at.tiles_U] if alone else last, thread)

    return kernel
