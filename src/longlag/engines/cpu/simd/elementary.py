"""log, softplus, sin, cos and erf for Numba kernels: SIMD in float32, a few ulp off; the C library's in float64.

Arguments are numbers or SIMD vectors, as in `functions`. sin and cos reduce a float32 in float64 and are accurate for
\\|x| below 10⁶; beyond, neighbouring float32 numbers soon lie a period apart, and only the range −1..1 is kept.

>>> round(log(2.0), 12), round(float(cos(np.float32(3.0))), 6)
(0.69314718056, -0.989992)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from longlag.engines.cpu.simd.choices import where_at_least, where_greater
from longlag.engines.cpu.simd.functions import (
    INLINE,
    Format,
    exp,
    implement,
    intrinsic,
    llvm_intrinsic,
    magnitude,
    maximum,
    minimum,
    splat,
    with_sign,
)
from longlag.engines.cpu.simd.vector import Vector

SINGLE = np.float32


def _like(kind: Any, number: Any) -> Any:
    """The Numba type with another element."""
    return Vector(number, kind.lanes) if isinstance(kind, Vector) else number


def _words(like: Any, bits: int) -> Any:
    """The LLVM type of integers with as many lanes as ``like``."""
    word = ir.IntType(bits)
    return ir.VectorType(word, like.count) if isinstance(like, ir.VectorType) else word


@intrinsic
def widened(typing, x):
    """A float32 as float64."""
    kind = _like(x, types.float64)
    return kind(x), lambda context, builder, signature, arguments: builder.fpext(
        arguments[0], context.get_value_type(kind)
    )


@intrinsic
def narrowed(typing, x):
    """A float64 as float32."""
    kind = _like(x, types.float32)
    return kind(x), lambda context, builder, signature, arguments: builder.fptrunc(
        arguments[0], context.get_value_type(kind)
    )


@intrinsic
def by_bit(typing, t, bit, then, otherwise):
    """``then`` where this bit of n is set, t = n + magic a float64; else ``otherwise``."""

    def codegen(context, builder, signature, arguments):
        t, bit, then, otherwise = arguments
        kind = _words(t.type, 64)
        mask = splat(builder, builder.shl(bit.type(1), bit), kind)
        found = builder.and_(builder.bitcast(t, kind), mask)
        return builder.select(builder.icmp_signed("!=", found, ir.Constant(kind, None)), then, otherwise)

    return then(t, types.int64, then, then), codegen


ROOT_HALF = 0x3F3504F3  # the bits of √½


@intrinsic
def exponent_of(typing, x):
    """n of the float32 x = m 2ⁿ, √½ ≤ m < √2, as a float32."""

    def codegen(context, builder, signature, arguments):
        (x,) = arguments
        kind = _words(x.type, 32)
        bits = builder.sub(builder.bitcast(x, kind), splat(builder, ir.IntType(32)(ROOT_HALF), kind))
        return builder.sitofp(builder.ashr(bits, splat(builder, ir.IntType(32)(23), kind)), x.type)

    return x(x), codegen


@intrinsic
def mantissa_of(typing, x):
    """m of the float32 x = m 2ⁿ, √½ ≤ m < √2."""

    def codegen(context, builder, signature, arguments):
        (x,) = arguments
        kind = _words(x.type, 32)
        start = splat(builder, ir.IntType(32)(ROOT_HALF), kind)
        bits = builder.sub(builder.bitcast(x, kind), start)
        bits = builder.and_(bits, splat(builder, ir.IntType(32)(0x7FFFFF), kind))
        return builder.bitcast(builder.add(bits, start), x.type)

    return x(x), codegen


def _of_library(name: str) -> Any:
    """A function of the C library, lane by lane."""

    @intrinsic
    def function(typing, x):
        def codegen(context, builder, signature, arguments):
            (x,) = arguments
            if name != "erf":  # LLVM has no intrinsic for this one
                return llvm_intrinsic(builder, name, x)
            double = ir.DoubleType()
            erf = cgutils.get_or_insert_function(builder.module, ir.FunctionType(double, [double]), "erf")
            if not isinstance(x.type, ir.VectorType):
                return builder.call(erf, [x])
            result = x
            for lane in range(x.type.count):
                index = ir.IntType(32)(lane)
                result = builder.insert_element(result, builder.call(erf, [builder.extract_element(x, index)]), index)
            return result

        return x(x), codegen

    return function


_log64, _sin64, _cos64, _erf64 = map(_of_library, ("log", "sin", "cos", "erf"))


def log_of(f: Format) -> Callable[[Any], Any]:
    """log x = n log 2 + log m; log(1 + r) = r − r²/2 + r³ q(r) in float32."""
    if f.number is not np.float32:
        return lambda x: _log64(x)
    high, low, half, one, zero = map(SINGLE, (f.ln2_high, f.ln2_low, 0.5, 1, 0))
    tiny, scale, shift, infinity = map(SINGLE, (1.17549435e-38, 2**23, 23, np.inf))
    nan = SINGLE(np.nan)
    q0, q1, q2, q3, q4, q5, q6, q7, q8 = map(
        SINGLE,
        (3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1, -1.2420140846e-1,
         1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2),
    )  # fmt: skip

    def log(x):
        small = where_greater(tiny, x, scale, one)  # denormals are scaled
        n = exponent_of(x * small) - where_greater(tiny, x, shift, zero)
        r = mantissa_of(x * small) - one
        r2 = r * r
        r4 = r2 * r2
        q = (q0 + q1 * r) + r2 * (q2 + q3 * r) + r4 * ((q4 + q5 * r) + r2 * (q6 + q7 * r) + r4 * q8)
        value = (r2 * (r * q) + n * low - half * r2) + r + n * high
        value = where_greater(x, zero, value, where_at_least(x, zero, -infinity, nan))
        return where_greater(infinity, x, value, x + where_at_least(x, infinity, zero, value * zero))

    return log


def softplus_of(f: Format) -> Callable[[Any], Any]:
    """log(1 + eˣ) = max(x, 0) + log1p(e), e = exp(−|x|); log1p(e) = log u + (e − (u − 1))/u, u = 1 + e."""
    one, zero = f.number(1), f.number(0)

    def softplus(x):
        e = exp(-magnitude(x))
        u = e + one
        return maximum(x, zero) + (log(u) + (e - (u - one)) / u)

    return softplus


def sine_of(quarter: int, f: Format) -> Callable[[Any], Any]:
    """sin(x + quarter · π/2): the quadrant n from x · 2/π, then a polynomial of the rest r in float32."""
    if f.number is not np.float32:
        return (lambda x: _cos64(x)) if quarter else (lambda x: _sin64(x))
    per_turn, magic, ahead = 2 / np.pi, 6755399441055744.0, float(quarter)
    high, low = 1.5707963267341256, 6.077100506506192e-11  # π/2; the first with 33 bits
    edge, half, one = map(SINGLE, (np.pi / 4 + 1e-6, 0.5, 1))
    s0, s1, s2 = map(SINGLE, (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4))
    c0, c1, c2 = map(SINGLE, (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5))

    def sine(x):
        wide = widened(x)
        t = wide * per_turn + magic
        n = t - magic
        r = narrowed((wide - n * high) - n * low)
        r = minimum(maximum(r, -edge), edge)
        z = r * r
        s = r + r * z * (s0 + z * (s1 + z * s2))
        c = (one - half * z) + z * z * (c0 + z * (c1 + z * c2))
        value = by_bit(t + ahead, 0, c, s)
        return by_bit(t + ahead, 1, -value, value)

    return sine


def erf_of(f: Format) -> Callable[[Any], Any]:
    """A polynomial below 0.93, beyond it 1 − exp(−p(|x|)), in float32."""
    if f.number is not np.float32:
        return lambda x: _erf64(x)
    edge, one, flat = map(SINGLE, (0.927734375, 1, 4))
    p1, p2, p3, p4, p5, p6, p7 = map(
        SINGLE,
        (1.28717512e-1, 6.34846687e-1, 1.06777877e-1, -2.42546219e-2, 3.88396438e-3, -3.83197126e-4, 1.72853470e-5),
    )
    q0, q1, q2, q3, q4, q5 = map(
        SINGLE,
        (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4),
    )

    def erf(x):
        a = minimum(magnitude(x), flat)
        s = x * x
        p = p1 + a * (p2 + a * (p3 + a * (p4 + a * (p5 + a * (p6 + a * p7)))))
        far = with_sign(one - exp(-(p * a + a)), x)
        near = x + x * (q0 + s * (q1 + s * (q2 + s * (q3 + s * (q4 + s * q5)))))
        return where_greater(a, edge, far, near)

    return erf


def _log(x: Any) -> Any: ...
def _softplus(x: Any) -> Any: ...
def _sin(x: Any) -> Any: ...
def _cos(x: Any) -> Any: ...
def _erf(x: Any) -> Any: ...


@njit(**INLINE)
def log(x):
    """The natural logarithm."""
    return _log(x)


@njit(**INLINE)
def softplus(x):
    """log(1 + eˣ)"""
    return _softplus(x)


@njit(**INLINE)
def sin(x):
    """sin x"""
    return _sin(x)


@njit(**INLINE)
def cos(x):
    """cos x"""
    return _cos(x)


@njit(**INLINE)
def erf(x):
    """The error function."""
    return _erf(x)


implement(_log, log_of)
implement(_softplus, softplus_of)
implement(_sin, lambda f: sine_of(0, f))
implement(_cos, lambda f: sine_of(1, f))
implement(_erf, erf_of)
