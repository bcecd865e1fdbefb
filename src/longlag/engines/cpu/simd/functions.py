"""Activation functions for Numba kernels: branch-free, vectorised by LLVM, a few ulp off in float32 and float64.

Every function takes a float32 or a float64, inside any jitted kernel or from Python, or a SIMD vector
(`vector`). Two things let LLVM turn a loop over them into SIMD instructions: ``**FLAGS`` on the calling
kernel, and contiguous one-dimensional slices in the loop. NaN gives NaN and infinities saturate as in torch;
of the fast-math flags only ``contract`` is used, which assumes nothing about NaN.

Method: eˣ = 2ⁿ eʳ, n = round(x / ln 2), |r| ≤ ln(2)/2, expm1(r) = r + r² q(r) with q a minimax polynomial.

>>> round(tanh(0.5), 15)
0.46211715726001
>>> bool(sigmoid(np.float32(-100)) == np.float32(np.exp(-100)))  # 1/(1 + e¹⁰⁰) would be 0
True
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils

intrinsic: Any = extending.intrinsic  # untyped: it drops the first parameter, which type checkers do not see
FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
INLINE: Any = {**FLAGS, "forceinline": True}


class Format(NamedTuple):
    """Constants of a floating-point format; q holds the polynomial, lowest order first."""

    number: type  # NumPy scalar type
    underflow: float  # below, eˣ rounds to 0
    overflow: float  # above, eˣ rounds to infinity
    flat: float  # above, tanh(x) rounds to 1
    ln2_high: float  # few bits, so that n · ln2_high is exact
    ln2_low: float  # ln 2 - ln2_high
    magic: float  # 1.5 · 2^(mantissa bits): adding it rounds to an integer, left in the lowest bits
    q: tuple[float, ...]


FORMATS = {
    types.float32: Format(
        np.float32, -104.0, 89.0, 9.02, 0.693359375, -2.1219444e-4, 12582912.0,
        (0.5, 0.16666667, 0.041666366, 0.008333274, 0.0013940284, 0.00019913603),
    ),
    types.float64: Format(
        np.float64, -746.0, 710.0, 19.07, 0.6931471803691238, 1.9082149292705877e-10, 6755399441055744.0,
        (0.5000000000000004, 0.16666666666666685, 0.04166666666658206, 0.008333333333315634,
         0.0013888888930171342, 0.00019841269900952767, 2.480150669088344e-05, 2.75572296698978e-06,
         2.76255455539393e-07, 2.5113968123325587e-08),
    ),
}  # fmt: skip


def element(x: Any) -> Any:
    """Number type of a Numba float or vector type."""
    return x if isinstance(x, types.Float) else getattr(x, "element", None)


def splat(builder: Any, number: Any, like: Any) -> Any:
    """A number as a value of LLVM type `like`: itself, or repeated over the lanes of a vector."""
    if number.type == like:
        return number
    index = ir.IntType(32)
    first = builder.insert_element(ir.Constant(like, ir.Undefined), number, index(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(index, like.count), [0] * like.count))


def llvm_intrinsic(builder: Any, name: str, *arguments: Any) -> Any:
    """Call llvm.<name> on numbers or vectors."""
    kind = arguments[0].type
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    suffix = f"{lanes}{'f32' if isinstance(number, ir.FloatType) else 'f64'}"
    signature = ir.FunctionType(kind, [a.type for a in arguments])
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{suffix}")
    return builder.call(function, arguments)


@intrinsic
def minimum(typing, x, limit):
    """x > limit ? limit : x, one instruction; NaN stays."""

    def codegen(context, builder, signature, arguments):
        x, limit = arguments[0], splat(builder, arguments[1], arguments[0].type)
        return builder.select(builder.fcmp_ordered(">", x, limit), limit, x)

    return x(x, limit), codegen


@intrinsic
def maximum(typing, x, limit):
    """x < limit ? limit : x, one instruction; NaN stays."""

    def codegen(context, builder, signature, arguments):
        x, limit = arguments[0], splat(builder, arguments[1], arguments[0].type)
        return builder.select(builder.fcmp_ordered("<", x, limit), limit, x)

    return x(x, limit), codegen


@intrinsic
def where_negative(typing, x, then, otherwise):
    """x < 0 ? then : otherwise, the last a number."""

    def codegen(context, builder, signature, arguments):
        x, then, otherwise = arguments
        negative = builder.fcmp_ordered("<", x, ir.Constant(x.type, None))
        return builder.select(negative, then, splat(builder, otherwise, x.type))

    return x(x, then, otherwise), codegen


@intrinsic
def where_positive(typing, x, then):
    """x > 0 ? then : 0, then a number; NaN stays."""

    def codegen(context, builder, signature, arguments):
        x, then = arguments[0], splat(builder, arguments[1], arguments[0].type)
        zero = ir.Constant(x.type, None)
        otherwise = builder.select(builder.fcmp_unordered("uno", x, x), x, zero)
        return builder.select(builder.fcmp_ordered(">", x, zero), then, otherwise)

    return x(x, then), codegen


@intrinsic
def magnitude(typing, x):
    """|x|"""
    return x(x), lambda context, builder, signature, arguments: llvm_intrinsic(builder, "fabs", *arguments)


@intrinsic
def root(typing, x):
    """√x, one instruction."""
    return x(x), lambda context, builder, signature, arguments: llvm_intrinsic(builder, "sqrt", *arguments)


@intrinsic
def with_sign(typing, x, sign):
    """|x| with the sign of the second argument."""
    return x(x, sign), lambda context, builder, signature, arguments: llvm_intrinsic(builder, "copysign", *arguments)


@intrinsic
def power_of_two(typing, t):
    """2ⁿ from t = n + magic: the lowest bits of t are n; biased and shifted they are the exponent."""

    def codegen(context, builder, signature, arguments):
        float_type = arguments[0].type
        bits, mantissa, bias = (32, 23, 127) if element(signature.args[0]) == types.float32 else (64, 52, 1023)
        word = ir.IntType(bits)
        int_type = ir.VectorType(word, float_type.count) if isinstance(float_type, ir.VectorType) else word
        n = builder.add(builder.bitcast(arguments[0], int_type), splat(builder, word(bias), int_type))
        return builder.bitcast(builder.shl(n, splat(builder, word(mantissa), int_type)), float_type)

    return t(t), codegen


def polynomial(number: type, q: tuple[float, ...]) -> Any:
    """q(r) as a function of r and r², by Estrin's scheme: short chains of dependent operations."""
    q = tuple(map(number, q))
    if number is np.float32:
        q0, q1, q2, q3, q4, q5 = q

        def estrin(r, r2):
            return (q0 + q1 * r) + r2 * ((q2 + q3 * r) + r2 * (q4 + q5 * r))
    else:
        q0, q1, q2, q3, q4, q5, q6, q7, q8, q9 = q

        def estrin(r, r2):
            r4 = r2 * r2
            low = (q0 + q1 * r) + r2 * (q2 + q3 * r)
            high = (q4 + q5 * r) + r2 * (q6 + q7 * r)
            return low + r4 * (high + r4 * (q8 + q9 * r))

    return njit(**INLINE)(estrin)


def exp_of(f: Format) -> Callable[[Any], Any]:
    """eˣ for one format."""
    number, q = f.number, polynomial(f.number, f.q)
    per_ln2, magic, half = number(1 / np.log(2)), number(f.magic), number(0.5)
    high, low, overflow, underflow = map(number, (f.ln2_high, f.ln2_low, f.overflow, f.underflow))

    def exp(x):
        x = minimum(maximum(x, underflow), overflow)
        n = (x * per_ln2 + magic) - magic
        r = (x - n * high) - n * low
        r2 = r * r
        first = n * half + magic  # 2ⁿ in two factors: at the ends of the range 2ⁿ itself is no normal number
        scale = power_of_two(first)
        rest = power_of_two((n - (first - magic)) + magic)
        return (scale + scale * (r + r2 * q(r, r2))) * rest

    return exp


def tanh_of(f: Format) -> Callable[[Any], Any]:
    """tanh x = E / (E + 2), E = expm1(2|x|) = 2ⁿ expm1(r) + (2ⁿ − 1); float64: (1 − e) / (1 + e), e = exp(−2|x|)."""
    number, q = f.number, polynomial(f.number, f.q)
    per_ln2, magic, half, one = number(1 / np.log(2)), number(f.magic), number(0.5), number(1)
    high, low, two, flat = map(number, (f.ln2_high, f.ln2_low, 2, 2 * f.flat))

    def tanh(x):
        a = minimum(magnitude(x) * two, flat)
        t = a * per_ln2 + magic
        n = t - magic
        r = (a - n * high) - n * low
        r2 = r * r
        scale = power_of_two(t)
        E = scale * (r + r2 * q(r, r2)) + (scale - one)
        return with_sign(E / (E + two), x)

    def tanh_compensated(x):  # E / (E + 2) is 2.6 ulp off at worst, this 1.9; in float32 speed is worth more
        a = minimum(magnitude(x) * two, flat)
        t = magic - a * per_ln2
        n = t - magic
        r0 = -a - n * high
        r = r0 - n * low
        r_rest = (r0 - r) - n * low  # the rounding error of r
        r2 = r * r
        scale = power_of_two(t)
        b = scale * (r + (r2 * q(r, r2) + r_rest))  # e = scale + b
        u, v = (one - scale) - b, (one + scale) + b
        u_rest, v_rest = ((one - scale) - u) - b, ((one + scale) - v) + b  # rounding errors of u and v
        y = u / v
        return with_sign(y + (u_rest - y * v_rest) * (half * y + half), x)  # 1/v = (1 + y)/2

    return tanh if number is np.float32 else tanh_compensated


def sigmoid_of(f: Format) -> Callable[[Any], Any]:
    """σ(x) = 1 / (1 + e) for x ≥ 0 and e / (1 + e) below, e = exp(−|x|): small values stay accurate."""
    one = f.number(1)

    def sigmoid(x):
        e = exp(-magnitude(x))
        top = where_negative(x, e, one)
        return top - top * (e / (e + one))

    return sigmoid


def relu_of(f: Format) -> Callable[[Any], Any]:
    """max(x, 0) for one format."""
    zero = f.number(0)
    return lambda x: maximum(x, zero)


def step_of(f: Format) -> Callable[[Any], Any]:
    """The derivative of relu for one format."""
    one = f.number(1)
    return lambda x: where_positive(x, one)


def implement(stub: Callable[[Any], Any], maker: Callable[[Format], Callable[[Any], Any]]) -> None:
    """Let the compiler pick the implementation of `stub` for the format of its argument."""
    made = {kind: maker(f) for kind, f in FORMATS.items()}
    extending.overload(stub, jit_options=INLINE)(lambda x: made.get(element(x)))


def _exp(x: Any) -> Any: ...
def _tanh(x: Any) -> Any: ...
def _sigmoid(x: Any) -> Any: ...
def _relu(x: Any) -> Any: ...
def _step(x: Any) -> Any: ...


@njit(**INLINE)
def exp(x):
    """eˣ"""
    return _exp(x)


@njit(**INLINE)
def tanh(x):
    """tanh x"""
    return _tanh(x)


@njit(**INLINE)
def sigmoid(x):
    """σ(x) = 1/(1 + e⁻ˣ)"""
    return _sigmoid(x)


@njit(**INLINE)
def relu(x):
    """max(x, 0)"""
    return _relu(x)


@njit(**INLINE)
def step(x):
    """relu′(x): 1 above 0, 0 at 0 and below."""
    return _step(x)


for stub, maker in (
    (_exp, exp_of),
    (_tanh, tanh_of),
    (_sigmoid, sigmoid_of),
    (_relu, relu_of),
    (_step, step_of),
):
    implement(stub, maker)
