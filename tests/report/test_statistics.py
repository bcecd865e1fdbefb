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
        _, wanted = stats.fisher_exact([[k, n - k], [j, m - j]], alternative="less")
        assert fewer(k, n, j, m) == pytest.approx(wanted, rel=1e-9)


def test_bootstrap_covers_and_repeats():
    values = np.random.default_rng(0).normal(5, 1, 40)
    found = bootstrap(values.tolist(), np.mean)
    assert found is not None
    assert found == bootstrap(values.tolist(), np.mean)
    low, high = found
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(40), rel=0.1)
    assert bootstrap([1.0], np.mean) is None
    assert bootstrap([2.0, 2.0], np.median) == (2.0, 2.0)


@pytest.mark.parametrize(("first", "second"), [([1, 2, 3, 4], [2.5, 6, 7, 8, 9]), ([5, 1, 9, 3], [2, 4, 6, 8])])
def test_smaller_is_scipys(first, second):
    wanted = stats.mannwhitneyu(first, second, alternative="less", method="exact").pvalue
    assert smaller(first, second) == pytest.approx(wanted, abs=0.01)


def test_smaller_counts_failures_as_fishers_test_does():
    """0 of 20 against 4 of 30 successes, the rest infinite: what matters is where the four are."""
    few, some = [np.inf] * 20, [1.0, 2.0, 3.0, 4.0, *[np.inf] * 26]
    assert smaller(some, few) == pytest.approx(fewer(0, 20, 4, 30), abs=0.01)
    assert smaller(few, some) > 0.9


def test_smaller_of_all_alike_and_of_nothing():
    assert smaller([np.inf, np.inf], [np.inf]) == 1.0
    with pytest.raises(ValueError, match="smaller: both samples must have values, got 0 and 2"):
        smaller([], [1, 2])
