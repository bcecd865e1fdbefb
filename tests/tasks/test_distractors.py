"""E2a, E2b, E2c: contents, statistics, and errata 001-21 to 001-26."""

from math import comb

import numpy as np
import pytest

from longlag.tasks import Distractors, LongLag, NoiseFree


def split(batch):
    return [batch.inputs[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:])]


@pytest.mark.parametrize("p", [2, 3, 10, 100])
def test_noise_free_has_two_sequences(p):
    """[E2a] and errata 001-21: elements 0..p, the last one is seq(p), so p steps are read, not p+1."""
    batch = NoiseFree(p).sample(300, np.random.default_rng(0))
    alpha, beta, middle = p - 1, p, list(range(p - 1))
    assert batch.scored == "every"
    assert batch.labels is not None
    targets = batch.targets.reshape(300, p).tolist()
    seen = set()
    for read, told, label in zip(split(batch), targets, batch.labels):
        x = (alpha, beta)[label]
        assert [*read, told[-1]] == [x, *middle, x]
        assert told == [*middle, x]
        assert len(read) == p
        seen.add(x)
    assert seen == {alpha, beta}


@pytest.mark.parametrize("p", [2, 3, 10])
def test_distractors(p):
    """[E2b] and errata 001-22: the middle is c_1..c_{p-1} equally often, never alpha or beta."""
    n = 3000
    batch = Distractors(p).sample(n, np.random.default_rng(0))
    read, told = batch.inputs.reshape(n, p), batch.targets.reshape(n, p)
    assert np.array_equal(read[:, 1:], told[:, :-1])
    assert np.array_equal(read[:, 0], told[:, -1])
    assert np.array_equal(read[:, 0], p - 1 + batch.labels)
    counts = np.bincount(read[:, 1:].ravel(), minlength=p + 1)
    assert counts[p - 1 :].tolist() == [0, 0]
    expected = n * (p - 1) / (p - 1)
    assert abs(counts[: p - 1] - expected).max() < 5 * np.sqrt(expected)


def test_distractors_have_no_local_regularities():
    batch = Distractors(6).sample(4000, np.random.default_rng(0))
    middle = batch.inputs.reshape(4000, 6)[:, 1:]
    for a, b in ((0, 1), (1, 2), (0, 4)):
        joint = np.histogram2d(middle[:, a], middle[:, b], bins=5)[0]
        assert abs(joint - 4000 / 25).max() < 5 * np.sqrt(4000 / 25)


@pytest.mark.parametrize(("q", "p"), [(1, 1), (5, 3), (50, 50)])
def test_long_lag_contents(q, p):
    """[E2c] and errata 001-26: steps 0..q+k+2 are read, the recalled symbol would be element q+k+3."""
    batch = LongLag(q, p).sample(500, np.random.default_rng(0))
    assert batch.scored == "end"
    for read, target in zip(split(batch), batch.targets.tolist()):
        b, x, *middle, e = read
        assert (b, e) == (p + 1, p)
        assert len(middle) >= q
        assert set(middle) <= set(range(p))
        assert target == [float(x == p + 2), float(x == p + 3)]
        assert sum(target) == 1
        k = len(middle) - q
        full = [*read, x]
        assert len(full) - 1 == q + k + 3
        assert len(full) - 1 != 2 + q + k + 2  # as printed


@pytest.mark.parametrize(("p", "weights"), [(50, 364), (100, 664), (1000, 6064)])
def test_long_lag_alphabet_gives_the_published_weight_counts(p, weights):
    """Errata 001-23: Table 3's counts need p distractors; p - 1 of them give another net."""
    assert LongLag(5, p).input_size == p + 4

    def count(
        d_in,
    ):  # two blocks of one cell, no biases: cells and gates see d_in + 6 sources, 2 outputs 2 cells
        return 6 * (d_in + 6) + 2 * 2

    assert count(LongLag(5, p).input_size) == weights
    assert count(p + 3) != weights


@pytest.mark.parametrize(("q", "p"), [(50, 50), (20, 5)])
def test_long_lag_statistics(q, p):
    """Errata 001-24: mean length q + 13, each distractor (q + 9) / p times; not q + 14, (q + 10) / p."""
    n = 40000
    batch = LongLag(q, p).sample(n, np.random.default_rng(1))
    length = batch.lengths + 1  # with the recalled symbol
    assert length.min() == q + 4
    error = length.std() / np.sqrt(n)
    assert abs(length.mean() - (q + 13)) < 4 * error
    assert abs(length.mean() - (q + 14)) > 15 * error
    occurrences = np.bincount(batch.inputs, minlength=p + 4)[:p] / n
    assert abs(occurrences.mean() - (q + 9) / p) < 4 * error / p
    assert abs(occurrences.mean() - (q + 10) / p) > 15 * error / p
    variance = (q + 9) / p + 90 / p**2  # binomial given k, and Var(k) = 90
    assert abs(occurrences - (q + 9) / p).max() < 5 * np.sqrt(variance / n)


def test_long_lag_waits_geometrically():
    """[E2c] P(k) = 0.1 * 0.9^k; the printed probability 1/10 of going on would give 0.9 * 0.1^k."""
    n = 50000
    k = LongLag(3, 4).sample(n, np.random.default_rng(2)).lengths - 6
    for value in range(12):
        expected = n * 0.1 * 0.9**value
        assert abs((k == value).sum() - expected) < 5 * np.sqrt(expected)
    assert (k == 0).mean() < 0.2


def test_sums_behind_the_statistics():
    """Errata 001-24, 001-25: sum k x^k = x / (1-x)^2, and the binomial mean needs its factor i."""
    x, k = 0.9, np.arange(2000)
    assert (k * x**k).sum() == pytest.approx(x / (1 - x) ** 2, rel=1e-12)
    assert (k * x**k).sum() != pytest.approx(1 / (1 - x) ** 2, rel=1e-2)
    n, p = 59, 50
    terms = [comb(n, i) * (1 / p) ** i * (1 - 1 / p) ** (n - i) for i in range(n + 1)]
    assert sum(i * term for i, term in enumerate(terms)) == pytest.approx(n / p, rel=1e-12)
    assert sum(terms) == pytest.approx(1, rel=1e-12)
