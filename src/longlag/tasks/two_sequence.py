"""E3: noise and signal on the same input line."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from longlag.tasks._draw import check_choice, check_int, check_sample, random_offsets
from longlag.tasks.ragged import Ragged

_INPUT_STD = sqrt(0.2)  # [E3a] variance 0.2
_TARGET_STD = sqrt(0.1)  # [E3c] variance 0.1


@dataclass(frozen=True)
class TwoSequence:
    """E3a, E3b, E3c: tell which of two classes the first N elements announced [E3a] [E3b] [E3c].

    x(t) = +1 (class 0, the paper's C1) or -1 (class 1, C2) for t < N, then N(0, 0.2) noise up to the
    end; L uniform on {T, ..., T + T/10}; 0.2 and 0.1 are variances. Target at the end:

    - "a": 1 for class 0, 0 for class 1.
    - "b": as "a"; the noise is added to the first N elements as well.
    - "c": inputs of "a"; 0.2 for class 0, 0.8 for class 1, plus N(0, 0.1) noise on the training target.
      Evaluate against `Ragged.clean_targets`.

    >>> batch = TwoSequence(T=100, N=3).sample(2, np.random.default_rng(0))
    >>> head = batch.inputs[:3, 0]
    >>> bool((head == 1).all() if batch.targets[0, 0] else (head == -1).all())
    True
    """

    T: int
    N: int
    variant: Literal["a", "b", "c"] = "a"

    def __post_init__(self) -> None:
        check_int(self, "T", self.T, 2)
        check_int(self, "N", self.N, 1)
        if self.N >= self.T:
            raise ValueError(f"TwoSequence: N must be below T = {self.T}, got {self.N}")
        check_choice(self, "variant", self.variant, ("a", "b", "c"))

    @property
    def input_size(self) -> int:
        return 1

    @property
    def output_size(self) -> int:
        return 1

    @property
    def minimal_lag(self) -> int:
        return self.T - self.N + 1

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        labels = rng.integers(0, 2, n)
        offsets = random_offsets(self.T, n, rng)
        x = rng.standard_normal(offsets[-1])
        x *= _INPUT_STD
        head = offsets[:-1, None] + np.arange(self.N)  # (n, N) rows
        sign = 1.0 - 2.0 * labels[:, None]
        x[head] = sign + x[head] if self.variant == "b" else sign  # [E3a] [E3b]
        clean = np.array([0.2, 0.8] if self.variant == "c" else [1.0, 0.0])[labels][:, None]
        if self.variant != "c":
            return Ragged(x[:, None], offsets, clean, 1, 1, labels)
        targets = clean + _TARGET_STD * rng.standard_normal((n, 1))  # [E3c]
        return Ragged(x[:, None], offsets, targets, 1, 1, labels, noise_free=clean)
