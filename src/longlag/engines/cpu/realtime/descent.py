"""Plain gradient descent inside the time loop: w −= lr · dw where a gradient may not be 0.

It stands in for `update` where an optimiser is SGD without momentum, decay or clipping and trains all weights. With
symbols, only the columns of those met since the last reset are read, so a step costs what its own symbols cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, load, pointer, row, store
from longlag.engines.cpu.realtime import hyper as to
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.view import in_turn, nothing
from longlag.engines.cpu.simd.functions import intrinsic, root, where_positive
from longlag.engines.cpu.simd.product import LANES
from longlag.engines.cpu.simd.vector import rearranged, total


def descend_for(plan: Any) -> Any:
    """``descend(table, v, _)``: use the sums of the gradients, and clear them; nothing changes if one is not finite."""
    trained = [k for k, group in enumerate(plan.network.groups) if group.rule is not None]
    measure = in_turn([_over(plan, k, _measured) for k in trained], nothing)
    take = in_turn([_over(plan, k, _taken) for k in trained], nothing)

    @njit(**INLINE)
    def descend(table, v, _):
        numbers = pointer(table[at.numbers], np.float64)
        numbers[at.NORM] = 0.0
        measure(table, v, 0.0)
        norm = root(numbers[at.NORM])
        numbers[at.NORM] = norm
        table[at.pending] = table[at.stale] = 0
        h = pointer(table[at.hyper], np.float64)
        if not norm - norm == 0:
            table[at.skipped] += 1  # [CLIP 5 skip]
            table[at.skipped_in_a_row] += 1
            if table[at.skipped_in_a_row] == at.SKIPS:
                table[at.warn] = 1
            take(table, v, 0.0)
        else:
            take(table, v, h[to.lr])
            h[to.steps] += 1
            table[at.updates] += 1
            table[at.skipped_in_a_row] = 0

    return descend


def _over(plan: Any, k: int, maker: Any) -> Any:
    """``piece(table, v, rate)``: something for the rows of every gate and param of group k."""
    group, sizes, number, lanes = plan.network.groups[k], plan.sizes[k], plan.number, LANES[plan.number]
    pieces = []
    for gate, name in enumerate(group.cell.gates):
        size = group.shared if name in group.echoes else 1
        pieces.append(_gate(maker(number, lanes, size), gate, sizes, lanes, plan.network.symbols))
    pieces += [_param(maker(number, lanes, 1), p, sizes, lanes) for p in range(len(group.cell.params))]
    return in_turn(pieces, nothing)


def _gate(rows: Any, gate: int, sizes: Any, lanes: int, symbols: bool) -> Any:
    @njit(**INLINE)
    def piece(table, v, rate):
        z = sizes(table)
        sparse = symbols and z.inputs > 0 and table[at.B] == 1 and table[at.stale] == 0
        for tile in range(z.tiles):
            first = z.W + (gate * z.tiles + tile) * z.D * lanes
            if sparse:
                rows(table, v, first, row(v.met, 1), v.met[0], rate)
            start = z.inputs if sparse else 0
            rows(table, v, first + start * lanes, v.met, start - z.D, rate)

    return piece


def _param(rows: Any, param: int, sizes: Any, lanes: int) -> Any:
    @njit(**INLINE)
    def piece(table, v, rate):
        z = sizes(table)
        for tile in range(z.tiles):
            rows(table, v, z.P + (param * z.tiles + tile) * lanes, v.met, -1, rate)

    return piece


def _measured(number: Any, lanes: int, size: int) -> Any:
    """``rows(table, v, first, which, n, _)``: sum shared gradients, 0 where nothing is trained, and add to the norm.

    n > 0: the n sources named by ``which``, from the place ``first`` on; n < 0: the first −n.
    """
    shared, summed = size > 1, _summed(size)

    @njit(**INLINE)
    def rows(table, v, first, which, n, rate):
        G, mask = row(v.gradient, first), row(pointer(table[at.masks], number), first)
        squares = load(mask, 0) * number(0)
        for i in range(abs(n)):
            place = (which[i] if n > 0 else i) * lanes
            m = load(mask, place)
            g = where_positive(m, load(G, place))
            if shared:
                g = summed(g)
            store(G, place, g)
            squares = squares + m * g * g
        if n != 0:
            numbers = pointer(table[at.numbers], np.float64)
            numbers[at.NORM] += total(squares)

    return rows


def _taken(number: Any, lanes: int, size: int) -> Any:
    """``rows(table, v, first, which, n, rate)``: w −= rate · dw, dw = 0."""

    @njit(**INLINE)
    def rows(table, v, first, which, n, rate):
        W, G, step = row(v.weights, first), row(v.gradient, first), number(rate)
        for i in range(abs(n)):
            place = (which[i] if n > 0 else i) * lanes
            if rate != 0:
                store(W, place, load(W, place) - load(G, place) * step)
            store(G, place, number(0))

    return rows


def _summed(size: int) -> Any:
    """``summed(x)``: every lane gets the sum of the lanes of its block of ``size``."""

    @intrinsic
    def summed(typing, x):
        def codegen(context, builder, signature, arguments):
            lanes = x.lanes
            firsts = [lane - lane % size for lane in range(lanes)]
            return rearranged(builder, arguments[0], [list(range(k, min(k + size, lanes))) for k in firsts])

        return x(x), codegen

    return summed
