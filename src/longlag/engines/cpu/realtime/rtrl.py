"""The rule "rtrl" of a group that reads its own last outputs: exact gradients, in blocks of steps.

A step is put into the block (`blocks`): the partials of the cell, the sources, and dL/dy where there is an error. The
kernels of `influence`, which all cells share, do the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen.pointers import INLINE, address, pointer, row
from longlag.engines.cpu.realtime import blocks as block
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.equations import Rows
from longlag.engines.cpu.realtime.view import in_turn, nothing
from longlag.engines.cpu.simd.product import LANES


def sweep_for(plan: Any, k: int) -> Any:
    """``sweep(table, v, scored)``: the step joins the block; a full block ends first."""
    rows, sizes, number, symbols = plan.rows[k], plan.sizes[k], plan.number, plan.network.symbols
    partials, d_y, lanes = in_turn(_partials(rows, sizes, number), nothing), rows.at["d y"], LANES[number]

    @njit(**INLINE)
    def sweep(table, v, scored):
        z, words = sizes(table), table[at.blocks]
        w, sample = pointer(words, np.int64), address(v.sample, z.E)
        n, numbers = pointer(sample, np.int64), pointer(sample, number)
        if n[block.STEPS] == w[block.capacity]:
            call(w[block.collect], (words, sample, address(v.gradient, 0), w[block.shared]))
            call(w[block.flush], (words, sample, 0, w[block.shared]))
        step, values = n[block.STEPS], row(v.sample, z.rows)
        partials(
            table,
            v,
            row(numbers, w[block.partials] + step * (w[block.folded] - w[block.partials]) // w[block.capacity]),
        )
        source = row(numbers, w[block.read] + step * w[block.source_row])
        I, H = z.inputs, z.units
        for i in range(I):
            source[i] = (number(1) if i == v.symbol else number(0)) if symbols else v.x[i]
        source[I] = number(1)
        for j in range(H):
            source[I + 1 + j] = v.sample[z.source + I + j]
        call(w[block.advance], (words, sample, address(v.weights, 0), w[block.shared]))
        if scored:
            errors, d = row(numbers, w[block.errors] + step * w[block.unit_row]), row(values, d_y * z.tiles * lanes)
            for j in range(H):
                errors[j] = d[j]
            n[block.SCORED] = step + 1

    return sweep


def clear_for(plan: Any, k: int) -> Any:
    """``clear(table, v, _)``: the errors so far are used; then nothing has influenced the state."""
    sizes = plan.sizes[k]

    @njit(**INLINE)
    def clear(table, v, _):
        words, sample = table[at.blocks], address(v.sample, sizes(table).E)
        w, n = pointer(words, np.int64), pointer(sample, np.int64)
        call(w[block.collect], (words, sample, address(v.gradient, 0), w[block.shared]))
        n[block.STEPS] = n[block.CARRIED] = 0

    return clear


def settle_for(plan: Any, k: int) -> Any:
    """``settle(table, v, _)``: the errors so far become gradients."""
    sizes = plan.sizes[k]

    @njit(**INLINE)
    def settle(table, v, _):
        words, sample = table[at.blocks], address(v.sample, sizes(table).E)
        w = pointer(words, np.int64)
        call(w[block.collect], (words, sample, address(v.gradient, 0), w[block.shared]))

    return settle


def _partials(rows: Rows, sizes: Any, number: Any) -> list[Any]:
    """Pieces ``copy(table, v, place)`` of ∂q/∂v for every part q of the state and every gate, param and part v."""
    cell, pieces = rows.group.cell, []
    names = (*cell.gates, *cell.params, *cell.fed_back)
    for k, key in enumerate((q, v) for q in cell.fed_back for v in names):
        if key in rows.partials:
            pieces.append(_copied(rows.at[rows.partials[key]], k, sizes, number))
        else:
            pieces.append(_constant(float(cell.jacobian.get(key, 0)), k, sizes, number))
    return pieces


def _copied(at_row: int, k: int, sizes: Any, number: Any) -> Any:
    lanes = LANES[number]

    @njit(**INLINE)
    def copy(table, v, place):
        z = sizes(table)
        S = z.tiles * lanes
        values, to = row(v.sample, z.rows + at_row * S), row(place, k * S)
        for j in range(z.units):
            to[j] = values[j]

    return copy


def _constant(value: float, k: int, sizes: Any, number: Any) -> Any:
    lanes = LANES[number]

    @njit(**INLINE)
    def fill(table, v, place):
        z = sizes(table)
        for j in range(z.units):
            place[k * z.tiles * lanes + j] = number(value)

    return fill
