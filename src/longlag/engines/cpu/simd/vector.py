"""SIMD vectors as values of Numba kernels, so that a vector equation of the paper is one line and one instruction.

A `Vector(element, lanes)` supports + - * / with vectors and numbers, `load`, `store`, `total`, `join` and constant
rearrangements of lanes (`rearranged`, a code generator). LLVM unrolls a loop over eight units into scalar code, since
Numba leaves its superword vectoriser off; a vector of eight lanes stays one.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, models, register_model, type_callable

from longlag.engines import _private
from longlag.engines.cpu.simd.functions import intrinsic, splat


class Vector(types.Type):
    """Numba type of `lanes` numbers of type `element`, kept in registers."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"Vector({element}, {lanes})")

    @property
    def key(self) -> tuple[Any, int]:
        return self.element, self.lanes


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(dmm.lookup(fe_type.element).get_value_type(), fe_type.lanes))


def as_vector(context: Any, builder: Any, value: Any, kind: Any, vector: Vector) -> Any:
    """A vector as it is, a number converted and repeated."""
    if isinstance(kind, Vector):
        return value
    number = context.cast(builder, value, kind, vector.element)
    return splat(builder, number, context.get_value_type(vector))


def define(symbol: Any, instruction: str) -> None:
    """Make an operator of Python work on vectors, one instruction each; numbers are converted and repeated."""

    @type_callable(symbol)
    def typing(context):
        def result(a, b):
            vectors = {x for x in (a, b) if isinstance(x, Vector)}
            if len(vectors) == 1 and all(isinstance(x, Vector | types.Number) for x in (a, b)):
                return vectors.pop()

        return result

    @lower_builtin(symbol, Vector, Vector)
    @lower_builtin(symbol, Vector, types.Number)
    @lower_builtin(symbol, types.Number, Vector)
    def lowering(context, builder, signature, arguments):
        kind = signature.return_type
        a, b = (as_vector(context, builder, value, k, kind) for value, k in zip(arguments, signature.args))
        return getattr(builder, instruction)(a, b)


for symbol, instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
                            (operator.truediv, "fdiv")):  # fmt: skip
    define(symbol, instruction)


@type_callable(operator.neg)
def _type_of_negative(context: Any) -> Any:
    return lambda x: x if isinstance(x, Vector) else None


@lower_builtin(operator.neg, Vector)
def _negative(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.fneg(arguments[0])


def address(context: Any, builder: Any, signature: Any, arguments: Any, vector: Vector, scale: int) -> Any:
    """Pointer to the vector that begins `scale` · index numbers into a contiguous array."""
    _, array, index = arguments
    data = _private.array_data(context, builder, signature.args[1], array)
    start = builder.mul(index, index.type(scale))
    return builder.bitcast(builder.gep(data, [start]), context.get_value_type(vector).as_pointer())


def memory(whole_vectors: bool) -> tuple[Any, Any]:
    """The pair (load, store) on contiguous arrays, indexed by whole vectors or by numbers."""

    @intrinsic
    def load(typing, like, array, index):
        """The vector at an index of an array; `like` is any vector of the wanted type."""

        def codegen(context, builder, signature, arguments):
            pointer = address(context, builder, signature, arguments, like, like.lanes if whole_vectors else 1)
            return builder.load(pointer, align=like.element.bitwidth // 8)

        return like(like, array, types.intp), codegen

    @intrinsic
    def store(typing, x, array, index):
        """Write a vector at an index of an array."""

        def codegen(context, builder, signature, arguments):
            pointer = address(context, builder, signature, arguments, x, x.lanes if whole_vectors else 1)
            builder.store(arguments[0], pointer, align=x.element.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(x, array, types.intp), codegen

    return load, store


load, store = memory(whole_vectors=True)
load_at, store_at = memory(whole_vectors=False)


@intrinsic
def total(typing, x):
    """The sum over the lanes."""

    def codegen(context, builder, signature, arguments):
        (value,) = arguments
        number = value.type.element
        suffix = f"v{value.type.count}{'f32' if isinstance(number, ir.FloatType) else 'f64'}"
        kind = ir.FunctionType(number, [number, value.type])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.{suffix}")
        return builder.call(function, [number(-0.0), value], fastmath=("reassoc",))

    return x.element(x), codegen


@intrinsic
def join(typing, a, b):
    """The lanes of a, then those of b."""

    def codegen(context, builder, signature, arguments):
        index = ir.IntType(32)
        mask = ir.Constant(ir.VectorType(index, 2 * a.lanes), [index(lane) for lane in range(2 * a.lanes)])
        return builder.shuffle_vector(*arguments, mask)

    return Vector(a.element, 2 * a.lanes)(a, b), codegen


def rearranged(builder: Any, value: Any, table: list[list[int]]) -> Any:
    """Lane l of the result is the sum of the lanes table[l] of `value`, always in the order given."""
    index = ir.IntType(32)
    nothing = ir.Constant(value.type, None)
    result = None
    for turn in range(max(map(len, table), default=0)):
        lanes = [lane[turn] if turn < len(lane) else value.type.count for lane in table]  # count: lane 0 of nothing
        mask = ir.Constant(ir.VectorType(index, len(table)), [index(lane) for lane in lanes])
        part = builder.shuffle_vector(value, nothing, mask)
        result = part if result is None else builder.fadd(result, part)
    return ir.Constant(ir.VectorType(value.type.element, len(table)), None) if result is None else result
