"""E3a, E3b, E3c: contents, noise, and errata 001-27 to 001-31."""

import numpy as np
import pytest

from longlag.tasks import TwoSequence

SIZE = 4000


def draw(N, variant, seed=0, T=30):
    """Batch, the first N inputs (n, N), the later inputs (flat), the sign of each sequence (n,)."""
    batch = TwoSequence(T, N, variant).sample(SIZE, np.random.default_rng(seed))
    x, start = batch.inputs[:, 0], batch.offsets[:-1]
    step = np.arange(len(x)) - np.repeat(start, batch.lengths)
    assert batch.labels is not None
    return batch, x[step < N].reshape(SIZE, N), x[step >= N], np.where(batch.labels == 0, 1.0, -1.0)


def agrees(values, mean, variance):
    """Mean and variance of normal values within five standard errors."""
    return abs(values.mean() - mean) < 5 * np.sqrt(variance / values.size) and abs(
        values.var() - variance
    ) < 5 * variance * np.sqrt(2 / values.size)


@pytest.mark.parametrize("N", [1, 3, 29])
@pytest.mark.parametrize("variant", ["a", "c"])
def test_signal_is_exact(N, variant):
    """[E3a], and errata 001-31: E3c has the inputs of 3a, without noise on the first N."""
    _, head, _, sign = draw(N, variant)
    assert np.array_equal(head, np.repeat(sign[:, None], N, axis=1))


@pytest.mark.parametrize("N", [1, 3])
def test_signal_is_noisy_in_b(N):
    """[E3b] and errata 001-30: the noise on the first N elements is that of 3a."""
    _, head, _, sign = draw(N, "b")
    assert agrees(head - sign[:, None], 0, 0.2)


@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_noise_fills_the_rest(variant):
    """Errata 001-28: noise from index N on, and 0.2 is its variance, not its standard deviation."""
    batch, _, tail, sign = draw(3, variant)
    assert agrees(tail, 0, 0.2)
    assert not agrees(tail, 0, 0.2**2)
    assert len(np.unique(tail)) == len(tail)
    at_n = batch.inputs[batch.offsets[:-1] + 3, 0]  # as printed the noise would begin at N + 1
    assert agrees(at_n, 0, 0.2)
    assert not np.isin(at_n, (-1.0, 1.0)).any()
    assert abs(np.corrcoef(at_n, sign)[0, 1]) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_the_label_does_not_leak(variant):
    """Errata 001-27: 1 and 0 are targets; the last input is noise that says nothing about the class."""
    batch, _, _, sign = draw(3, variant)
    last = batch.inputs[batch.offsets[1:] - 1, 0]
    assert agrees(last, 0, 0.2)
    assert not np.isin(last, (0.0, 1.0)).any()
    assert abs(np.corrcoef(last, sign)[0, 1]) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize("variant", ["a", "b"])
def test_targets(variant):
    batch, _, _, sign = draw(3, variant)
    assert np.array_equal(batch.targets[:, 0], (sign == 1).astype(float))
    assert batch.clean_targets is batch.targets


def test_target_noise():
    """[E3c] and errata 001-31: 0.2 and 0.8 plus N(0, 0.1) on the targets, variance 0.1; clean ones beside."""
    batch, _, tail, sign = draw(3, "c")
    assert np.array_equal(batch.clean_targets[:, 0], np.where(sign == 1, 0.2, 0.8))
    noise = batch.targets - batch.clean_targets
    assert agrees(noise, 0, 0.1)
    assert not agrees(noise, 0, 0.1**2)
    assert not agrees(tail, 0, 0.1)  # printed: the inputs' variance becomes 0.1
    assert abs(np.corrcoef(noise[:, 0], sign)[0, 1]) < 5 / np.sqrt(SIZE)
