"""A task as a torch dataset: batches, workers, refusals."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from longlag.tasks import Adding, Copy, EmbeddedReber, dataset


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for left, right in zip(a, b) for x, y in zip(left, right))


@pytest.mark.parametrize("task", [Adding(T=30), Copy(T=5), EmbeddedReber()], ids=str)
def test_batches_are_padded_samples(task):
    batches = list(dataset(task, size=10, batch_size=4, seed=5))
    expected = [task.sample(n, np.random.default_rng([5, k])).padded() for k, n in enumerate((4, 4, 2))]
    assert equal(batches, expected)


@pytest.mark.parametrize(("size", "sizes"), [(1, [1]), (4, [4]), (5, [4, 1]), (8, [4, 4])])
def test_a_pass_holds_size_sequences(size, sizes):
    assert [len(lengths) for _, _, lengths in dataset(Adding(T=30), size, 4, seed=0)] == sizes


def test_passes_repeat_and_seeds_and_batches_differ():
    stream = dataset(Adding(T=30), 8, 4, seed=0)
    assert equal(list(stream), list(stream))
    assert not equal(list(stream), list(dataset(Adding(T=30), 8, 4, seed=1)))
    first, second = stream
    assert not equal([first], [second])


def test_endless():
    batches = list(islice(dataset(Adding(T=30), None, 2, seed=0), 50))
    assert len(batches) == 50
    assert equal(batches[:4], list(dataset(Adding(T=30), 8, 2, seed=0)))
    assert len({float(target[0, 0]) for _, target, _ in batches}) == 50


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_share_one_stream(workers):
    """Each batch once, in the same order, however many workers draw them."""
    stream = dataset(Adding(T=30), 11, 2, seed=3)
    assert equal(list(DataLoader(stream, batch_size=None, num_workers=workers)), list(stream))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((Adding, 8, 2, 0), f"dataset: task must be a task such as Adding(T=100), got {Adding!r}"),
        (("adding", 8, 2, 0), "dataset: task must be a task such as Adding(T=100), got 'adding'"),
        ((Adding(T=30), 0, 2, 0), "dataset: size must be an int >= 1, got 0"),
        ((Adding(T=30), 8.0, 2, 0), "dataset: size must be an int >= 1, got 8.0"),
        ((Adding(T=30), 8, 0, 0), "dataset: batch_size must be an int >= 1, got 0"),
        ((Adding(T=30), 8, 2, -1), "dataset: seed must be an int >= 0, got -1"),
    ],
)
def test_refusals(arguments, text):
    with pytest.raises((ValueError, TypeError)) as caught:
        dataset(*arguments)
    assert str(caught.value) == text


def test_a_model_of_torch_runs_on_it():
    """Batch, time and width stand where torch.nn expects them; one step of descent lowers the error."""
    torch.manual_seed(0)
    model, readout = torch.nn.LSTM(2, 8), torch.nn.Linear(8, 1)
    x, target, lengths = next(iter(dataset(Adding(T=30), None, 16, seed=0)))

    def loss():
        y, _ = model(x)
        return ((readout(y[lengths - 1, torch.arange(16)]) - target) ** 2).mean()

    optimizer = torch.optim.SGD([*model.parameters(), *readout.parameters()], lr=0.1)
    before = loss()
    before.backward()
    optimizer.step()
    assert loss().item() < before.item()
