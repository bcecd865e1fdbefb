"""E6a, E6b: contents and statistics."""

import numpy as np
import pytest

from longlag.tasks import TemporalOrder

ALPHABET = "abcdEBXY"
WINDOWS = {2: [(10, 20), (50, 60)], 3: [(10, 20), (33, 43), (66, 76)]}
CLASSES = {
    2: ["XX", "XY", "YX", "YY"],
    3: ["XXX", "XXY", "XYX", "XYY", "YXX", "YXY", "YYX", "YYY"],
}
both = pytest.mark.parametrize("symbols", [2, 3])


def texts(batch):
    return ["".join(ALPHABET[s] for s in batch.inputs[a:b]) for a, b in zip(batch.offsets[:-1], batch.offsets[1:])]


@both
def test_contents(symbols):
    """[E6a], [E6b], and errata 001-37: E starts the sequence and B ends it."""
    batch = TemporalOrder(symbols).sample(800, np.random.default_rng(0))
    assert batch.labels is not None
    for text, target, label in zip(texts(batch), batch.targets, batch.labels):
        assert text[0] == "E"
        assert text[-1] == "B"
        places = [t for t, s in enumerate(text) if s in "XY"]
        assert len(places) == symbols
        assert all(low <= t <= high for t, (low, high) in zip(places, WINDOWS[symbols]))
        assert set(text[1:-1]) <= set("abcdXY")
        answer = CLASSES[symbols].index("".join(text[t] for t in places))
        assert target.tolist() == [float(i == answer) for i in range(2**symbols)]
        assert label == answer


@both
def test_positions_and_distractors_are_uniform(symbols):
    n = 6000
    batch = TemporalOrder(symbols).sample(n, np.random.default_rng(1))
    step = np.arange(len(batch.inputs)) - np.repeat(batch.offsets[:-1], batch.lengths)
    for low, high in WINDOWS[symbols]:
        relevant = (batch.inputs >= 6) & (step >= low) & (step <= high)
        counts = np.bincount(step[relevant] - low, minlength=11)
        assert counts.sum() == n
        assert abs(counts - n / 11).max() < 5 * np.sqrt(n / 11)
    letters = np.bincount(batch.inputs[batch.inputs < 4])
    assert abs(letters - letters.mean()).max() < 5 * np.sqrt(letters.mean())


@both
def test_lags_between_relevant_symbols(symbols):
    """At least 30 steps apart in E6a, 13 and 23 in E6b, all of them reached."""
    batch = TemporalOrder(symbols).sample(20000, np.random.default_rng(2))
    step = np.arange(len(batch.inputs)) - np.repeat(batch.offsets[:-1], batch.lengths)
    places = step[batch.inputs >= 6].reshape(20000, symbols)
    assert np.diff(places, axis=1).min(0).tolist() == ([30] if symbols == 2 else [13, 23])
