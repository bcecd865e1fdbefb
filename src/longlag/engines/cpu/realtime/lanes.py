"""Vectors of as many lanes as a group of units needs, at most a register."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, Access, load_numbers, store_numbers
from longlag.engines.cpu.codegen.pointers import access as access_to
from longlag.engines.cpu.simd.vector import Vector


@functools.cache
def access(lanes: int) -> Access:
    """Functions that read and write vectors of this many lanes."""
    return access_to(lambda numbers: Vector(numbers.dtype, lanes))


def over_units(function: Callable[..., Any], lanes: int, vectors: bool) -> Any:
    """``units(S, read, written)``: the function at units 0:S of the rows read; results to those written.

    Args:
        vectors: whether the function can take vectors.
    """
    with_vectors = access(lanes)
    load_vectors, store_vectors = with_vectors.load_vectors, with_vectors.store_vectors

    @njit(**INLINE)
    def units(S, read, written):
        if vectors:
            for unit in range(0, S, lanes):
                store_vectors(written, unit, function(*load_vectors(read, unit)))
        else:
            for unit in range(S):
                store_numbers(written, unit, function(*load_numbers(read, unit)))

    return units
