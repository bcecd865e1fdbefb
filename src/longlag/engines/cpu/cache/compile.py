"""Compiles a Python function to the machine code of a kernel with Numba; helpers for addresses in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from longlag.engines import _private
from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.simd.functions import FLAGS, intrinsic

KERNEL = types.void(types.CPointer(types.intp), types.intp, types.intp, types.intp)
OPTIONS: dict[str, Any] = {**FLAGS, "nogil": True}
PLAIN: dict[str, Any] = {**FLAGS, **_private.NO_ALLOCATION}  # of what kernels call


def machine_code(function: Callable[..., None], signature: Any = KERNEL) -> bytes:
    """The object file of a function, which is named `machine.SYMBOL` there."""
    return _private.object_file_of(function, signature, machine.SYMBOL, **FLAGS)


@intrinsic
def flat(typing, address, number):
    """The numbers from this address on, as an array of one dimension; its length is not known.

    With length 0, Python's rule for negative indices (add the length) costs nothing, and loops are vectorised.
    """
    kind = types.Array(number.dtype, 1, "C")

    def codegen(context, builder, signature, arguments):
        nothing = ir.Constant(ir.IntType(64), 0)
        return _private.array_at(context, builder, kind, lambda p: builder.inttoptr(arguments[0], p), nothing)

    return kind(address, number), codegen


@intrinsic
def row(typing, numbers, start, size):
    """``numbers[start : start + size]`` without Python's rules for slices."""

    def codegen(context, builder, signature, arguments):
        data = _private.array_data(context, builder, numbers, arguments[0])
        place = lambda _: builder.gep(data, [arguments[1]])  # noqa: E731
        return _private.array_at(context, builder, numbers, place, arguments[2])

    return numbers(numbers, types.intp, types.intp), codegen


@intrinsic
def address(typing, numbers, start):
    """The address of ``numbers[start]``."""

    def codegen(context, builder, signature, arguments):
        data = _private.array_data(context, builder, numbers, arguments[0])
        return builder.ptrtoint(builder.gep(data, [arguments[1]]), ir.IntType(64))

    return types.intp(numbers, types.intp), codegen


@intrinsic
def real(typing, bits):
    """The float64 with these bits."""
    return types.float64(bits), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], ir.DoubleType()
    )


@intrinsic
def call(typing, function, arguments):
    """Call the kernel at an address with a tuple of integers."""

    def codegen(context, builder, signature, given):
        _private.call_kernel(builder, given[0], [builder.extract_value(given[1], k) for k in range(len(arguments))])
        return context.get_dummy_value()

    return types.void(types.intp, arguments), codegen
