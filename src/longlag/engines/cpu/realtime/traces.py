"""The rule "traces": one trace per weight into a unit and part of the unit's own past, O(w) per step.

E_q = ∂q/∂θ; at every step, with the traces of the step before,
    dθ += (dy ∂y/∂net) source + Σ_q (dy ∂y/∂q) E_q                       where there is an error
    E_q ← Σ_r (∂q/∂r) E_r + (∂q/∂net) source                             [LF-92 2.1 E] [LSTM-97 3.1] [LSTM-FG 1.3 E]
Memory of a sample: E (gate or param, tile, part q, source, lane); a param has one source, 1.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, load, load_vectors, picked, row, store, store_vectors
from longlag.engines.cpu.realtime.equations import Rows
from longlag.engines.cpu.realtime.view import in_turn, nothing
from longlag.engines.cpu.simd.product import LANES


def sweep_for(rows: Rows, functions: dict[str, Any], sizes: Any, number: Any, symbols: bool) -> Any:
    """``sweep(table, v, scored)``: add to the gradients if the step is scored; advance the traces."""
    group = rows.group
    gates = [_gate(rows, functions, name, sizes, number, symbols) for name in group.cell.gates]
    return in_turn([*gates, *(_param(rows, functions, name, sizes, number) for name in group.cell.params)], nothing)


def clear_for(rows: Rows, sizes: Any, number: Any, symbols: bool) -> Any:
    """``clear(table, v, _)``: no weight has influenced anything yet."""
    lanes, parts, traced, params = (
        LANES[number],
        len(rows.group.loop),
        len(rows.group.traced),
        len(rows.group.cell.params),
    )

    @njit(**INLINE)
    def clear(table, v, _):
        z = sizes(table)
        blocks = traced * z.tiles * parts
        first = 0
        if symbols and z.inputs > 0:
            first = z.inputs
            for i in range(v.met[0]):
                for block in range(blocks):
                    store(v.sample, z.E + (block * z.D + v.met[1 + i]) * lanes, number(0))
        for block in range(blocks):
            for k in range(first, z.D):
                store(v.sample, z.E + (block * z.D + k) * lanes, number(0))
        for block in range(params * z.tiles * parts):
            store(v.sample, z.E + (blocks * z.D + block) * lanes, number(0))

    return clear


def _gate(rows: Rows, functions: dict[str, Any], name: str, sizes: Any, number: Any, symbols: bool) -> Any:
    group, lanes = rows.group, LANES[number]
    gate, net_row, learn = group.cell.gates.index(name), rows.at[f"net {name}"], functions["learn"]
    if name not in group.traced:
        return _direct(gate, net_row, sizes, number, symbols)
    position, parts, trace = group.traced.index(name), len(group.loop), functions[f"trace_{name}"]
    all_parts, partials = picked(range(parts)), picked(rows.trace_rows(name))
    used = picked([group.loop.index(q) for q in rows.past])
    past_rows = picked([rows.at[f"past {q}"] for q in rows.past])
    still = rows.still(name)

    @njit(**INLINE)
    def sweep(table, v, scored):
        z = sizes(table)
        S, values = z.tiles * lanes, row(v.sample, z.rows)
        source, first = row(v.sample, z.source), z.inputs if symbols else 0
        for tile in range(z.tiles):
            E = row(v.sample, z.E + (position * z.tiles + tile) * parts * z.D * lanes)
            G = row(v.gradient, z.W + (gate * z.tiles + tile) * z.D * lanes)
            E, known, used_E = (
                all_parts(E, 0, z.D * lanes),
                load_vectors(partials(values, 0, S), tile * lanes),
                used(E, 0, z.D * lanes),
            )
            if scored:
                net = load(values, net_row * S + tile * lanes)
                past = load_vectors(past_rows(values, 0, S), tile * lanes)
                if symbols and z.inputs > 0:
                    for i in range(v.met[0]):
                        k = v.met[1 + i]
                        one = number(1) if k == v.symbol else number(0)
                        store_vectors(
                            (G,),
                            k * lanes,
                            learn(load(G, k * lanes), net, one, *(past + load_vectors(used_E, k * lanes))),
                        )
                        store_vectors(E, k * lanes, trace(*(load_vectors(E, k * lanes) + (one,) + known)))
                for k in range(first, z.D):
                    s = source[k]
                    old = load_vectors(E, k * lanes)
                    store_vectors(
                        (G,), k * lanes, learn(load(G, k * lanes), net, s, *(past + load_vectors(used_E, k * lanes)))
                    )
                    store_vectors(E, k * lanes, trace(*(old + (s,) + known)))
            else:
                if symbols and z.inputs > 0:
                    if still:
                        k = v.symbol
                        store_vectors(E, k * lanes, trace(*(load_vectors(E, k * lanes) + (number(1),) + known)))
                    else:
                        for i in range(v.met[0]):
                            k = v.met[1 + i]
                            one = number(1) if k == v.symbol else number(0)
                            store_vectors(E, k * lanes, trace(*(load_vectors(E, k * lanes) + (one,) + known)))
                for k in range(first, z.D):
                    store_vectors(E, k * lanes, trace(*(load_vectors(E, k * lanes) + (source[k],) + known)))

    return sweep


def _direct(gate: int, net_row: int, sizes: Any, number: Any, symbols: bool) -> Any:
    """A gate that influences nothing but the present output."""
    lanes = LANES[number]

    @njit(**INLINE)
    def sweep(table, v, scored):
        if scored:
            z = sizes(table)
            values, source = row(v.sample, z.rows), row(v.sample, z.source)
            first = z.inputs if symbols else 0
            for tile in range(z.tiles):
                G = row(v.gradient, z.W + (gate * z.tiles + tile) * z.D * lanes)
                net = load(values, (net_row * z.tiles + tile) * lanes)
                if symbols and z.inputs > 0:
                    store(G, v.symbol * lanes, load(G, v.symbol * lanes) + net)
                for k in range(first, z.D):
                    store(G, k * lanes, load(G, k * lanes) + net * source[k])

    return sweep


def _param(rows: Rows, functions: dict[str, Any], name: str, sizes: Any, number: Any) -> Any:
    group, lanes = rows.group, LANES[number]
    param, of_row = group.cell.params.index(name), rows.at[f"of {name}"]
    parts, gates = len(group.loop), len(group.traced)
    trace: Any = functions.get(f"trace_{name}")  # None if there is no loop
    all_parts, partials = picked(range(parts)), picked(rows.trace_rows(name))
    past_rows, used = (
        picked([rows.at[f"past {q}"] for q in rows.past]),
        picked([group.loop.index(q) for q in rows.past]),
    )
    learn = functions["learn"]

    @njit(**INLINE)
    def sweep(table, v, scored):
        z = sizes(table)
        S, values = z.tiles * lanes, row(v.sample, z.rows)
        for tile in range(z.tiles):
            G = row(v.gradient, z.P + (param * z.tiles + tile) * lanes)
            E = row(v.sample, z.E + (gates * z.D * z.tiles + param * z.tiles + tile) * parts * lanes)
            if scored:
                past = load_vectors(past_rows(values, 0, S), tile * lanes)
                old = load_vectors(used(E, 0, lanes), 0)
                store_vectors(
                    (G,), 0, learn(load(G, 0), load(values, of_row * S + tile * lanes), number(1), *(past + old))
                )
            if parts > 0:
                known = load_vectors(partials(values, 0, S), tile * lanes)
                old = load_vectors(all_parts(E, 0, lanes), 0)
                store_vectors(all_parts(E, 0, lanes), 0, trace(*(old + (number(1),) + known)))

    return sweep
