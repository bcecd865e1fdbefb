"""The pointwise equations of a unit, applied to a whole row of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, each, load, store
from longlag.engines.cpu.simd.product import LANES


@njit(**INLINE)
def put(numbers, unit, value):
    """numbers[unit] = value."""
    numbers[unit] = value


def over_units(function: Callable[..., Any], inputs: int, results: int, number: Any, vectors: bool) -> Any:
    """``units(table, H, inputs, results)``: the function at units 0:H of its input rows, written to the result rows.

    Args:
        function: compiled; takes numbers or vectors, one per input row, and returns one per result row.
        inputs, results: how many rows there are.
        vectors: whether the function can take vectors.
    """
    lanes = LANES[number]
    load_vectors = each(inputs, lambda k: lambda rows, unit: load(rows[k], unit))
    load_numbers = each(inputs, lambda k: lambda rows, unit: rows[k][unit])
    store_vectors = each(results, lambda k: lambda rows, unit, values: store(rows[k], unit, values[k]))
    store_numbers = each(results, lambda k: lambda rows, unit, values: put(rows[k], unit, values[k]))

    @njit(**INLINE)
    def units(table, H, given, computed):
        whole = H // lanes * lanes if vectors else 0
        if vectors:
            for unit in range(0, whole, lanes):
                store_vectors(computed, unit, function(*load_vectors(given, unit)))
        for unit in range(whole, H):
            store_numbers(computed, unit, function(*load_numbers(given, unit)))

    return units
