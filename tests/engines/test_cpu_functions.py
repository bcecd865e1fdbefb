"""The Numba activations: ulp error over the whole range, saturation, NaN, and that loops over them are SIMD code."""

import platform
import re
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from longlag.engines.cpu.simd import choices, elementary, functions

NAMES = ("exp", "tanh", "sigmoid", "relu", "step", "log", "softplus", "sin", "cos", "erf", "abs", "sign", "sqrt")
DTYPES = (np.float32, np.float64)
LIMITS = {  # ulp
    np.float32: {
        "exp": 1.0, "tanh": 2.5, "sigmoid": 1.75, "log": 1.0, "softplus": 2.0, "sin": 1.6, "cos": 1.6, "erf": 1.1,
    },
    np.float64: {
        "exp": 1.1, "tanh": 2.0, "sigmoid": 1.75, "log": 1.0, "softplus": 2.0, "sin": 1.0, "cos": 1.0, "erf": 1.1,
    },
}  # fmt: skip
TORCH = {"step": lambda x: (x > 0).to(x.dtype), "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x))}


def compiled(name):
    return next(getattr(module, name) for module in (choices, elementary, functions) if hasattr(module, name))


@cache
def loop(name):
    """A kernel as others will write it: one function over a contiguous array."""
    function = compiled(name)

    @njit(**functions.FLAGS)
    def run(x, y):
        for i in range(x.size):
            y[i] = function(x[i])

    return run


def apply(name, x):
    y = np.empty_like(x)
    loop(name)(x, y)
    return y


def exact(name, x):
    """Truth for float32 arguments, computed in float64."""
    with np.errstate(over="ignore", under="ignore"):
        if name == "sigmoid":
            return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))
        if name == "softplus":
            return np.logaddexp(x, 0)
        return torch.erf(torch.from_numpy(x)).numpy() if name == "erf" else getattr(np, name)(x)


@pytest.mark.parametrize("name", LIMITS[np.float32])
def test_float32_over_the_whole_range(name):
    bits = np.arange(0, 2**32, 1009, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    assert x.size > 4_000_000
    x = x[np.abs(x) < 1e6] if name in ("sin", "cos") else x[x > 0] if name == "log" else x
    truth = exact(name, x.astype(np.float64))
    with np.errstate(over="ignore", under="ignore"):
        rounded = truth.astype(np.float32)
    y = apply(name, x)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.isfinite(y), finite)
    ulp = np.spacing(np.abs(rounded[finite])).astype(np.float64)  # denormals have theirs
    error = np.abs(y[finite] - truth[finite]) / ulp
    assert error.max() <= LIMITS[np.float32][name], x[finite][error.argmax()]


@pytest.mark.parametrize("name", LIMITS[np.float64])
def test_float64_against_many_digits(name):
    rng = np.random.default_rng(0)
    sign = rng.choice([-1, 1], 1500)
    ranges = [rng.uniform(-746, 709.7, 1500), rng.uniform(-40, 40, 1500), rng.uniform(-3, 3, 3000)]
    x = np.concatenate([*ranges, rng.uniform(-0.5, 0.5, 2000), sign * np.exp(rng.uniform(-700, 3, 1500))])
    x = x[x > 0] if name == "log" else x
    digits = {"sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)), "softplus": lambda v: mpmath.log1p(mpmath.exp(v))}
    digits = digits.get(name) or getattr(mpmath, name)
    with mpmath.workprec(160):
        truth = [digits(mpmath.mpf(float(v))) for v in x]
        ulp = np.spacing(np.abs(np.array(truth, np.float64)))
        error = [float(abs(mpmath.mpf(y) - t) / u) for y, t, u in zip(apply(name, x).tolist(), truth, ulp.tolist())]
    assert max(error) <= LIMITS[np.float64][name], x[np.argmax(error)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_ends_of_the_range_as_torch(name, dtype):
    x = np.array([np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-42, -1e-42] * 9, dtype)
    x = x[np.abs(x) < 1e20] if name in ("sin", "cos") else x
    expected = (TORCH.get(name) or getattr(torch, name))(torch.from_numpy(x)).numpy()
    y = apply(name, x)
    if name in LIMITS[dtype]:
        np.testing.assert_allclose(y, expected, rtol=2 * np.finfo(dtype).eps, atol=2e-45)
    else:
        np.testing.assert_array_equal(y, expected)
    if name == "tanh":
        np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_small_sigmoids_keep_their_digits():
    assert functions.sigmoid(-80.0) == pytest.approx(np.exp(-80.0), rel=4e-16)
    assert functions.sigmoid(np.float32(-100)) == np.float32(np.exp(-100.0))  # denormal; 1/(1 + e¹⁰⁰) would be 0
    assert functions.sigmoid(-740.0) == np.exp(-740.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_nan_goes_through_a_vectorised_loop(name, dtype):
    x = np.linspace(0.1 if name in ("log", "sqrt") else -3, 3, 1001).astype(dtype)
    holes = np.random.default_rng(0).random(x.size) < 0.2
    x[holes] = np.nan
    y = apply(name, x)
    np.testing.assert_array_equal(np.isnan(y), holes)
    clean = apply(name, np.where(holes, dtype(1), x))
    np.testing.assert_array_equal(y[~holes], clean[~holes])


# Machine, then function: an instruction on a whole register; {} is the format.
PACKED = {
    "x86_64": {
        "relu": r"vmaxp{}\s.*%[yz]mm",
        "step": r"vcmp\w*p{}\s.*%[yz]mm",
        "abs": r"vp?and\w*\s.*%[yz]mm",
        "sign": r"vcmp\w*p{}\s.*%[yz]mm",
        "sqrt": r"vsqrtp{}\s.*%[yz]mm",
        "other": r"vmulp{}\s.*%[yz]mm",
    },
    "aarch64": {
        "relu": r"fcmg\w\s+v\d+\.{}",
        "step": r"fcmg\w\s+v\d+\.{}",
        "abs": r"fabs\s+v\d+\.{}",
        "sign": r"fcm\w+\s+v\d+\.{}",
        "sqrt": r"fsqrt\s+v\d+\.{}",
        "other": r"fmul\s+v\d+\.{}",
    },
}
SUFFIX = {"x86_64": ("s", "d"), "aarch64": ("4s", "2d")}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_loop_is_simd_code(name, dtype):
    if dtype == np.float64 and name in ("log", "softplus", "sin", "cos", "erf"):
        return  # the C library's, number by number
    run = loop(name)
    run(np.zeros(4, dtype), np.zeros(4, dtype))
    arrays: dict[Any, str] = run.inspect_asm()
    (code,) = [code for kinds, code in arrays.items() if str(kinds[0].dtype) == np.dtype(dtype).name]
    machine = platform.machine()
    pattern = PACKED[machine].get(name, PACKED[machine]["other"])
    assert re.search(pattern.format(SUFFIX[machine][DTYPES.index(dtype)]), code)


@given(st.floats(-800, 800), st.sampled_from(DTYPES))
def test_symmetries(x, dtype):
    x = dtype(x)
    assert functions.tanh(-x) == -functions.tanh(x)
    assert functions.sigmoid(x) + functions.sigmoid(-x) == pytest.approx(1, rel=2 * float(np.finfo(dtype).eps))
    assert functions.relu(x) == functions.step(x) * x


@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_float32(name):
    @njit
    def call(x):
        return compiled_function(x)

    compiled_function = compiled(name)
    y = call(np.float32(0.7))
    assert y == np.float32(y)


PAIRS = {"maximum": torch.maximum, "minimum": torch.minimum, "above": lambda x, y: (x > y) + 0.5 * (x == y)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*PAIRS, "where_greater", "where_at_least"])
def test_comparisons_as_torch(name, dtype):
    function, rng = compiled(name), np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, 500).astype(dtype) for _ in range(2))
    x[:4], y[2:6] = np.nan, np.nan
    x[6:8], y[7:9] = np.inf, np.inf

    @njit(**functions.FLAGS)
    def pairs(x, y, out):
        for i in range(x.size):
            out[i] = function(x[i], y[i])

    @njit(**functions.FLAGS)
    def choose(x, y, out):
        for i in range(x.size):
            out[i] = function(x[i], y[i], y[i] * 2, 7)

    out, (a, b) = np.empty_like(x), map(torch.from_numpy, (x, y))
    if name in PAIRS:
        pairs(x, y, out)
        expected = PAIRS[name](a, b)
    else:
        choose(x, y, out)
        expected = torch.where(a > b if name == "where_greater" else a >= b, b * 2, 7.0)
    np.testing.assert_array_equal(out, expected.numpy())
