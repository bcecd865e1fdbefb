"""The backward pass over time, written once for all cells and compiled by Numba for each; see `forward`.

dA (T, B, Gx, H) and dRec (T, B, Gy, H) are the gradients at the net inputs. The gradients of W, U and the biases are
sums of outer products over all steps, computed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.norm import normalise_back_for
from longlag.engines.cpu.codegen.pointers import (
    INLINE,
    address,
    chosen,
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
from longlag.engines.cpu.codegen.sources import backward_for, pack_for, sums_for
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


def backward(cell: Structure, units: Any, number: Any, reads_back: Sequence[Any] = ()) -> Callable[..., None]:
    """The kernel; ``units(table, H, rows read, rows written)``, ``reads_back``: the same for sources, see `sources`.

    Rows read: those of the forward pass, new y and states, gradients of the output, of y if it is fed back, of the
    states, and sums of gradients of params. Rows written: gradients of the gates with a row in W, of the other gates,
    of y if the equations read it, of the states, of the numbers of this step, and the new sums.
    """
    Gx, Gy, dense, separate, norm = cell.input_gates, cell.recurrent_gates, cell.dense, cell.separate, cell.norm
    gates, both, norm_row, product_row = cell.gates, cell.both, cell.norm_row, cell.scratch_rows
    count, states, params, fed_back, masked = len(gates), cell.states, cell.params, cell.fed_back, cell.masked > 0
    spare_row, formed = cell.spare_row, bool(cell.sources)
    reads_y, shared = cell.reads_y, len(cell.both)
    numbers = cell.numbers
    words = at.sections(states, params, numbers)
    d_final, d_own_word, d_initial, d_params_word = words.d_final, words.d_own, words.d_initial, words.d_params
    of_states, of_params, of_numbers = (pointers(n, number) for n in (states, params, numbers))
    d_numbers_word = words.d_numbers
    dA_rows, dRec_rows, only_U = picked(range(Gx)), rows_of_runs(cell.runs if separate else ()), chosen(cell.only_U)
    view, previous, net_inputs = open_table(cell, number), previous_for(cell), net_inputs_for(cell, number)
    normalise_back, zero = normalise_back_for(number), number(0)

    @njit(**INLINE)
    def start(v, table, d_y, d_states, d_params):
        """Gradients of the final states; sums that begin at zero."""
        fill(v.scratch, 0, v.H, zero)
        if fed_back:
            d_end, given = pointer(table[at.d_y_end], number), table[at.d_y_end] != 0
            for j in range(v.first * v.H, v.last * v.H):
                d_y[j] = d_end[j] if given else zero
        if states > 0:
            for k in range(states):
                d_end, given = pointer(table[d_final + k], number), table[d_final + k] != 0
                for j in range(v.first * v.S, v.last * v.S):
                    d_states[k][j] = d_end[j] if given else zero
        if params > 0:
            for k in range(params):
                fill(d_params[k], v.first * v.H, v.last * v.H, zero)
        if norm:
            fill(pointer(table[at.dGamma], number), v.first * count * v.H, v.last * count * v.H, zero)
            fill(pointer(table[at.dBeta], number), v.first * count * v.H, v.last * count * v.H, zero)

    @njit(**INLINE)
    def normal_back(v, table, dA, dRec, b, k):
        """Back through the norm of gate k."""
        gamma, normal = pointer(table[at.gamma], number), row(v.scratch, (norm_row + 1) * v.H)
        dGamma, dBeta = pointer(table[at.dGamma], number), pointer(table[at.dBeta], number)
        W_row, U_row = gates[k]
        d = row(dA, W_row * v.H)
        if separate and W_row < 0:
            d = dRec[U_row]
        r, scale, start = row(normal, (3 * k + 1) * v.H), normal[(3 * k + 2) * v.H], (b * count + k) * v.H
        normalise_back(v.H, d, row(gamma, k * v.H), r, scale, row(dGamma, start), row(dBeta, start))

    @njit(**INLINE)
    def copy_gradients(v, dA, dRec, k):
        """The gate k of those with a row in W and a row in U has one gradient for both."""
        W_row, U_row = both[k]
        for j in range(v.H):
            dRec[U_row][j] = dA[W_row * v.H + j]

    def finish(complete):
        """See `sources.backward_for`."""
        in_both = tuple(k for k, rows in enumerate(both) if gates.index(rows) in complete)
        some = len(in_both) > 0

        @njit(**INLINE)
        def finished(v, table, dA, dRec, at_b):
            at_a, rows = at_b * Gx * v.H, dRec_rows(dRec, v.rec_steps, at_b, v.H)
            if norm:
                net_inputs(v, table, at_a, at_b)
                for k in complete:
                    normal_back(v, table, row(dA, at_a), rows, at_b % v.B, k)
            if some:
                for k in in_both:
                    copy_gradients(v, row(dA, at_a), rows, k)

        return finished

    @njit(**INLINE)
    def apply_mask(v, d_y, d_states, b):
        mask = row(v.mask, b * v.H)
        if fed_back:
            for j in range(v.H):
                d_y[b * v.H + j] *= mask[j]
        if states > 0:
            for k in range(states):
                for j in range(v.H):
                    d_states[k][b * v.H + j] *= mask[j]

    @njit(**INLINE)
    def clear(v, d_y, d_states, b):
        """Clear the gradients at a step where row b was reset."""
        if fed_back:
            fill(d_y, b * v.H, (b + 1) * v.H, zero)
        if states > 0:
            for k in range(states):
                fill(d_states[k], b * v.S, (b + 1) * v.S, zero)

    @njit(**INLINE)
    def adds_to_y(v):
        """Whether the product with Uᵀ is added to d_y: rows may have ended, or the equations also read y."""
        return reads_y or not dense or formed or v.lengths_given

    @njit(**INLINE)
    def pack_y(v, table):
        call(table[at.pack_U], (v.PU, table[at.U], Gy * v.H, v.H, v.of_U))

    @njit(**INLINE)
    def multiply_by_U(v, table, errors, d_y):
        """d_y += Uᵀ errors, multiplied by the mask; or d_y = …, see `adds_to_y`."""
        G, rows, multiply = (Gy if separate else Gx) * v.H, v.last - v.first, table[at.multiply_U]
        add = 1 if adds_to_y(v) else 0
        if not v.mask_given:
            call(multiply, (errors, G, rows, G, v.PU, address(d_y, v.first * v.H), v.H, add | v.lone, v.edge))
        else:
            through = row(v.scratch, product_row * v.H)
            call(multiply, (errors, G, rows, G, v.PU, address(through, 0), v.H, v.of_U, v.edge))
            for b in range(v.first, v.last):
                for j in range(v.H):
                    value = through[(b - v.first) * v.H + j] * v.mask[b * v.H + j]
                    d_y[b * v.H + j] = d_y[b * v.H + j] + value if add != 0 else value

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
    def sum_over_y(v, table, d, first, last, thread):
        """dU = Σ d yᵀ, rows 8 first : 8 last; y (t − 1) lies in y_0 for one step and in out for the others."""
        errors, G, steps, split = address(d, 0), Gy * v.H, v.T * v.B, v.B
        early, late, later = address(v.y_0, 0), address(v.out, 0), address(v.out, v.B * v.H)
        if v.source_given:
            early, split, late = address(v.source, 0), steps, 0
        elif v.y_0_stride == 0:  # the first step read zeros: its product is left out
            steps, split = steps - v.B, steps - v.B
            errors = errors if v.reverse else address(d, v.B * G)
            early = later if v.reverse else late
        elif v.reverse:
            early, split, late = later, steps - v.B, early
        sums = table[at.dbias_hh] if separate else 0
        arrays = (errors, G, steps, early, split, late, v.H, table[at.dU], sums, table[at.heads])
        call(table[at.outer_U], arrays + (table[at.memory] + table[at.outer_scratch], first, last, thread))
        if sums != 0 and v.y_0_stride == 0 and not v.source_given:  # the omitted step still contributes to the bias
            d_bias, skipped = pointer(sums, number), (v.T - 1) * v.B if v.reverse else 0
            for j in range(first * 8, min(last * 8, G)):
                for b in range(v.B):
                    d_bias[j] += d[(skipped + b) * G + j]

    pack_U, sum_of_U = pack_y, sum_over_y
    through_sources: Any = None
    if formed:
        pack_U, sum_of_U = pack_for(cell, number, False), sums_for(cell, number)
        through_sources = backward_for(cell, reads_back, finish, number)

    def kernel(table, first, last, thread):
        v, stage = view(table, first, last, thread), table[at.stage]
        dOut, dx_given = pointer(table[at.dOut], number), table[at.dx] != 0
        dA = pointer(table[at.memory] + table[at.dA], number)
        dRec = pointer(table[at.memory] + table[at.dRec], number) if separate else dA
        d_y = pointer(table[at.d_y_0] if table[at.d_y_0] != 0 else table[at.memory] + table[at.d_y_own], number)
        d_states = given_or(of_states(table, d_initial, 0), of_states(table, d_own_word, table[at.memory]))
        d_params = of_params(table, d_params_word, 0)
        d_numbers = of_numbers(table, d_numbers_word, 0)  # where none is wanted, a scratch row is written
        d_strides, spare = strides_of(d_numbers, v.H), row(v.scratch, spare_row * v.H)
        if stage & PACK:
            if dx_given:
                call(table[at.pack], (v.PW, table[at.W], Gx * v.H, v.I, 0))
            if dense:
                pack_U(v, table)
        if stage & ROWS:
            start(v, table, d_y, d_states, d_params)
            for n in range(v.T - 1, -1, -1):
                t, before = time_of(v, n)
                for b in range(first, last):
                    at_b = t * v.B + b
                    at_a, d_rec = at_b * Gx * v.H, dRec_rows(dRec, v.rec_steps, at_b, v.H)
                    d_now = moved_by(given_or(d_numbers, spare), at_b, d_strides)
                    if ended(v, t, b):
                        if numbers > 0:
                            for k in range(numbers):
                                fill(d_now[k], 0, v.H, zero)
                        fill(dA, at_a, at_a + Gx * v.H, zero)
                        if separate:
                            for k in range(Gy):
                                fill(d_rec[k], 0, v.H, zero)
                        continue
                    net = net_inputs(v, table, at_a, at_b)
                    d_out = row(dOut, at_b * v.H) if table[at.dOut] != 0 else v.scratch
                    d_fed_back = d_before = moved(d_states, b * v.S)
                    if fed_back:
                        d_fed_back = (row(d_y, b * v.H),) + d_fed_back
                    if reads_y:
                        d_before = (row(d_y, b * v.H),) + d_before
                    d_sums = moved(d_params, b * v.H)
                    read = net + previous(v, n, t, before, b) + moved(v.numbers, at_b * v.H) + v.params
                    read = read + (row(v.out, at_b * v.H),)
                    read = read + moved(v.states, at_b * v.S) + (d_out,) + d_fed_back + d_sums
                    d_gates = dA_rows(dA, at_a, v.H) + only_U(d_rec)
                    units(table, v.H, read, d_gates + d_before + d_now + d_sums)
                    if fed_back and not reads_y and adds_to_y(v):
                        fill(d_y, b * v.H, (b + 1) * v.H, zero)
                    if norm and not formed:
                        for k in range(count):
                            normal_back(v, table, row(dA, at_a), d_rec, b, k)
                    if separate and shared > 0 and not formed:
                        for k in range(shared):
                            copy_gradients(v, row(dA, at_a), d_rec, k)
                    if masked and v.mask_given:
                        apply_mask(v, d_y, d_states, b)
                if formed:
                    d_rows = d_y, d_states, given_or(d_numbers, spare), d_strides, d_params
                    through_sources(v, table, n, t, before, dA, dRec, d_rows)
                elif dense:
                    errors = address(dRec, (t * v.B + first) * (Gy if separate else Gx) * v.H)
                    multiply_by_U(v, table, errors, d_y)
                if dx_given and n % v.chunk == 0:
                    multiply_by_W(v, table, t, dA)
                if v.reset_given:
                    for b in range(first, last):
                        if cleared(v, t, b) and not ended(v, t, b):
                            clear(v, d_y, d_states, b)
        alone = stage & ROWS  # one thread does all stages in one call; else every thread gets a range of tiles
        if stage & SUM_W:
            sum_of_W(v, table, dA, 0 if alone else first, table[at.tiles_W] if alone else last, thread)
        if dense and stage & SUM_U:
            sum_of_U(v, table, dRec, 0 if alone else first, table[at.tiles_U] if alone else last, thread)

    return kernel
