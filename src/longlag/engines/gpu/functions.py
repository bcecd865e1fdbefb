"""The functions of the language of cells on Triton's values, float32. Importing this module needs Triton.

Triton has no tanh that works everywhere (interpreter, NVIDIA, AMD), so it is written here with exp.
"""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """(1 − e^−2|x|)/(1 + e^−2|x|), and a series where this difference would cancel."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    far = (1.0 - e) / (1.0 + e)
    q = x * x
    near = size * (1.0 + q * (-1.0 / 3 + q * (2.0 / 15 + q * (-17.0 / 315 + q * (62.0 / 2835)))))
    magnitude = tl.where(size < 0.25, near, far)
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN stays NaN


@triton.jit
def _exp(x):
    return tl.exp(x)


@triton.jit
def _step(x):
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def _square(x):
    return x * x


@triton.jit
def _cube(x):
    return x * x * x


@triton.jit
def _power(x, exponent):
    """A power with an exponent that is not 2 or 3; as in torch, NaN for a negative x and a fraction."""
    size = tl.exp2(exponent * tl.log2(tl.abs(x)))
    whole = tl.floor(exponent + 0.0 * x)
    odd = (whole - 2.0 * tl.floor(whole / 2.0)) > 0.5
    signed = tl.where(odd, -size, size)
    return tl.where(x < 0, tl.where(whole == exponent, signed, float("nan")), size)


@triton.jit
def _affine(a_first, b_first, a_then, b_then):
    """x ↦ a x + b twice: what an associative scan of linear recurrences combines."""
    return a_then * a_first, a_then * b_first + b_then


@triton.jit
def _affine_before(a_first, b_first, p_first, q_first, a_then, b_then, p_then, q_then):
    """The same, and beside it x ↦ p x + q without the last step: its scan shows what a step finds before it."""
    return a_then * a_first, a_then * b_first + b_then, p_then * a_first, p_then * b_first + q_then


@triton.jit
def _log(x):
    return tl.log(x)


@triton.jit
def _sqrt(x):
    return tl.sqrt(x)


@triton.jit
def _softplus(x):
    """max(x, 0) + log(1 + e^−|x|), the logarithm by its series where 1 + e^−|x| is rounded."""
    e = tl.exp(-tl.abs(x))
    tail = tl.where(e < 1e-3, e * (1.0 - e * (0.5 - e / 3)), tl.log(1.0 + e))
    return tl.where(x < 0, 0.0, x) + tail


@triton.jit
def _abs(x):
    return tl.abs(x)


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, 0.0) - tl.where(x < 0, 1.0, 0.0)


@triton.jit
def _maximum(x, y):
    return tl.where(x > y, x, tl.where(x != x, x, y))  # NaN stays NaN


@triton.jit
def _minimum(x, y):
    return tl.where(x < y, x, tl.where(x != x, x, y))


@triton.jit
def _above(x, y):
    return tl.where(x > y, 1.0, 0.0) + tl.where(x == y, 0.5, 0.0)


@triton.jit
def _where_greater(a, b, x, y):
    return tl.where(a > b, x, y)


@triton.jit
def _where_at_least(a, b, x, y):
    return tl.where(a >= b, x, y)


@triton.jit
def _sin(x):
    return tl.sin(x)


@triton.jit
def _cos(x):
    return tl.cos(x)


@triton.jit
def _erf(x):
    return tl.erf(x)
