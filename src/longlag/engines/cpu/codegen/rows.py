"""The pointwise equations of a unit, applied to a whole row of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import CALLED, load_numbers, load_vectors, store_numbers, store_vectors
from longlag.engines.cpu.simd.product import LANES


def over_units(function: Callable[..., Any], number: Any, vectors: bool) -> Any:
    """``units(table, H, read, written)``: the function at units 0:H of the rows read; results to the rows written.

    Args:
        function: compiled; takes a number or a vector for every row read, and returns one for every row written.
        vectors: whether the function can take vectors.
    """
    lanes = LANES[number]

    @njit(**CALLED)
    def units(table, H, read, written):
        whole = 0
        if vectors:
            whole = H // lanes * lanes
            for unit in range(0, whole, lanes):
                store_vectors(written, unit, function(*load_vectors(read, unit)))
        for unit in range(whole, H):
            store_numbers(written, unit, function(*load_numbers(read, unit)))

    return units
