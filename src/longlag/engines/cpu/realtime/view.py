"""What the pieces of a real-time kernel see: pointers of the present step and sample, and a group's sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types

from longlag.engines.cpu.codegen.pointers import INLINE, pointer, row
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.simd.functions import intrinsic, splat


class View(NamedTuple):
    """Pointers of a step of a sample."""

    weights: Any  # packed; `gradient` is parallel
    gradient: Any
    effective: Any  # weights, with params as the equations read them
    sample: Any  # this sample's memory: the fed-back vector y, the answer, its error, then the groups
    x: Any
    symbol: Any  # the input, if it is a symbol
    met: Any  # symbols met since the last reset: their number, the symbols, and for each whether it was met


def view_for(number: Any, symbols: bool) -> Any:
    """``view(table, t, b)``."""

    @njit(**INLINE)
    def view(table, t, b):
        weights, gradient = pointer(table[at.weights], number), pointer(table[at.gradient], number)
        sample = row(pointer(table[at.samples], number), b * table[at.sample_size])
        x = row(pointer(table[at.x], number), 0 if symbols else (t * table[at.B] + b) * table[at.I])
        symbol = pointer(table[at.x], np.int64)[t * table[at.B] + b] if symbols else 0
        met = row(pointer(table[at.met], np.int64), b * table[at.symbol_words])
        return View(weights, gradient, pointer(table[at.effective], number), sample, x, symbol, met)

    return view


def sizes_for(group: int, constants: at.Sizes | None) -> Any:
    """``sizes(table)``: the sizes of a group, constants of the kernel or words of its table."""
    first = at.END + group * at.WORDS
    if constants is None:

        @njit(**INLINE)
        def sizes(table):
            return at.Sizes(
                table[first], table[first + 1], table[first + 2], table[first + 3], table[first + 4],
                table[first + 5], table[first + 6], table[first + 7], table[first + 8], table[first + 9],
                table[first + 10], table[first + 11], table[first + 12], table[first + 13],
            )  # fmt: skip
    else:
        units, tiles, D, inputs, ones, W, P, source, rows, E, columns, lanes, params, traced = constants

        @njit(**INLINE)
        def sizes(table):
            return at.Sizes(units, tiles, D, inputs, ones, W, P, source, rows, E, columns, lanes, params, traced)

    return sizes


def in_turn(pieces: Sequence[Any], nothing: Any) -> Callable[..., Any]:
    """One function that calls the pieces one after another with the same three arguments."""
    if not pieces:
        return nothing
    first, rest = pieces[0], in_turn(pieces[1:], nothing)

    @njit(**INLINE)
    def both(a, b, c):
        first(a, b, c)
        rest(a, b, c)

    return both


@intrinsic
def first_lanes(typing, x, count):
    """A vector's first lanes, 0 in the others: lanes beyond the units of a group may hold anything, even NaN."""

    def codegen(context, builder, signature, arguments):
        value, count = arguments
        kind = ir.VectorType(ir.IntType(64), value.type.count)
        numbers = ir.Constant(kind, [ir.IntType(64)(lane) for lane in range(value.type.count)])
        wanted = builder.icmp_signed("<", numbers, splat(builder, count, kind))
        return builder.select(wanted, value, ir.Constant(value.type, None))

    return x(x, types.intp), codegen


@njit(**INLINE)
def nothing(a, b, c):
    """No piece."""
