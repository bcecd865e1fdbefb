"""Classic tests of memory beside the experiments of 1997: copy, delayed XOR, parity."""

from dataclasses import dataclass

import numpy as np

from longlag.tasks._draw import check_int, check_sample, random_offsets
from longlag.tasks.ragged import Ragged


@dataclass(frozen=True)
class Copy:
    """Copy: repeat the first `length` symbols after T steps (Arjovsky, Shah, Bengio 2016).

    Input: `length` symbols of 0..symbols-1, T-1 blanks, a signal, `length` blanks; blank is `symbols`,
    the signal `symbols`+1. Target of every step: blank, except in the last `length` steps: there the first
    `length` symbols again.

    >>> batch = Copy(T=3, symbols=4, length=2).sample(1, np.random.default_rng(0))
    >>> batch.inputs[2:].tolist(), batch.targets[:5].tolist()  # 4 is blank, 5 the signal
    ([4, 4, 5, 4, 4], [4, 4, 4, 4, 4])
    >>> bool((batch.inputs[:2] == batch.targets[5:]).all())
    True
    """

    T: int
    symbols: int = 8
    length: int = 10

    def __post_init__(self) -> None:
        check_int(self, "T", self.T, 1)
        check_int(self, "symbols", self.symbols, 2)
        check_int(self, "length", self.length, 1)

    @property
    def input_size(self) -> int:
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        return self.symbols + 1

    @property
    def minimal_lag(self) -> int:
        return self.T + self.length + 1

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences of T + 2 length steps."""
        check_sample(self, n, rng)
        steps = self.T + 2 * self.length
        text = rng.integers(0, self.symbols, (n, self.length))
        inputs, targets = np.full((2, n, steps), self.symbols)
        inputs[:, : self.length] = text
        inputs[:, -self.length - 1] = self.symbols + 1
        targets[:, -self.length :] = text
        offsets = steps * np.arange(n + 1)
        return Ragged(inputs.ravel(), offsets, targets.ravel(), self.input_size, self.output_size)


@dataclass(frozen=True)
class DelayedXOR:
    """Delayed XOR of two widely separated bits in a noisy sequence, a limit of LSTM-97 (its section 6).

    Pairs (v(t), mu(t)) with v = -1 or 1 at random and mu = 0 but mu(i1) = mu(i2) = 1; i1 in the first
    tenth of T, i2 in the tenth after T/2; L uniform on {T, ..., T + T/10}. Target at the end: 1 if
    v(i1) != v(i2), else 0. The paper names the problem only; the layout is ours.

    >>> batch = DelayedXOR(T=20).sample(1, np.random.default_rng(0))
    >>> a, b = batch.inputs[batch.inputs[:, 1] == 1, 0]
    >>> bool(batch.targets[0, 0] == (a != b))
    True
    """

    T: int

    def __post_init__(self) -> None:
        check_int(self, "T", self.T, 10)

    @property
    def input_size(self) -> int:
        return 2

    @property
    def output_size(self) -> int:
        return 1

    @property
    def minimal_lag(self) -> int:
        return self.T - (self.T // 2 + self.T // 10 - 1)

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        offsets = random_offsets(self.T, n, rng)
        inputs = np.zeros((offsets[-1], 2))
        inputs[:, 0] = 2 * rng.integers(0, 2, offsets[-1]) - 1
        i1 = offsets[:-1] + rng.integers(0, self.T // 10, n)
        i2 = offsets[:-1] + rng.integers(0, self.T // 10, n) + self.T // 2
        inputs[i1, 1] = inputs[i2, 1] = 1.0
        labels = (inputs[i1, 0] != inputs[i2, 0]).astype(np.int64)
        return Ragged(inputs, offsets, labels[:, None].astype(np.float64), 2, 1, labels)


@dataclass(frozen=True)
class Parity:
    """Parity: is the number of +1 among the inputs -1, +1 odd? A limit of LSTM-97 (500 steps; its section 6).

    L uniform on {T, ..., T + T/10}; target at the end: 1 if odd, 0 if even. Every input matters,
    also the last one, so the minimal lag is 1.

    >>> batch = Parity(T=5).sample(1, np.random.default_rng(0))
    >>> bool(batch.targets[0, 0] == (batch.inputs > 0).sum() % 2)
    True
    """

    T: int

    def __post_init__(self) -> None:
        check_int(self, "T", self.T, 1)

    @property
    def input_size(self) -> int:
        return 1

    @property
    def output_size(self) -> int:
        return 1

    @property
    def minimal_lag(self) -> int:
        return 1

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences."""
        check_sample(self, n, rng)
        offsets = random_offsets(self.T, n, rng)
        bits = rng.integers(0, 2, offsets[-1])
        labels = np.add.reduceat(bits, offsets[:-1]) % 2
        inputs = (2.0 * bits - 1.0)[:, None]
        return Ragged(inputs, offsets, labels[:, None].astype(np.float64), 1, 1, labels)
