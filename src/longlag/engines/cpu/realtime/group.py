"""The pieces of a step for one group of units: forward, errors back, and what the next step reads."""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.generate import NUMBA
from longlag.engines.cpu.codegen.pointers import INLINE, picked, row
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.lanes import access, over_units
from longlag.engines.cpu.realtime.network import FED_BACK, X
from longlag.engines.cpu.realtime.view import first_lanes, in_turn, nothing
from longlag.engines.cpu.simd.vector import total


def forward_for(plan: Any, k: int) -> Any:
    """``forward(table, v, _)``: sources, net inputs, new values, partials of group k."""
    rows, sizes, number, symbols = plan.rows[k], plan.sizes[k], plan.number, plan.network.symbols
    group, lanes = rows.group, plan.lanes[k]
    gates, params, form = len(group.cell.gates), len(group.cell.params), rows.unit
    units = over_units(plan.functions[k]["unit"], lanes, vectors=not NUMBA.uses_power(form))
    load, store = access(lanes).load, access(lanes).store
    read = picked(range(gates + len(group.loop) + len(rows.own)))
    own_weights = in_turn([_own_weights(plan, k, gate) for gate in rows.own], nothing)
    first_new = rows.at["new y"]
    written, read_params = picked(range(first_new, first_new + len(form.outputs))), picked(range(params))
    gather = in_turn(_gathered(plan, k), nothing)

    @njit(**INLINE)
    def forward(table, v, _):
        z = sizes(table)
        S, source, values = z.tiles * lanes, row(v.sample, z.source), row(v.sample, z.rows)
        gather(table, v, source)
        first = z.inputs if symbols else 0
        for c in range(gates * z.tiles):
            W = row(v.weights, z.W + c * z.D * lanes)
            even, odd = load(W, (z.D - 1) * lanes) * number(0), load(W, (z.D - 1) * lanes) * number(0)
            if first < z.D:  # else the symbol is the only source, and behind W begin other weights
                even = load(W, first * lanes) * source[first]
            if symbols and z.inputs > 0:
                odd = load(W, v.symbol * lanes)
            for q in range(first + 1, z.D - 1, 2):
                odd = odd + load(W, q * lanes) * source[q]
                even = even + load(W, (q + 1) * lanes) * source[q + 1]
            if first < z.D and (z.D - first) % 2 == 0:
                odd = odd + load(W, (z.D - 1) * lanes) * source[z.D - 1]
            store(values, c * lanes, even + odd)
        own_weights(table, v, values)
        units(S, read(values, 0, S) + read_params(v.effective, z.P, S), written(values, 0, S))

    return forward


def _own_weights(plan: Any, k: int, gate: str) -> Any:
    """``copy(table, v, values)``: the weights of a gate from each unit to itself."""
    rows, sizes, lanes = plan.rows[k], plan.sizes[k], plan.lanes[k]
    g, at_row = rows.group.cell.gates.index(gate), rows.at[f"own {gate}"]

    @njit(**INLINE)
    def copy(table, v, values):
        z = sizes(table)
        for u in range(z.units):
            source = (g * z.tiles + u // lanes) * z.D + z.inputs + u
            values[at_row * z.tiles * lanes + u] = v.weights[z.W + source * lanes + u % lanes]

    return copy


def _gathered(plan: Any, k: int) -> list[Any]:
    """Pieces ``copy(table, v, source)`` that lay out the sources; those of 1 are set when memory is made."""
    group, pieces, before = plan.network.groups[k], [], []
    for piece in group.reads:
        if piece != FED_BACK or k != plan.network.reader:  # there it lies
            pieces.append(_copy(plan, k, piece, tuple(before)))
        before.append(piece)
    return pieces


def _copy(plan: Any, k: int, piece: Any, before: tuple[Any, ...]) -> Any:
    own, symbols = plan.sizes[k], plan.network.symbols
    lower = [plan.sizes[j] for j in before if isinstance(j, int)]
    start = _start(own, lower, FED_BACK in before)
    if piece == X:

        @njit(**INLINE)
        def copy(table, v, source):
            for i in range(0 if symbols else own(table).inputs):
                source[i] = v.x[i]
    elif piece == FED_BACK:

        @njit(**INLINE)
        def copy(table, v, source):
            first = start(table)
            for i in range(table[at.R]):
                source[first + i] = v.sample[table[at.fed] + i]
    else:
        below, y, lanes = plan.sizes[piece], plan.rows[piece].at["new y"], plan.lanes[piece]

        @njit(**INLINE)
        def copy(table, v, source):
            z, first = below(table), start(table)
            values = row(v.sample, z.rows + y * z.tiles * lanes)
            for i in range(z.units):
                source[first + i] = values[i]

    return copy


def _start(own: Any, lower: list[Any], fed_back: bool) -> Any:
    """``start(table)``: position of a piece in the source, after the inputs, what is fed back, and lower groups."""

    @njit(**INLINE)
    def first(table):
        return own(table).inputs + (table[at.R] if fed_back else 0)

    if not lower:
        return first
    last, rest = lower[-1], _start(own, lower[:-1], fed_back)

    @njit(**INLINE)
    def start(table):
        return rest(table) + last(table).units

    return start


def back_for(plan: Any, k: int) -> Any:
    """``back(table, v, active)``: from ``d y`` the errors of net inputs, past and params; and d y of lower groups."""
    rows, sizes, lanes = plan.rows[k], plan.sizes[k], plan.lanes[k]
    group, form = rows.group, rows.back
    units = over_units(plan.functions[k]["back"], lanes, vectors=not NUMBA.uses_power(form))
    first = rows.at[f"net {group.cell.gates[0]}"]
    read, written = picked(rows.back_rows), picked(range(first, first + len(form.outputs)))
    before, senders = [], []
    for piece in group.reads:
        if isinstance(piece, int):
            senders.append(_send(plan, k, piece, tuple(before), first))
        before.append(piece)
    send = in_turn(senders, nothing)

    @njit(**INLINE)
    def back(table, v, active):
        z = sizes(table)
        S, values = z.tiles * lanes, row(v.sample, z.rows)
        units(S, read(values, 0, S), written(values, 0, S))
        if active:
            send(table, v, active)

    return back


def _send(plan: Any, k: int, piece: int, before: tuple[Any, ...], first_net: int) -> Any:
    """Add Wᵀ of the errors of group k's net inputs to ``d y`` of a group that it reads."""
    own, below, d_y = plan.sizes[k], plan.sizes[piece], plan.rows[piece].at["d y"]
    lanes, lower_lanes, load = plan.lanes[k], plan.lanes[piece], access(plan.lanes[k]).load
    start = _start(own, [plan.sizes[j] for j in before if isinstance(j, int)], FED_BACK in before)
    gates = len(plan.network.groups[k].cell.gates)

    @njit(**INLINE)
    def send(table, v, _):
        z, lower, first = own(table), below(table), start(table)
        net = row(v.sample, z.rows + first_net * z.tiles * lanes)
        into = row(v.sample, lower.rows + d_y * lower.tiles * lower_lanes)
        for u in range(lower.units):
            W = row(v.weights, z.W + (first + u) * lanes)
            products = first_lanes(load(W, 0) * load(net, 0), z.units)
            for c in range(1, gates * z.tiles):
                product = load(W, c * z.D * lanes) * load(net, c * lanes)
                products = products + first_lanes(product, z.units - c % z.tiles * lanes)
            into[u] += total(products)

    return send
