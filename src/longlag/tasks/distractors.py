"""E2: long lags among distractor symbols, with and without local regularities."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from longlag.tasks._draw import check_choice, check_int, check_sample, offsets_of
from longlag.tasks.ragged import Ragged


@dataclass(frozen=True)
class _Framed:
    """What `NoiseFree` and `Distractors` share: p + 1 symbols, the last repeats the first."""

    p: int

    def __post_init__(self) -> None:
        check_int(self, "p", self.p, 2)

    @property
    def input_size(self) -> int:
        return self.p + 1

    @property
    def output_size(self) -> int:
        return self.p + 1

    @property
    def minimal_lag(self) -> int:
        return self.p


@dataclass(frozen=True)
class NoiseFree(_Framed):
    """E2a: predict the next symbol of (x, c_1, ..., c_{p-1}, x), x in {alpha, beta} [E2a].

    Only the last symbol needs memory: it repeats the first, p steps earlier. Symbols: c_1..c_{p-1} are 0..p-2,
    alpha is p-1, beta is p; elements 0..p, target of step t is element t+1, t = 0..p-1.

    >>> batch = NoiseFree(p=4).sample(1, np.random.default_rng(0))
    >>> batch.inputs[1:].tolist(), batch.targets[:-1].tolist()
    ([0, 1, 2], [0, 1, 2])
    >>> bool(batch.inputs[0] == batch.targets[-1])
    True
    """

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences, each one of the two possible ones."""
        check_sample(self, n, rng)
        return _framed(np.broadcast_to(np.arange(self.p - 1), (n, self.p - 1)), rng)


@dataclass(frozen=True)
class Distractors(_Framed):
    """E2b: as E2a, but the middle is p-1 symbols drawn from c_1..c_{p-1} [E2b].

    Alpha and beta never occur in the middle (errata 001-22). Judge the last output only: the others
    cannot be predicted. scored "end": only the last output has a target at all, as a one-hot vector.

    >>> batch = Distractors(p=4).sample(1, np.random.default_rng(0))
    >>> len(batch.inputs), bool(batch.inputs[0] == batch.targets[-1])
    (4, True)
    >>> Distractors(p=4, scored="end").sample(1, np.random.default_rng(0)).targets.tolist()
    [[0.0, 0.0, 0.0, 1.0, 0.0]]
    """

    scored: Literal["every", "end"] = "every"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "scored", self.scored, ("every", "end"))

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences of p steps."""
        check_sample(self, n, rng)
        batch = _framed(rng.integers(0, self.p - 1, (n, self.p - 1)), rng)  # [E2b]
        if self.scored == "every":
            return batch
        return replace(batch, targets=np.eye(self.output_size)[batch.targets[batch.offsets[1:] - 1]])


@dataclass(frozen=True)
class LongLag:
    """E2c: recall alpha or beta after at least q distractors out of p [E2c].

    Input b, x, q + k distractors, e with P(k) = 0.1 * 0.9^k; target after e: one-hot of x, (1, 0) for
    alpha. Symbols: distractors 0..p-1, then e, b, alpha, beta. The string with its final x has mean
    length q + 13, and each distractor occurs (q + 9) / p times on average (errata 001-24).

    >>> batch = LongLag(q=2, p=5).sample(1, np.random.default_rng(0))
    >>> b, x, *distractors, e = batch.inputs.tolist()
    >>> (b, e), len(distractors) >= 2, [x == 7, x == 8] == batch.targets[0].tolist()
    ((6, 5), True, True)
    """

    q: int
    p: int

    def __post_init__(self) -> None:
        check_int(self, "q", self.q, 1)
        check_int(self, "p", self.p, 1)

    @property
    def input_size(self) -> int:
        return self.p + 4

    @property
    def output_size(self) -> int:
        return 2

    @property
    def minimal_lag(self) -> int:
        return self.q + 1

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n sequences of q + k + 3 steps."""
        check_sample(self, n, rng)
        labels = rng.integers(0, 2, n)
        k = rng.geometric(0.1, n) - 1  # [E2c] P(k) = 0.1 * 0.9^k
        offsets = offsets_of(self.q + k + 3)
        inputs = rng.integers(0, self.p, offsets[-1])
        e, b, alpha = self.p, self.p + 1, self.p + 2
        inputs[offsets[1:] - 1] = e
        inputs[offsets[:-1]] = b
        inputs[offsets[:-1] + 1] = alpha + labels
        return Ragged(inputs, offsets, np.eye(2)[labels], self.input_size, 2, labels)


def _framed(middle: np.ndarray, rng: np.random.Generator) -> Ragged:
    """The string x, middle (n, p-1), x, for prediction of the next symbol: p steps."""
    n, p = middle.shape[0], middle.shape[1] + 1
    labels = rng.integers(0, 2, n)
    x = (p - 1 + labels)[:, None]  # alpha, beta
    strings = np.concatenate([x, middle, x], axis=1)  # (n, p+1) [E2a]
    offsets = p * np.arange(n + 1)
    return Ragged(strings[:, :-1].ravel(), offsets, strings[:, 1:].ravel(), p + 1, p + 1, labels)
