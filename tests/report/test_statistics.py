"""Intervals and tests against scipy and brute force."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from longlag.report.statistics import bootstrap, fewer, smaller, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (29, 30)])
def test_wilson_is_scipys(k, n):
    wanted = stats.binomtest(k, n).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose(wilson(k, n), (wanted.low, wanted.high), rtol=1e-9, atol=1e-12)


def test_wilson_refuses_nonsense():
    for k, n in ((1, 0), (-1, 3), (4, 3)):
        with pytest.raises(
            ValueError, match=f"wilson: successes must be in 0..trials with trials >= 1, got {k} of {n}"
        ):
            wilson(k, n)


@pytest.mark.parametrize(("n", "m"), [(3, 4), (10, 10), (30, 10)])
def test_fishers_test_is_scipys(n, m):
    for k, j in product(range(n + 1), range(m + 1)):
        wanted = stats.fisher_exact([[k, n - k], [j, m - j]], alternative="less").pvalue
        assert fewer(k, n, j, m) == pytest.approx(wanted, rel=1e-9)


def test_bootstrap_covers_and_repeats():
    values = np.random.default_rng(0).normal(5, 1, 40)
    low, high = bootstrap(values, np.mean)
    assert (low, high) == bootstrap(values, np.mean)
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(40), rel=0.1)
    assert bootstrap([1.0], np.mean) is None
    assert bootstrap([2.0, 2.0], np.median) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2, 3, 4], [2.5, 6, 7, 8, 9]), ([5, 5, np.inf], [1, 2, np.inf, np.inf]), ([3] * 6, [3] * 5 + [4])],
)
def test_smaller_is_scipys(first, second):
    """Failures are infinite; scipy ranks large numbers alike."""
    a, b = (np.where(np.isinf(values), 1e9, values) for values in (first, second))
    wanted = stats.mannwhitneyu(a, b, alternative="less", method="asymptotic").pvalue
    np.testing.assert_allclose(smaller(first, second), wanted, rtol=1e-9)


def test_smaller_of_all_alike_and_of_nothing():
    assert smaller([np.inf, np.inf], [np.inf]) == 1.0
    with pytest.raises(ValueError, match="smaller: both samples must have values, got 0 and 2"):
        smaller([], [1, 2])
