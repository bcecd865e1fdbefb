"""Pointers for kernels, and tuples of them.

A kernel reads and writes memory through C pointers: indexing is one instruction, without length or bounds, so that
loops over them become vector code. Tuples hold one pointer per gate, state or parameter of a unit; their lengths are
known when a kernel is compiled, and `each` writes out the loop over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types

from longlag.engines.cpu.cache.compile import PLAIN
from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.simd.functions import intrinsic, splat
from longlag.engines.cpu.simd.vector import Vector

INLINE: dict[str, Any] = {**PLAIN, "forceinline": True}


@intrinsic
def pointer(typing, address, number):
    """The numbers of this type that begin at an address."""
    kind = types.CPointer(number.dtype)

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, number), codegen


@intrinsic
def row(typing, numbers, start):
    """The numbers from ``start`` on: &numbers[start]."""
    return numbers(numbers, types.intp), lambda context, builder, signature, arguments: builder.gep(
        arguments[0], [arguments[1]]
    )


@intrinsic
def address(typing, numbers, start):
    """The address of ``numbers[start]``."""

    def codegen(context, builder, signature, arguments):
        return builder.ptrtoint(builder.gep(arguments[0], [arguments[1]]), ir.IntType(64))

    return types.intp(numbers, types.intp), codegen


@intrinsic
def load(typing, numbers, start):
    """A vector of the numbers from ``start`` on."""
    number = numbers.dtype
    vector = Vector(number, VECTOR_BYTES * 8 // number.bitwidth)

    def codegen(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        place = builder.bitcast(place, context.get_value_type(vector).as_pointer())
        return builder.load(place, align=number.bitwidth // 8)

    return vector(numbers, types.intp), codegen


@intrinsic
def store(typing, numbers, start, value):
    """Write a vector, or a number as often as a vector has lanes, from ``start`` on."""
    number = numbers.dtype
    vector = Vector(number, VECTOR_BYTES * 8 // number.bitwidth)

    def codegen(context, builder, signature, arguments):
        kind = context.get_value_type(vector)
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), kind.as_pointer())
        builder.store(splat(builder, arguments[2], kind), place, align=number.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(numbers, types.intp, value), codegen


def each(count: int, make: Callable[[int], Callable[..., Any]]) -> Any:
    """Compiled ``f(*given) = (make(0)(*given), …, make(count − 1)(*given))``: a loop over a tuple, written out."""
    return _tuple_of([njit(**INLINE)(make(k)) for k in range(count)])


def _tuple_of(functions: list[Any]) -> Any:
    if len(functions) == 0:

        def values(*given):
            return ()

    elif len(functions) == 1:
        (f,) = functions

        def values(*given):
            return (f(*given),)

    elif len(functions) == 2:
        f, g = functions

        def values(*given):
            return f(*given), g(*given)

    elif len(functions) == 3:
        f, g, h = functions

        def values(*given):
            return f(*given), g(*given), h(*given)

    else:
        half = len(functions) // 2
        low, high = _tuple_of(functions[:half]), _tuple_of(functions[half:])

        def values(*given):
            return low(*given) + high(*given)

    return njit(**INLINE)(values)
