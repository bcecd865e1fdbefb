"""From a Python function to the machine code of a kernel, by Numba; and what kernels do with addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.simd.functions import FLAGS, intrinsic

KERNEL = types.void(types.CPointer(types.intp), types.intp, types.intp, types.intp)
OPTIONS: dict[str, Any] = {**FLAGS, "nogil": True}
PLAIN: dict[str, Any] = {**FLAGS, "_nrt": False}  # of what kernels call: no memory is counted or allocated
_ALONE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # nothing of Python


def machine_code(function: Callable[..., None], signature: Any = KERNEL) -> bytes:
    """The object file of a function, which is named `machine.SYMBOL` there."""
    compiled: Any = njit(signature, **PLAIN, **_ALONE)(function)
    assembly = compiled.inspect_llvm(signature.args)
    name = compiled.overloads[signature.args].fndesc.llvm_func_name
    outside = set(re.findall(r'^declare [^@]*@"?((?!llvm\.)[^"(]+)', assembly, re.MULTILINE))
    if outside:  # not a user's mistake: a kernel was written that allocates or raises
        raise RuntimeError(f"engine 'cpu': {function.__name__} calls {', '.join(sorted(outside))}")
    pattern = re.compile(f'@"?{re.escape(name)}"?(?=\\()')
    return machine.object_file(pattern.sub(f"@{machine.SYMBOL}", assembly))


@intrinsic
def flat(typing, address, number):
    """The numbers from this address on, as an array of one dimension; its length is not known.

    With length 0 what Python does to negative indices (add the length) costs nothing, and loops become vectors.
    """
    kind = types.Array(number.dtype, 1, "C")

    def codegen(context, builder, signature, arguments):
        return _array(context, builder, kind, lambda pointer: builder.inttoptr(arguments[0], pointer), _index(0))

    return kind(address, number), codegen


@intrinsic
def row(typing, numbers, start, size):
    """``numbers[start : start + size]`` without Python's rules for slices."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(numbers)(context, builder, arguments[0]).data
        return _array(context, builder, numbers, lambda _: builder.gep(data, [arguments[1]]), arguments[2])

    return numbers(numbers, types.intp, types.intp), codegen


@intrinsic
def address(typing, numbers, start):
    """Where ``numbers[start]`` stands."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(numbers)(context, builder, arguments[0]).data
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
        words = [builder.extract_value(given[1], k) for k in range(len(arguments))]
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.IntType(32), [pointer.as_pointer(), pointer] + [ir.IntType(64)] * len(words))
        nothing = cgutils.alloca_once(builder, pointer)
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), [nothing, pointer(None), *words])
        return context.get_dummy_value()

    return types.void(types.intp, arguments), codegen


def _index(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)


def _array(context, builder, kind, place, size):
    array = context.make_array(kind)(context, builder)
    bytes_each = _index(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    pointer = place(array.data.type)
    context.populate_array(array, data=pointer, shape=[size], strides=[bytes_each], itemsize=bytes_each, meminfo=None)
    return array._getvalue()
