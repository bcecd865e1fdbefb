"""Params that the equations read through a bound: û is trained, u = bound(û) is read.

Gradients are summed for u while the weights stay as they are, and become those of û before an update.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, picked, pointer, row
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.lanes import access
from longlag.engines.cpu.realtime.view import in_turn, nothing


def refresh_for(plan: Any) -> Any:
    """``refresh(table, _, _)``: compute what the equations read, after the weights have changed."""
    return _of_params(plan, _refresh)


def pull_back_for(plan: Any) -> Any:
    """``pull_back(table, _, _)``: from gradients of what the equations read to those of the trained numbers."""
    return _of_params(plan, _pull_back)


def _of_params(plan: Any, maker: Any) -> Any:
    if not plan.network.bounded:
        return nothing
    params = [(k, p) for k, group in enumerate(plan.network.groups) for p in range(len(group.cell.params))]
    return in_turn([maker(plan, k, p) for k, p in params], nothing)


def _refresh(plan: Any, k: int, p: int) -> Any:
    sizes, number, lanes = plan.sizes[k], plan.number, plan.lanes[k]
    bound = plan.functions[k].get(f"bound_{plan.network.groups[k].cell.params[p]}")
    first, bounded = picked([0]), bound is not None
    load_vectors, store_vectors = access(lanes).load_vectors, access(lanes).store_vectors

    @njit(**INLINE)
    def refresh(table, a, b):
        z = sizes(table)
        weights, effective = pointer(table[at.weights], number), pointer(table[at.effective], number)
        for tile in range(z.tiles):
            place = z.P + (p * z.tiles + tile) * lanes
            values = load_vectors(first(weights, 0, 0), place)
            if bounded:
                store_vectors(first(effective, 0, 0), place, bound(*values))
            else:
                store_vectors(first(effective, 0, 0), place, values)

    return refresh


def _pull_back(plan: Any, k: int, p: int) -> Any:
    sizes, number, lanes = plan.sizes[k], plan.number, plan.lanes[k]
    slope = plan.functions[k].get(f"slope_{plan.network.groups[k].cell.params[p]}")
    if slope is None:
        return nothing
    load, store_vectors = access(lanes).load, access(lanes).store_vectors

    @njit(**INLINE)
    def pull_back(table, a, b):
        z = sizes(table)
        weights, gradient = pointer(table[at.weights], number), pointer(table[at.gradient], number)
        for tile in range(z.tiles):
            place = row(gradient, z.P + (p * z.tiles + tile) * lanes)
            (d,) = slope(load(weights, z.P + (p * z.tiles + tile) * lanes))
            store_vectors((place,), 0, (load(place, 0) * d,))

    return pull_back
