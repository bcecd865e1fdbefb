"""Intervals and tests for a handful of trials; standard library and NumPy only."""

from collections.abc import Callable, Sequence
from math import comb, erfc, sqrt

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
    """How probable so few successes are if both rates are the same: Fisher's exact test, one-sided.

    >>> round(fewer(8, 10, 10, 10), 3), fewer(10, 10, 10, 10)
    (0.237, 1.0)
    """
    both, everything = successes + other_successes, trials + other_trials
    ways = comb(everything, both)
    least = max(0, both - other_trials)
    return sum(comb(trials, k) * comb(other_trials, both - k) for k in range(least, successes + 1)) / ways


def smaller(first: Sequence[float], second: Sequence[float]) -> float:
    """How probable ranks as low as those of `first` are if both come from one distribution: Mann and Whitney's test.

    One-sided, by the normal approximation with correction for ties and continuity. Infinities are ties at the end.

    >>> round(smaller([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), 3), smaller([1, 2], [1, 2]) > 0.5
    (0.006, True)
    """
    n, m = len(first), len(second)
    if not n or not m:
        raise ValueError(f"smaller: both samples must have values, got {n} and {m}")
    values, counts = np.unique([*first, *second], return_counts=True)
    ends = np.cumsum(counts)
    ranks = dict(zip(values.tolist(), (ends - (counts - 1) / 2).tolist()))
    u = sum(ranks[float(value)] for value in first) - n * (n + 1) / 2  # pairs in which `first` is the larger
    total = n + m
    ties = float((counts**3 - counts).sum()) / (total * (total - 1))
    variance = n * m / 12 * (total + 1 - ties)
    if variance == 0:
        return 1.0
    return erfc(-(u + 0.5 - n * m / 2) / sqrt(2 * variance)) / 2
