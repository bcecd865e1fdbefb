"""Intervals and tests for a handful of trials; standard library and NumPy only."""

from collections.abc import Callable, Sequence
from math import comb, sqrt

import numpy as np

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927).

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    >>> low, high = wilson(10, 10)
    >>> round(low, 3), round(high, 3)
    (0.722, 1.0)
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson: successes must be in 0..trials with trials >= 1, got {successes} of {trials}")
    p, n, z = successes / trials, trials, Z95
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def bootstrap(
    values: Sequence[float], statistic: Callable[..., np.ndarray], draws: int = 4000
) -> tuple[float, float] | None:
    """95 % percentile interval of a statistic such as np.mean, by resampling; None for fewer than two values.

    >>> bootstrap([1.0, 2.0, 3.0, 4.0], np.mean)
    (1.5, 3.5)
    """
    if len(values) < 2:
        return None
    rng = np.random.default_rng(97)
    samples = rng.choice(np.asarray(values, float), (draws, len(values)))
    low, high = np.percentile(statistic(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def fewer(successes: int, trials: int, other_successes: int, other_trials: int) -> float:
    """The probability of so few successes if both rates are the same: Fisher's exact test, one-sided.

    >>> round(fewer(8, 10, 10, 10), 3), fewer(10, 10, 10, 10)
    (0.237, 1.0)
    """
    both, everything = successes + other_successes, trials + other_trials
    ways = comb(everything, both)
    least = max(0, both - other_trials)
    return sum(comb(trials, k) * comb(other_trials, both - k) for k in range(least, successes + 1)) / ways


def smaller(first: Sequence[float], second: Sequence[float], draws: int = 20_000) -> float:
    """The probability of ranks as low as those of `first` under one distribution: Mann and Whitney's test.

    One-sided, by random permutations, which are right with any number of ties (infinities among them).

    >>> smaller([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) < 0.01, smaller([1, 2], [1, 2]) > 0.5
    (True, True)
    """
    n = len(first)
    if not n or not len(second):
        raise ValueError(f"smaller: both samples must have values, got {n} and {len(second)}")
    _, which, counts = np.unique([*first, *second], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    sums = np.random.default_rng(97).permuted(np.tile(ranks, (draws, 1)), axis=1)[:, :n].sum(1)
    return float(1 + (sums <= ranks[:n].sum() + 1e-9).sum()) / (draws + 1)
