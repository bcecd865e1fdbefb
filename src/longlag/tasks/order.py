"""E6: the temporal order of widely separated symbols."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longlag.tasks._draw import check_choice, check_sample, random_offsets
from longlag.tasks.ragged import Ragged

_T = 100
_START, _TRIGGER, _X = 4, 5, 6  # in the alphabet a, b, c, d, E, B, X, Y
_WINDOWS = {2: ((10, 20), (50, 60)), 3: ((10, 20), (33, 43), (66, 76))}  # [E6a] [E6b], 0-based, inclusive


@dataclass(frozen=True)
class TemporalOrder:
    """E6a (2 symbols, 4 classes), E6b (3 symbols, 8 classes): in which order did X and Y come? [E6a] [E6b]

    One-hot 8 over a, b, c, d, E, B, X, Y: first E, last B, L uniform on {100, ..., 110}, the rest
    uniform over a..d, except one X or Y at t1 in 10..20 and t2 in 50..60 (E6b: 10..20, 33..43, 66..76).
    Classes in the order XX, XY, YX, YY (E6b: XXX, XXY, ..., YYY); target at the end one-hot.

    >>> batch = TemporalOrder(symbols=2).sample(1, np.random.default_rng(0))
    >>> first, second = batch.inputs[batch.inputs >= 6] == 7  # is it Y?
    >>> bool(batch.targets[0, 2 * first + second] == 1)
    True
    """

    symbols: Literal[2, 3] = 2

    def __post_init__(self) -> None:
        check_choice(self, "symbols", self.symbols, (2, 3))

    @property
    def input_size(self) -> int:
        return 8

    @property
    def output_size(self) -> int:
        return 2**self.symbols

    @property
    def minimal_lag(self) -> int:
        return _T - _WINDOWS[self.symbols][-1][1]

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        offsets = random_offsets(_T, n, rng)
        inputs = rng.integers(0, 4, offsets[-1])
        inputs[offsets[:-1]] = _START
        inputs[offsets[1:] - 1] = _TRIGGER
        labels = np.zeros(n, np.int64)
        for earliest, latest in _WINDOWS[self.symbols]:
            is_y = rng.integers(0, 2, n)
            inputs[offsets[:-1] + rng.integers(earliest, latest, n, endpoint=True)] = _X + is_y
            labels = 2 * labels + is_y
        return Ragged(inputs, offsets, np.eye(self.output_size)[labels], 8, self.output_size, labels)
