"""Copy, delayed XOR and parity: targets recomputed from the inputs."""

import numpy as np
import pytest

from longlag.tasks import Copy, DelayedXOR, Parity


def split(batch):
    return [batch.inputs[a:b] for a, b in zip(batch.offsets[:-1], batch.offsets[1:])]


@pytest.mark.parametrize(("T", "symbols", "length"), [(1, 2, 1), (1, 3, 4), (5, 8, 10), (100, 8, 10), (7, 4, 2)])
def test_copy(T, symbols, length):
    n = 200
    batch = Copy(T, symbols, length).sample(n, np.random.default_rng(0))
    assert batch.scored == "every"
    blank, signal = symbols, symbols + 1
    for read, told in zip(split(batch), batch.targets.reshape(n, -1)):
        text = read[:length].tolist()
        assert read.tolist() == [*text, *[blank] * (T - 1), signal, *[blank] * length]
        assert told.tolist() == [*[blank] * (T + length), *text]
        assert set(text) <= set(range(symbols))
    counts = np.bincount(batch.targets)[:symbols]
    assert abs(counts - n * length / symbols).max() < 5 * np.sqrt(n * length / symbols)


def test_copy_defaults_are_those_of_the_literature():
    task = Copy(T=100)
    assert (task.input_size, task.output_size) == (10, 9)
    assert task.sample(1, np.random.default_rng(0)).lengths.tolist() == [120]


@pytest.mark.parametrize("T", [10, 39, 100])
def test_delayed_xor(T):
    batch = DelayedXOR(T).sample(1500, np.random.default_rng(0))
    assert batch.labels is not None
    firsts, seconds = set(), set()
    for rows, (target,), label in zip(split(batch), batch.targets, batch.labels):
        assert set(rows[:, 0]) <= {-1.0, 1.0}
        assert set(rows[:, 1]) <= {0.0, 1.0}
        i1, i2 = np.flatnonzero(rows[:, 1] == 1)
        assert target == label == (rows[i1, 0] * rows[i2, 0] == -1)
        firsts.add(int(i1))
        seconds.add(int(i2))
    assert firsts == set(range(T // 10))
    assert seconds == set(range(T // 2, T // 2 + T // 10))


def test_delayed_xor_needs_both_bits():
    """Neither bit alone tells the answer, and values are balanced."""
    batch = DelayedXOR(40).sample(4000, np.random.default_rng(1))
    bits = batch.inputs[batch.inputs[:, 1] == 1, 0].reshape(4000, 2)
    answer = 2 * batch.targets[:, 0] - 1
    assert abs((bits * answer[:, None]).mean(0)).max() < 5 / np.sqrt(4000)
    assert abs(batch.inputs[:, 0].mean()) < 5 / np.sqrt(len(batch.inputs))


@pytest.mark.parametrize("T", [1, 2, 30])
def test_parity(T):
    batch = Parity(T).sample(600, np.random.default_rng(0))
    assert batch.labels is not None
    for rows, (target,), label in zip(split(batch), batch.targets, batch.labels):
        assert set(rows[:, 0]) <= {-1.0, 1.0}
        assert target == label == (np.prod(-rows[:, 0]) == -1)
    assert abs(batch.inputs.mean()) < 5 / np.sqrt(len(batch.inputs))
