"""What U reads in cells where that is more than y of the step before: states, expressions, products of the same step.

Every source has an array (steps, B, H), kept for the gradients of U. Every run of U's rows (`Structure.runs`) is packed
and multiplied by itself, into an array (steps, B, gates of the run, H). Sources formed from gates come last: they need
the products of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.pointers import INLINE, address, chosen, moved, moved_by, picked, row, rows_of_runs
from longlag.engines.cpu.codegen.structure import Source, Structure
from longlag.engines.cpu.codegen.view import ended, net_inputs_for, previous_for


def each(functions: Sequence[Any]) -> Any:
    """A function that calls all of them with its arguments, in order."""
    first, rest = functions[0], functions[1:]
    if not rest:
        return first
    following = each(rest)

    @njit(**INLINE)
    def both(*arguments):
        first(*arguments)
        following(*arguments)

    return both


def packed_of(cell: Structure, run: tuple[int, int]) -> int:
    """The word that says where the packed rows of a run lie."""
    return at.sections(cell.states, cell.params, cell.numbers).packed + cell.runs.index(run)


def pack_for(cell: Structure, number: Any, transposed: bool) -> Any:
    """``pack(v, table)``: pack the rows of every run."""
    size, flag = number(0).itemsize, int(transposed)

    def one(run: tuple[int, int]) -> Any:
        (first, count), word = run, packed_of(cell, run)

        @njit(**INLINE)
        def pack(v, table):
            U = table[at.U] + first * v.H * v.H * size
            call(table[at.pack_U], (table[at.memory] + table[word], U, count * v.H, v.H, flag | v.of_U))

        return pack

    return each([one(run) for run in cell.runs])


def forward_for(cell: Structure, reads: Sequence[Any], number: Any) -> Any:
    """``multiply_by_U(v, table, n, t, before, t_a, t_rec)``: form the sources, multiply them by U.

    ``reads``: for every source ``f(table, H, rows read, rows written)``. Rows read: net inputs, for late sources only;
    y, if anything reads it, and the states of the step before; numbers of this step; params.
    """
    return each([_forward_of(cell, k, source, reads[k], number) for k, source in enumerate(cell.sources)])


def _forward_of(cell: Structure, place: int, source: Source, read: Any, number: Any) -> Any:
    previous, net_inputs, late, Gx = previous_for(cell), net_inputs_for(cell, number), source.late, cell.input_gates
    multiply = each([_multiply_run(cell, place, run) for run in source.runs])

    @njit(**INLINE)
    def form(v, table, n, t, before, t_a, t_rec):
        for b in range(v.first, v.last):
            step = t_rec * v.B + b
            into = row(v.source, (place * v.rec_steps + step) * v.H)
            if ended(v, t, b):
                for j in range(v.H):
                    into[j] = number(0)
                continue
            values = previous(v, n, t, before, b) + moved(v.numbers, (t * v.B + b) * v.H) + v.params
            if late:
                values = net_inputs(v, table, (t_a * v.B + b) * Gx * v.H, step) + values
            read(table, v.H, values, (into,))
            if v.mask_given:
                mask = row(v.mask, b * v.H)
                for j in range(v.H):
                    into[j] *= mask[j]
        multiply(v, table, t_rec)

    return form


def _multiply_run(cell: Structure, place: int, run: tuple[int, int]) -> Any:
    (first, count), word = run, packed_of(cell, run)

    @njit(**INLINE)
    def multiply(v, table, t_rec):
        step, P = t_rec * v.B + v.first, table[at.memory] + table[word]
        read, into = (place * v.rec_steps + step) * v.H, (first * v.rec_steps + step * count) * v.H
        rows = address(v.source, read), v.H, v.last - v.first, v.H
        call(table[at.multiply_U], rows + (P, address(v.rec, into), count * v.H, v.lone, v.edge))

    return multiply


def backward_for(cell: Structure, reads_back: Sequence[Any], finish: Any, number: Any) -> Any:
    """``through(v, table, n, t, before, dA, dRec, d_rows)``: from the gates back to what the sources are formed from.

    ``d_rows``: gradients of y and of the states, of the numbers with their strides, of params.

    Args:
        reads_back: for every source ``f(table, H, rows read, rows written)``: rows read as in `forward_for`, then the
            gradient of the source, then the gradients of what it is formed from, to which it adds.
        finish: ``finish(gates)`` gives ``f(v, table, dA, dRec, at_b)``, called when the gradients at these gates are
            complete.
    """
    late = [k for k, source in enumerate(cell.sources) if source.late]
    early = [k for k, source in enumerate(cell.sources) if not source.late]
    gates_of = [gate for k in late for gate in cell.sources[k].gates]
    others = tuple(gate for gate in range(len(cell.gates)) if gate not in gates_of)
    steps = [_finish_for(tuple(gates_of), finish)] * bool(late)
    steps += [_backward_of(cell, k, reads_back[k], number) for k in late]
    steps += [_finish_for(others, finish)]
    steps += [_backward_of(cell, k, reads_back[k], number) for k in early]
    return each(steps)


def _finish_for(gates: tuple[int, ...], finish: Any) -> Any:
    complete = finish(gates)

    @njit(**INLINE)
    def step(v, table, n, t, before, dA, dRec, d_rows):
        for b in range(v.first, v.last):
            if not ended(v, t, b):
                complete(v, table, dA, dRec, t * v.B + b)

    return step


def _backward_of(cell: Structure, place: int, read_back: Any, number: Any) -> Any:
    source = cell.sources[place]
    previous, net_inputs, late, Gx = previous_for(cell), net_inputs_for(cell, number), source.late, cell.input_gates
    multiply = each([_back_of_run(cell, run, k > 0) for k, run in enumerate(source.runs)])
    product_row = cell.scratch_rows
    dA_rows, dRec_rows = picked(range(cell.input_gates)), rows_of_runs(cell.runs)
    in_W = [in_W if in_W >= 0 else cell.input_gates + in_U for in_W, in_U in cell.gates]
    of_gates, targets = chosen(in_W), chosen(source.targets)

    @njit(**INLINE)
    def step(v, table, n, t, before, dA, dRec, d_rows):
        through = row(v.scratch, product_row * v.H)
        multiply(v, table, t, dRec, through)
        for b in range(v.first, v.last):
            if ended(v, t, b):
                continue
            at_b = t * v.B + b
            d = row(through, (b - v.first) * v.H)
            if v.mask_given:
                mask = row(v.mask, b * v.H)
                for j in range(v.H):
                    d[j] *= mask[j]
            values = previous(v, n, t, before, b) + moved(v.numbers, at_b * v.H) + v.params
            if late:
                values = net_inputs(v, table, at_b * Gx * v.H, at_b) + values
            d_gates = of_gates(dA_rows(dA, at_b * Gx * v.H, v.H) + dRec_rows(dRec, v.rec_steps, at_b, v.H))
            d_y, d_states, d_numbers, strides, d_params = d_rows
            d_own = (row(d_y, b * v.H),) + moved(d_states, b * v.H) + moved_by(d_numbers, at_b, strides)
            into = targets(d_gates + d_own + moved(d_params, b * v.H))
            read_back(table, v.H, values + (d,) + into, into)

    return step


def _back_of_run(cell: Structure, run: tuple[int, int], add: bool) -> Any:
    (first, count), word, option = run, packed_of(cell, run), int(add)

    @njit(**INLINE)
    def multiply(v, table, t, dRec, through):
        errors, G = address(dRec, (first * v.rec_steps + (t * v.B + v.first) * count) * v.H), count * v.H
        into, P = address(through, 0), table[at.memory] + table[word]
        call(table[at.multiply_U], (errors, G, v.last - v.first, G, P, into, v.H, option | v.lone, v.edge))

    return multiply


def sums_for(cell: Structure, number: Any) -> Any:
    """``sums(v, table, d, first, last, thread)``: dU and the sums of bias_hh, tiles first:last of all runs' tiles."""
    size = number(0).itemsize
    places = {run: k for k, source in enumerate(cell.sources) for run in source.runs}

    def one(run: tuple[int, int], before: tuple[tuple[int, int], ...]) -> Any:
        start, count, place = *run, places[run]
        earlier = (0, *(n for _, n in before))  # of no tiles: Numba wants no empty tuple

        @njit(**INLINE)
        def sums(v, table, d, first, last, thread):
            skipped, tiles = 0, (count * v.H + 7) // 8
            for n in earlier:
                skipped += (n * v.H + 7) // 8
            low, high, steps, G = max(first - skipped, 0), min(last - skipped, tiles), v.T * v.B, count * v.H
            if low >= high:
                return
            errors, read = address(d, start * steps * v.H), address(v.source, place * steps * v.H)
            dU, bias = table[at.dU] + start * v.H * v.H * size, table[at.dbias_hh]
            if bias != 0:
                bias += start * v.H * size
            arrays = errors, G, steps, read, steps, 0, v.H, dU, bias, table[at.heads]
            call(table[at.outer_U], arrays + (table[at.memory] + table[at.outer_scratch], low, high, thread))

        return sums

    return each([one(run, cell.runs[:k]) for k, run in enumerate(cell.runs)])
