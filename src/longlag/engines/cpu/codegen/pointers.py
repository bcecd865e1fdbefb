"""Pointers for kernels, and tuples of them.

A kernel reads and writes memory through C pointers: indexing is one instruction, without length or bounds, so that
loops over them become vector code. A tuple holds one pointer per gate, state or parameter of a unit; its length is
known when a kernel is compiled, and the functions below write out the loop over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from longlag.engines._private import NO_PYTHON
from longlag.engines.cpu.cache.compile import PLAIN
from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.simd.functions import intrinsic, splat
from longlag.engines.cpu.simd.vector import Vector

# options of helper functions, which are never called from Python: called by a kernel, or inlined into it
CALLED: dict[str, Any] = {**PLAIN, **NO_PYTHON}
INLINE: dict[str, Any] = {**CALLED, "forceinline": True}


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


# ------------------------------------------------------------------------------------------------------- tuples
def pointers(count: int, number: Any) -> Any:
    """``f(table, word, base)``: pointers to the addresses base + table[word], base + table[word + 1], …."""
    kind = types.CPointer(types.float32 if number is np.float32 else types.float64)

    @intrinsic
    def of_words(typing, table, word, base):
        def codegen(context, builder, signature, arguments):
            table, word, base = arguments
            places = [builder.gep(table, [builder.add(word, word.type(k))]) for k in range(count)]
            values = [builder.add(base, builder.load(place)) for place in places]
            values = [builder.inttoptr(value, context.get_value_type(kind)) for value in values]
            return context.make_tuple(builder, signature.return_type, values)

        return _tuple(kind, count)(table, types.intp, types.intp), codegen

    return of_words


def picked(indices: Sequence[int]) -> Any:
    """``f(numbers, start, stride)``: pointers to numbers[start + k·stride] for every k in ``indices``."""

    @intrinsic
    def rows(typing, numbers, start, stride):
        def codegen(context, builder, signature, arguments):
            numbers, start, stride = arguments
            places = [builder.add(start, builder.mul(stride, stride.type(k))) for k in indices]
            values = [builder.gep(numbers, [place]) for place in places]
            return context.make_tuple(builder, signature.return_type, values)

        return _tuple(numbers, len(indices))(numbers, types.intp, types.intp), codegen

    return rows


def rows_of_runs(runs: Sequence[tuple[int, int]]) -> Any:
    """``f(numbers, steps, step, H)``: one row of H numbers for every gate, from arrays (steps, count, H), one per run.

    A run is (first gate, count); the arrays follow each other.
    """

    @intrinsic
    def rows(typing, numbers, steps, step, H):
        def codegen(context, builder, signature, arguments):
            numbers, steps, step, H = arguments
            values = []
            for first, count in runs:
                before = builder.add(builder.mul(steps, H.type(first)), builder.mul(step, H.type(count)))
                places = [builder.mul(builder.add(before, H.type(k)), H) for k in range(count)]
                values += [builder.gep(numbers, [place]) for place in places]
            return context.make_tuple(builder, signature.return_type, values)

        count = sum(count for _, count in runs)
        return _tuple(numbers, count)(numbers, types.intp, types.intp, types.intp), codegen

    return rows


def chosen(places: Sequence[int]) -> Any:
    """``f(rows)``: rows[k] for every k in ``places``."""

    @intrinsic
    def some(typing, rows):
        def codegen(context, builder, signature, arguments):
            values = [builder.extract_value(arguments[0], k) for k in places]
            return context.make_tuple(builder, signature.return_type, values)

        return _tuple(rows.dtype, len(places))(rows), codegen

    return some


@intrinsic
def moved(typing, rows, start):
    """&rows[k][start] for every k."""
    return rows(rows, types.intp), _each(lambda context, builder, row, start: builder.gep(row, [start]))


@intrinsic
def moved_by(typing, rows, count, strides):
    """&rows[k][count · strides[k]] for every k."""

    def move(context, builder, row, count, stride):
        return builder.gep(row, [builder.mul(count, stride)])

    return rows(rows, types.intp, strides), _each(move)


@intrinsic
def given_or(typing, rows, otherwise):
    """The rows, with another pointer in place of null pointers."""

    def choose(context, builder, row, otherwise):
        return builder.select(_is_null(builder, row), otherwise, row)

    return rows(rows, otherwise), _each(choose)


@intrinsic
def strides_of(typing, rows, stride):
    """For every row the stride, or 0 for a null pointer."""

    def choose(context, builder, row, stride):
        return builder.select(_is_null(builder, row), stride.type(0), stride)

    return _tuple(types.intp, len(rows))(rows, types.intp), _each(choose)


@intrinsic
def load_numbers(typing, rows, start):
    """rows[k][start] for every k."""

    def read(context, builder, row, start):
        return builder.load(builder.gep(row, [start]))

    return _tuple(rows.dtype.dtype, len(rows))(rows, types.intp), _each(read)


@intrinsic
def store_numbers(typing, rows, start, values):
    """rows[k][start] = values[k] for every k."""

    def write(context, builder, row, start, value):
        builder.store(value, builder.gep(row, [start]))

    return types.void(rows, types.intp, values), _each(write)


class Access(NamedTuple):
    """Functions that read and write vectors."""

    load: Any
    store: Any
    load_vectors: Any
    store_vectors: Any


def access(vector_of: Callable[[Any], Vector]) -> Access:
    """Access to vectors of the type that ``vector_of`` returns for a pointer."""

    @intrinsic
    def load(typing, numbers, start):
        """A vector of the numbers from ``start`` on."""
        vector = vector_of(numbers)
        return vector(numbers, types.intp), lambda context, builder, signature, arguments: _load(
            context, builder, vector, *arguments
        )

    @intrinsic
    def store(typing, numbers, start, value):
        """Write a vector, or a number repeated in all lanes, from ``start`` on."""

        def codegen(context, builder, signature, arguments):
            _store(context, builder, vector_of(numbers), *arguments)
            return context.get_dummy_value()

        return types.void(numbers, types.intp, value), codegen

    @intrinsic
    def load_vectors(typing, rows, start):
        """`load` for every row."""
        vector = vector_of(rows.dtype)

        def read(context, builder, row, start):
            return _load(context, builder, vector, row, start)

        return _tuple(vector, len(rows))(rows, types.intp), _each(read)

    @intrinsic
    def store_vectors(typing, rows, start, values):
        """`store` for every row and its value."""
        vector = vector_of(rows.dtype)

        def write(context, builder, row, start, value):
            _store(context, builder, vector, row, start, value)

        return types.void(rows, types.intp, values), _each(write)

    return Access(load, store, load_vectors, store_vectors)


def _each(emit: Callable[..., Any]) -> Callable[..., Any]:
    """The code of an intrinsic: ``emit`` for every entry of its first argument and of other tuples."""

    def codegen(context, builder, signature, arguments):
        def entry(k: int) -> Any:
            pairs = zip(arguments, signature.args)
            parts = [builder.extract_value(a, k) if isinstance(t, types.BaseTuple) else a for a, t in pairs]
            return emit(context, builder, *parts)

        values = [entry(k) for k in range(len(signature.args[0]))]
        if signature.return_type == types.void:
            return context.get_dummy_value()
        return context.make_tuple(builder, signature.return_type, values)

    return codegen


def _tuple(kind: Any, count: int) -> Any:
    return types.UniTuple(kind, count) if count else types.Tuple(())


def _vector(numbers: Any) -> Vector:
    return Vector(numbers.dtype, VECTOR_BYTES * 8 // numbers.dtype.bitwidth)


def _load(context: Any, builder: Any, vector: Vector, row: Any, start: Any) -> Any:
    place = builder.bitcast(builder.gep(row, [start]), context.get_value_type(vector).as_pointer())
    return builder.load(place, align=vector.element.bitwidth // 8)


def _store(context: Any, builder: Any, vector: Vector, row: Any, start: Any, value: Any) -> None:
    kind = context.get_value_type(vector)
    place = builder.bitcast(builder.gep(row, [start]), kind.as_pointer())
    builder.store(splat(builder, value, kind), place, align=vector.element.bitwidth // 8)


def _is_null(builder: Any, row: Any) -> Any:
    return builder.icmp_unsigned("==", row, ir.Constant(row.type, None))


load, store, load_vectors, store_vectors = access(_vector)
