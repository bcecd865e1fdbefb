"""E4 and E5: sums and products of two marked values."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longlag.tasks._draw import check_choice, check_int, check_sample, random_offsets
from longlag.tasks.ragged import Ragged

First = Literal["minus_one", "unmark", "zero_value"]
_FIRST = ("minus_one", "unmark", "zero_value")
_SHORTEST = 22  # the first ten pairs lie within the first T/2 - 1


@dataclass(frozen=True)
class _Pairs:
    """What `Adding` and `Multiplication` share: pairs of a value and a marker, read over T to T + T/10 steps."""

    T: int
    first: First = "minus_one"

    def __post_init__(self) -> None:
        check_int(self, "T", self.T, _SHORTEST)
        check_choice(self, "first", self.first, _FIRST)

    @property
    def input_size(self) -> int:
        return 2

    @property
    def output_size(self) -> int:
        return 1

    @property
    def minimal_lag(self) -> int:
        return self.T // 2


@dataclass(frozen=True)
class Adding(_Pairs):
    """E4: the adding problem [E4].

    Pairs (v(t), mu(t)), t = 0..L-1, L uniform on {T, ..., T + T/10}: v uniform on [-1, 1); mu = 0 but
    mu(0) = mu(L-1) = -1 and mu(i1) = mu(i2) = 1, with i1 among the first 10 pairs and i2 != i1 among
    the first T/2 - 1. Target at the end 0.5 + (X1 + X2) / 4, with X = v at the marked pairs
    = 0.5 + 1/4 sum_t [mu(t) = 1] v(t).

    When the first pair is chosen its X counts 0. The paper does not say how the net is to know; `first` does:

    - "minus_one": its marker stays -1 (i1 or i2 may be 0). With it the row T = 100 of Table 7 came out again.
    - "unmark": its marker is 0 (i2 >= 1).
    - "zero_value": its marker is 1 and its value v(0) is 0 (i2 >= 1).

    >>> batch = Adding(T=100).sample(1, np.random.default_rng(0))
    >>> marked = batch.inputs[:, 1] == 1
    >>> bool(abs(0.5 + batch.inputs[marked, 0].sum() / 4 - batch.targets[0, 0]) < 1e-15)
    True
    """

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        offsets = random_offsets(self.T, n, rng)
        inputs = np.zeros((offsets[-1], 2))
        inputs[:, 0] = rng.uniform(-1, 1, offsets[-1])
        X1, X2 = _mark(inputs, offsets, self.T, self.first, 0.0, rng)
        return Ragged(inputs, offsets, (0.5 + (X1 + X2) / 4)[:, None], 2, 1)  # [E4]


@dataclass(frozen=True)
class Multiplication(_Pairs):
    """E5: the multiplication problem [E5].

    As E4 (`Adding`, with the same readings `first`), but v is uniform on [0, 1), X of the first pair
    counts 1, and the target is X1 X2 = prod_{t: mu(t) = 1} v(t).

    >>> batch = Multiplication(T=100).sample(1, np.random.default_rng(0))
    >>> marked = batch.inputs[:, 1] == 1
    >>> bool(abs(batch.inputs[marked, 0].prod() - batch.targets[0, 0]) < 1e-15)
    True
    """

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        offsets = random_offsets(self.T, n, rng)
        inputs = np.zeros((offsets[-1], 2))
        inputs[:, 0] = rng.random(offsets[-1])
        X1, X2 = _mark(inputs, offsets, self.T, self.first, 1.0, rng)
        return Ragged(inputs, offsets, (X1 * X2)[:, None], 2, 1)  # [E5]


def _mark(
    inputs: np.ndarray, offsets: np.ndarray, T: int, first: First, neutral: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Choose and mark two pairs of each sequence in `inputs` (N, 2); return X1, X2 (n,)."""
    v, mu = inputs[:, 0], inputs[:, 1]
    start, last = offsets[:-1], offsets[1:] - 1
    i1 = rng.integers(0, 10, len(start))
    least = 0 if first == "minus_one" else 1
    taken = i1 >= least
    i2 = rng.integers(least, T // 2 - 1 - taken)  # [E4] uniform on {least, ..., T/2-2} without i1:
    i2 += taken & (i2 >= i1)  # one place fewer to draw from, then step over i1

    mu[start] = mu[last] = -1.0
    mu[start + i1] = mu[start + i2] = 1.0
    rare = start[(i1 == 0) | (i2 == 0)]
    if first == "zero_value":
        v[rare] = neutral
    else:
        mu[rare] = -1.0 if first == "minus_one" else 0.0
    return np.where(i1 == 0, neutral, v[start + i1]), np.where(i2 == 0, neutral, v[start + i2])
