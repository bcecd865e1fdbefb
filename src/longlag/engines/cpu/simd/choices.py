"""Comparisons and choices for Numba kernels: one or two instructions on numbers or SIMD vectors, NaN as in torch.

Arguments may be a mixture of vectors and numbers; a number is repeated over the lanes.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from longlag.engines.cpu.simd.functions import intrinsic, llvm_intrinsic, splat


def _common(kinds: tuple[Any, ...]) -> Any:
    """The type of the result: that of a vector, if there is one."""
    return next((kind for kind in kinds if not isinstance(kind, types.Number)), kinds[0])


def _alike(context: Any, builder: Any, kinds: tuple[Any, ...], values: Any) -> tuple[list[Any], Any]:
    """The values in one LLVM type, and the number 0 in that type."""
    result = _common(kinds)
    like, element = context.get_value_type(result), getattr(result, "element", result)
    numbers = (
        context.cast(builder, v, k, element) if isinstance(k, types.Number) else v for v, k in zip(values, kinds)
    )
    return [splat(builder, number, like) for number in numbers], ir.Constant(like, None)


def _constant(builder: Any, like: Any, value: float) -> Any:
    """A number in the type of ``like``."""
    element = like.element if isinstance(like, ir.VectorType) else like
    return splat(builder, element(value), like)


def _emitted(emit: Callable[..., Any]) -> Callable[..., Any]:
    """The code of an intrinsic, ``emit(builder, zero, *values)``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, zero = _alike(context, builder, signature.args, arguments)
        return emit(builder, zero, *values)

    return codegen


def _or_nan(builder: Any, value: Any, *sources: Any) -> Any:
    """The value, or the first source that is NaN."""
    for source in reversed(sources):
        value = builder.select(builder.fcmp_unordered("uno", source, source), source, value)
    return value


@intrinsic
def abs(typing, x):
    """|x|"""
    return x(x), _emitted(lambda builder, zero, x: llvm_intrinsic(builder, "fabs", x))


@intrinsic
def sqrt(typing, x):
    """√x, one instruction."""
    return x(x), _emitted(lambda builder, zero, x: llvm_intrinsic(builder, "sqrt", x))


@intrinsic
def sign(typing, x):
    """The derivative of \\|x|: −1, 0 or 1; NaN stays."""

    def emit(builder: Any, zero: Any, x: Any) -> Any:
        positive = builder.select(builder.fcmp_ordered(">", x, zero), _constant(builder, x.type, 1.0), zero)
        value = builder.select(builder.fcmp_ordered("<", x, zero), _constant(builder, x.type, -1.0), positive)
        return _or_nan(builder, value, x)

    return x(x), _emitted(emit)


@intrinsic
def maximum(typing, x, y):
    """The larger value; NaN if one is NaN."""

    def emit(builder: Any, zero: Any, x: Any, y: Any) -> Any:
        return _or_nan(builder, builder.select(builder.fcmp_ordered(">", x, y), x, y), x, y)

    return _common((x, y))(x, y), _emitted(emit)


@intrinsic
def minimum(typing, x, y):
    """The smaller value; NaN if one is NaN."""

    def emit(builder: Any, zero: Any, x: Any, y: Any) -> Any:
        return _or_nan(builder, builder.select(builder.fcmp_ordered("<", x, y), x, y), x, y)

    return _common((x, y))(x, y), _emitted(emit)


@intrinsic
def above(typing, x, y):
    """The derivative of the maximum: 1 where x > y, ½ where they are equal, else 0."""

    def emit(builder: Any, zero: Any, x: Any, y: Any) -> Any:
        equal = builder.select(builder.fcmp_ordered("==", x, y), _constant(builder, x.type, 0.5), zero)
        return builder.select(builder.fcmp_ordered(">", x, y), _constant(builder, x.type, 1.0), equal)

    return _common((x, y))(x, y), _emitted(emit)


@intrinsic
def where_greater(typing, a, b, x, y):
    """x where a > b, else y."""

    def emit(builder: Any, zero: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), x, y)

    return _common((a, b, x, y))(a, b, x, y), _emitted(emit)


@intrinsic
def where_at_least(typing, a, b, x, y):
    """x where a ≥ b, else y."""

    def emit(builder: Any, zero: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">=", a, b), x, y)

    return _common((a, b, x, y))(a, b, x, y), _emitted(emit)
