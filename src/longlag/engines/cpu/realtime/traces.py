"""The rule "traces": one trace per weight into a unit and part of the unit's own past, O(w) per step.

E_q = ∂q/∂θ; at every step, with the traces of the step before,
    dθ += (dy ∂y/∂net) source + Σ_q (dy ∂y/∂q) E_q                       where there is an error
    E_q ← Σ_r (∂q/∂r) E_r + (∂q/∂net) source                             [LF-92 2.1 E] [LSTM-97 3.1] [LSTM-FG 1.3 E]
Memory of a sample: E (gate or param, tile, part q, source, lane); a param has one source, 1. Of inputs that are
symbols only those met since the last reset have traces.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, picked, row
from longlag.engines.cpu.realtime.lanes import access
from longlag.engines.cpu.realtime.view import in_turn, nothing


def sweep_for(plan: Any, k: int) -> Any:
    """``sweep(table, v, scored)``: add to the gradients if the step is scored; advance the traces."""
    group = plan.network.groups[k]
    gates = [_traced(plan, k, g) if g in group.traced else _direct(plan, k, g) for g in group.cell.gates]
    return in_turn([*gates, *(_param(plan, k, name) for name in group.cell.params)], nothing)


def clear_for(plan: Any, k: int) -> Any:
    """``clear(table, v, _)``: no weight has influenced anything yet."""
    sizes, number, lanes, symbols = plan.sizes[k], plan.number, plan.lanes[k], plan.reads_symbols(k)
    group, store = plan.network.groups[k], access(lanes).store
    parts, traced, params = len(group.loop), len(group.traced), len(group.cell.params)
    if not parts:
        return nothing

    @njit(**INLINE)
    def clear(table, v, _):
        z = sizes(table)
        blocks, first = traced * z.tiles * parts, z.inputs if symbols else 0
        for block in range(blocks):
            E = row(v.sample, z.E + block * z.D * lanes)
            for i in range(v.met[0] if symbols else 0):
                store(E, v.met[1 + i] * lanes, number(0))
            for s in range(first, z.D):
                store(E, s * lanes, number(0))
        for block in range(params * z.tiles * parts):
            store(v.sample, z.E + (blocks * z.D + block) * lanes, number(0))

    return clear


def _traced(plan: Any, k: int, name: str) -> Any:
    """A gate that influences the loop."""
    rows, sizes, number, lanes, symbols = plan.rows[k], plan.sizes[k], plan.number, plan.lanes[k], plan.reads_symbols(k)
    group, with_vectors = rows.group, access(lanes)
    load, load_vectors, store_vectors = with_vectors.load, with_vectors.load_vectors, with_vectors.store_vectors
    gate, position, net_row = group.cell.gates.index(name), group.traced.index(name), rows.at[f"net {name}"]
    parts, trace, learn = len(group.loop), plan.functions[k][f"trace_{name}"], plan.functions[k]["learn"]
    every, partials = picked(range(parts)), picked(rows.trace_rows(name))
    used, past_rows = (
        picked([group.loop.index(q) for q in rows.past]),
        picked([rows.at[f"past {q}"] for q in rows.past]),
    )

    @njit(**INLINE)
    def advance(E, s, source, known):
        store_vectors(E, s * lanes, trace(*(load_vectors(E, s * lanes) + (source,) + known)))

    @njit(**INLINE)
    def learn_and_advance(G, E, used_E, s, source, net, past, known):
        errors = (load(G, s * lanes), net, source) + past + load_vectors(used_E, s * lanes)
        store_vectors((G,), s * lanes, learn(*errors))
        advance(E, s, source, known)

    met = _met(advance, learn_and_advance, number, rows.still(name)) if symbols else nothing_met

    @njit(**INLINE)
    def sweep(table, v, scored):
        z = sizes(table)
        S, values = z.tiles * lanes, row(v.sample, z.rows)
        source, first = row(v.sample, z.source), z.inputs if symbols else 0
        for tile in range(z.tiles):
            block = row(v.sample, z.E + (position * z.tiles + tile) * parts * z.D * lanes)
            G = row(v.gradient, z.W + (gate * z.tiles + tile) * z.D * lanes)
            E, used_E = every(block, 0, z.D * lanes), used(block, 0, z.D * lanes)
            known = load_vectors(partials(values, 0, S), tile * lanes)
            if scored:
                net = load(values, net_row * S + tile * lanes)
                past = load_vectors(past_rows(values, 0, S), tile * lanes)
                met(v, True, G, E, used_E, net, past, known)
                for s in range(first, z.D):
                    learn_and_advance(G, E, used_E, s, source[s], net, past, known)
            else:
                net = load(values, 0)
                past = load_vectors(past_rows(values, 0, S), 0)
                met(v, False, G, E, used_E, net, past, known)
                for s in range(first, z.D):
                    advance(E, s, source[s], known)

    return sweep


@njit(**INLINE)
def nothing_met(v, scored, G, E, used_E, net, past, known):
    """The input is not a symbol."""


def _met(advance: Any, learn_and_advance: Any, number: Any, still: bool) -> Any:
    """The same for the symbols met: 1 for the present one, 0 for the others."""

    @njit(**INLINE)
    def met(v, scored, G, E, used_E, net, past, known):
        if scored:
            for i in range(v.met[0]):
                s = v.met[1 + i]
                learn_and_advance(G, E, used_E, s, number(1) if s == v.symbol else number(0), net, past, known)
        elif still:
            advance(E, v.symbol, number(1), known)
        else:
            for i in range(v.met[0]):
                s = v.met[1 + i]
                advance(E, s, number(1) if s == v.symbol else number(0), known)

    return met


def _direct(plan: Any, k: int, name: str) -> Any:
    """A gate that influences nothing but the present output."""
    sizes, lanes, symbols = plan.sizes[k], plan.lanes[k], plan.reads_symbols(k)
    gate, net_row = plan.network.groups[k].cell.gates.index(name), plan.rows[k].at[f"net {name}"]
    load, store = access(lanes).load, access(lanes).store

    @njit(**INLINE)
    def sweep(table, v, scored):
        if scored:
            z = sizes(table)
            values, source, first = row(v.sample, z.rows), row(v.sample, z.source), z.inputs if symbols else 0
            for tile in range(z.tiles):
                G = row(v.gradient, z.W + (gate * z.tiles + tile) * z.D * lanes)
                net = load(values, (net_row * z.tiles + tile) * lanes)
                if symbols:
                    store(G, v.symbol * lanes, load(G, v.symbol * lanes) + net)
                for s in range(first, z.D):
                    store(G, s * lanes, load(G, s * lanes) + net * source[s])

    return sweep


def _param(plan: Any, k: int, name: str) -> Any:
    rows, sizes, number, lanes = plan.rows[k], plan.sizes[k], plan.number, plan.lanes[k]
    group, with_vectors = rows.group, access(lanes)
    load, load_vectors, store_vectors = with_vectors.load, with_vectors.load_vectors, with_vectors.store_vectors
    param, of_row, learn = group.cell.params.index(name), rows.at[f"of {name}"], plan.functions[k]["learn"]
    parts, gates, trace = len(group.loop), len(group.traced), plan.functions[k].get(f"trace_{name}")
    every, partials = picked(range(parts)), picked(rows.trace_rows(name))
    used, past_rows = (
        picked([group.loop.index(q) for q in rows.past]),
        picked([rows.at[f"past {q}"] for q in rows.past]),
    )

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
                net = load(values, of_row * S + tile * lanes)
                store_vectors((G,), 0, learn(*((load(G, 0), net, number(1)) + past + old)))
            if parts > 0:
                known = load_vectors(partials(values, 0, S), tile * lanes)
                old = load_vectors(every(E, 0, lanes), 0)
                store_vectors(every(E, 0, lanes), 0, trace(*(old + (number(1),) + known)))

    return sweep
