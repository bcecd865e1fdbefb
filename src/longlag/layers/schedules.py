"""Schedules of scheduled sampling: the probability ε of the target as a function of the number k of updates. [TF-MIX 4]

Each is a plain function of k. With ε = 1 the target is fed back, with ε = 0 the network's own output.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(epsilon: float) -> Schedule:
    """ε(k) = ε."""
    return lambda k: epsilon  # [TF-MIX 4 ε]


def linear(slope: float, least: float = 0.0) -> Schedule:
    """ε(k) = max(least, 1 − slope·k).

    >>> [round(linear(0.25, 0.4)(k), 2) for k in range(4)]
    [1.0, 0.75, 0.5, 0.4]
    """
    return lambda k: max(least, 1 - slope * k)  # [TF-MIX 4 ε]


def exponential(base: float) -> Schedule:
    """ε(k) = baseᵏ, base < 1."""
    return lambda k: base**k  # [TF-MIX 4 ε]


def inverse_sigmoid(c: float) -> Schedule:
    """ε(k) = c/(c + e^(k/c)), c ≥ 1.

    >>> round(inverse_sigmoid(10.0)(0), 4), round(inverse_sigmoid(10.0)(10**6), 4)
    (0.9091, 0.0)
    """
    # as a logistic function of log c − k/c: e^(k/c) itself would overflow
    return lambda k: 0.5 * (1 + math.tanh(0.5 * (math.log(c) - k / c)))  # [TF-MIX 4 ε]
