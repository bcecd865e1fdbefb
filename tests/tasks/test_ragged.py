"""The ragged batch: its checks, its dense and padded forms, and picking sequences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longlag.tasks import Ragged


def build(lengths, vectors, every, seed=0):
    """A batch of given lengths with random contents: vectors or symbols in, every step or the end scored."""
    rng = np.random.default_rng(seed)
    offsets = np.array([0, *np.cumsum(lengths)])
    steps, n = offsets[-1], len(lengths)
    return Ragged(
        rng.normal(size=(steps, 3)) if vectors else rng.integers(0, 3, steps),
        offsets,
        rng.integers(0, 4, steps) if every else rng.normal(size=(n, 4)),
        input_size=3,
        output_size=4,
        labels=np.arange(n),
    )


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.booleans(), st.booleans(), st.booleans())
def test_padded_equals_packed(lengths, vectors, every, batch_first):
    batch = build(lengths, vectors, every)
    x, targets, sizes = batch.padded(batch_first=batch_first, dtype=torch.float64)
    assert sizes.tolist() == lengths == batch.lengths.tolist()
    assert x.dtype == torch.float64
    x = x if batch_first else x.transpose(0, 1)
    assert x.shape == (len(lengths), max(lengths), 3)
    if every:
        assert targets.dtype == torch.int64
        targets = targets if batch_first else targets.transpose(0, 1)
        assert targets.shape == (len(lengths), max(lengths))
    else:
        assert targets.dtype == torch.float64
        assert np.array_equal(targets.numpy(), batch.targets)
    for k, length in enumerate(lengths):
        for t in range(max(lengths)):
            row = batch.offsets[k] + t
            vector = np.zeros(3)
            if t < length and vectors:
                vector = batch.inputs[row]
            elif t < length:
                vector[batch.inputs[row]] = 1.0
            assert np.array_equal(x[k, t].numpy(), vector)
            if every:
                assert targets[k, t] == (batch.targets[row] if t < length else -100)


def test_padding_of_targets_is_what_cross_entropy_ignores():
    batch = build([4, 1, 2], vectors=False, every=True)
    _, targets, _ = batch.padded()
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3, 4)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    logs = logits.log_softmax(-1)
    rows = [(t, k, batch.offsets[k] + t) for k in range(3) for t in range(batch.lengths[k])]
    naive = -sum(logs[t, k, batch.targets[row]].item() for t, k, row in rows)
    assert loss.item() == pytest.approx(naive, rel=1e-12)


def test_padded_is_float32_by_default_and_owns_its_memory():
    batch = build([2, 3], vectors=True, every=False)
    kept = batch.inputs.copy(), batch.targets.copy()
    x, targets, _ = batch.padded()
    assert x.dtype == targets.dtype == torch.float32
    x, targets, _ = batch.padded(dtype=torch.float64)
    x += 1
    targets += 1
    assert np.array_equal(batch.inputs, kept[0])
    assert np.array_equal(batch.targets, kept[1])


def test_dense_is_one_hot():
    batch = build([2, 3], vectors=False, every=False)
    dense = batch.dense()
    assert dense.dtype == np.float64
    assert np.array_equal(dense.argmax(1), batch.inputs)
    assert np.array_equal(np.sort(dense, 1), np.tile([0.0, 0.0, 1.0], (5, 1)))
    vectors = build([2, 3], vectors=True, every=False)
    assert np.array_equal(vectors.dense(), vectors.inputs)


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.booleans(), st.booleans(), st.data())
def test_take_picks_whole_sequences(lengths, vectors, every, data):
    batch = build(lengths, vectors, every)
    n = len(lengths)
    which = np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=8)))
    taken = batch.take(which)
    assert taken.labels is not None
    assert taken.labels.tolist() == (which % n).tolist()
    for j, k in enumerate(which % n):
        old, new = slice(*batch.offsets[k : k + 2]), slice(*taken.offsets[j : j + 2])
        assert np.array_equal(taken.inputs[new], batch.inputs[old])
        assert np.array_equal(taken.targets[new if every else j], batch.targets[old if every else k])


def test_take_keeps_noise_free_targets():
    offsets, targets = np.array([0, 1, 3]), np.array([[1.0], [2.0]])
    batch = Ragged(np.zeros((3, 1)), offsets, targets, 1, 1, noise_free=targets + 5)
    assert batch.take(np.array([1])).clean_targets.tolist() == [[7.0]]
    assert batch.take(np.array([1])).targets.tolist() == [[2.0]]


def test_take_keeps_noise_free_targets_of_every_step():
    targets = np.array([3, 1, 0, 2, 2])
    batch = Ragged(np.zeros((5, 1)), np.array([0, 1, 3, 5]), targets, 1, 4, noise_free=3 - targets)
    taken = batch.take(np.array([2, 1]))
    assert taken.targets.tolist() == [2, 2, 1, 0]
    assert taken.clean_targets.tolist() == [1, 1, 2, 3]


def test_clean_targets_are_the_targets_unless_given():
    batch = build([2, 3], vectors=True, every=False)
    assert batch.clean_targets is batch.targets


SOUND = {
    "inputs": np.array([0, 1, 2]),
    "offsets": np.array([0, 2, 3]),
    "targets": np.zeros((2, 1)),
    "input_size": 3,
    "output_size": 1,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"inputs": [0, 1]}, "Ragged: inputs must be a numpy array, got [0, 1]"),
        ({"labels": [0, 1]}, "Ragged: labels must be a numpy array, got [0, 1]"),
        (
            {"inputs": np.zeros((3, 2))},
            "Ragged: inputs must be (3, 3) float64 or (3,) int64, got (3, 2) float64",
        ),
        (
            {"inputs": np.zeros((3, 3), np.float32)},
            "Ragged: inputs must be (3, 3) float64 or (3,) int64, got (3, 3) float32",
        ),
        ({"inputs": np.array([0, 3, 1])}, "Ragged: inputs must be symbols in 0..2, got 0..3"),
        ({"inputs": np.array([0, -1, 1])}, "Ragged: inputs must be symbols in 0..2, got -1..1"),
        (
            {"targets": np.zeros((4, 1))},
            "Ragged: targets must be (2, 1) float64 or (3, 1) float64 or (3,) int64, got (4, 1) float64",
        ),
        ({"targets": np.array([0, 0, 1])}, "Ragged: targets must be symbols in 0..0, got 0..1"),
        (
            {"offsets": np.array([0.0, 3.0])},
            "Ragged: offsets must be (n+1,) int64 with n >= 1, got (2,) float64",
        ),
        ({"offsets": np.array([0])}, "Ragged: offsets must be (n+1,) int64 with n >= 1, got (1,) int64"),
        (
            {"offsets": np.array([0, 2, 4])},
            "Ragged: offsets must rise strictly from 0 to 3, the rows of inputs, got [0 2 4]",
        ),
        (
            {"offsets": np.array([0, 3, 3])},
            "Ragged: offsets must rise strictly from 0 to 3, the rows of inputs, got [0 3 3]",
        ),
        (
            {"offsets": np.array([1, 2, 3])},
            "Ragged: offsets must rise strictly from 0 to 3, the rows of inputs, got [1 2 3]",
        ),
        ({"labels": np.array([0, 1, 2])}, "Ragged: labels must be (2,) int64, got (3,) int64"),
        ({"labels": np.array([0.0, 1.0])}, "Ragged: labels must be (2,) int64, got (2,) float64"),
        (
            {"noise_free": np.zeros((1, 1))},
            "Ragged: noise_free must be (2, 1) float64, got (1, 1) float64",
        ),
    ],
)
def test_refusals(change, text):
    Ragged(**SOUND)
    with pytest.raises((ValueError, TypeError)) as caught:
        Ragged(**{**SOUND, **change})
    assert str(caught.value) == text


def test_vectors_as_targets_of_every_step():
    targets = np.arange(6.0).reshape(3, 2)
    batch = Ragged(np.array([2, 0, 1]), np.array([0, 2, 3]), targets, 3, 2)
    assert batch.scored == "every"
    assert batch.take(np.array([1, 0])).targets.tolist() == targets[[2, 0, 1]].tolist()
    _, padded, lengths = batch.padded(dtype=torch.float64)
    assert lengths.tolist() == [2, 1]
    assert padded[:, 0].tolist() == targets[:2].tolist()
    assert padded[0, 1].tolist() == targets[2].tolist()
    assert padded[1, 1].isnan().all()
