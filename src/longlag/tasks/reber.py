"""E1: the embedded Reber grammar."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from longlag.tasks._draw import check_choice, check_int, check_sample, offsets_of
from longlag.tasks.ragged import Ragged

ALPHABET = "BEPSTVX"

# [E1] state -> (symbol, next state), branches equiprobable; state 7 is the end of an inner string.
_REBER = (("B1",), ("T2", "P3"), ("S2", "X4"), ("T3", "V5"), ("X3", "S6"), ("P4", "V6"), ("E7",))
_INNER = {"T": 2, "P": 10}  # first state of the inner string's copy that remembers c = T, c = P
_CLOSING, _END = 18, 19


def _embedded_arcs() -> list[list[tuple[str, int]]]:
    """Arcs of [E1] B, c, (Reber string), c, E as one automaton: each c has its own copy of the inner one."""
    arcs = [[("B", 1)], list(_INNER.items())]
    for c, first in _INNER.items():
        arcs += [[(arc[0], first + int(arc[1])) for arc in branches] for branches in _REBER]
        arcs += [[(c, _CLOSING)]]
    return [*arcs, [("E", _END)]]


def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Symbol, next state of a state's two branches (20, 2); next state by symbol (20, 7); -1: none."""
    symbol, after = np.full((_END + 1, 2), -1), np.full((_END + 1, 2), _END)
    step = np.full((_END + 1, len(ALPHABET)), -1)
    for state, arcs in enumerate(_embedded_arcs()):
        symbol[state] = [ALPHABET.index(name) for name, _ in arcs]  # a lone branch fills both places
        after[state] = [target for _, target in arcs]
        step[state, symbol[state]] = after[state]
    return symbol, after, step


_SYMBOL, _AFTER, _STEP = _tables()


@dataclass(frozen=True)
class EmbeddedReber:
    """E1: predict the next symbol of an embedded Reber string [E1].

    String B, c, (Reber string), c, E with c in {T, P}; input is symbol t and target symbol t+1,
    t = 0..len-2. Symbols are indices into `BEPSTVX`. Shortest string 9 symbols, mean 12; c is needed
    again at least 6 steps later (the paper's "9" is the length of the shortest string, errata 001-36).
    targets "legal": the target is 1 at every symbol that the grammar allows next, not only at the one that follows.

    >>> batch = EmbeddedReber().sample(1, np.random.default_rng(0))
    >>> string = "".join(ALPHABET[s] for s in batch.inputs) + "E"
    >>> string[0], string[1] == string[-2], len(string) >= 9
    ('B', True, True)
    """

    targets: Literal["next", "legal"] = "next"

    def __post_init__(self) -> None:
        check_choice(self, "targets", self.targets, ("next", "legal"))

    @property
    def input_size(self) -> int:
        return len(ALPHABET)

    @property
    def output_size(self) -> int:
        return len(ALPHABET)

    @property
    def minimal_lag(self) -> int:
        return 6

    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n strings from the grammar."""
        check_sample(self, n, rng)
        state, columns = np.zeros(n, np.int64), []
        while (state != _END).any():
            branch = rng.integers(0, 2, n)
            columns.append(_SYMBOL[state, branch])
            state = _AFTER[state, branch]
        strings = np.stack(columns, axis=1)  # (n, longest), -1 after the end
        follows = strings[:, 1:] >= 0
        inputs, targets = strings[:, :-1][follows], strings[:, 1:][follows]
        batch = Ragged(inputs, offsets_of(follows.sum(1)), targets, len(ALPHABET), len(ALPHABET))
        return replace(batch, targets=self.legal(batch).astype(float)) if self.targets == "legal" else batch

    def sets(self, seed: int, size: int = 256) -> tuple[Ragged, Ragged]:
        """A training and a test set of `size` random strings each; no test string is in the training set.

        Both are drawn as the grammar draws, so that a string may occur twice within its set.

        >>> train, test = EmbeddedReber().sets(seed=1)
        >>> len(train), len(test)
        (256, 256)
        """
        check_int(self, "seed", seed, 0)
        check_int(self, "size", size, 1)
        rng = np.random.default_rng(seed)
        train = self.sample(size, rng)
        known, drawn = set(_keys(train)), 8 * size
        while True:
            pool = self.sample(drawn, rng)
            fresh = [k for k, key in enumerate(_keys(pool)) if key not in known]
            if len(fresh) >= size:
                return train, pool.take(np.array(fresh[:size]))
            drawn *= 2

    def legal(self, batch: Ragged) -> np.ndarray:
        """Which symbols the grammar allows next, after each input: (N, 7) bool.

        >>> symbols = np.array([ALPHABET.index(s) for s in "BPBPVVEPE"])
        >>> batch = Ragged(symbols[:-1], np.array([0, 8]), symbols[1:], 7, 7)
        >>> ["".join(np.array(list(ALPHABET))[row]) for row in EmbeddedReber().legal(batch)]
        ['PT', 'B', 'PT', 'TV', 'PV', 'E', 'P', 'E']
        """
        if batch.inputs.ndim != 1 or batch.input_size != len(ALPHABET):
            found = f"{batch.inputs.dtype} of width {batch.input_size}"
            raise ValueError(f"EmbeddedReber: batch must hold symbols of width 7, got {found}")
        state, after = np.zeros(len(batch), np.int64), np.empty(len(batch.inputs), np.int64)
        start, lengths = batch.offsets[:-1], batch.lengths
        for t in range(lengths.max()):
            active = np.flatnonzero(lengths > t)
            rows = start[active] + t
            state[active] = after[rows] = _STEP[state[active], batch.inputs[rows]]
            if (state < 0).any():
                found = f"an illegal symbol at step {t} of sequence {np.argmin(state)}"
                raise ValueError(f"EmbeddedReber: batch must hold grammatical strings, got {found}")
        return _STEP[after] >= 0


def _keys(batch: Ragged) -> list[bytes]:
    """Each string as bytes, to be looked up in a set (every string ends in E, so the inputs identify the string)."""
    return [batch.inputs[a:b].tobytes() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
