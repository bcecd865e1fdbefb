"""A task as a torch dataset, to train and measure any model on it."""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from longlag.tasks._draw import check_int
from longlag.tasks.ragged import Task

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def dataset(task: Task, size: int | None, batch_size: int, seed: int) -> IterableDataset[Batch]:
    """Padded batches (x (T, B, input_size), target, lengths (B,)) of a task; see `Ragged.padded`.

    Batch k is drawn from a generator of its own, seeded by (seed, k): any number of workers of a
    `DataLoader(..., batch_size=None)` yields the same batches in the same order, and each pass repeats them.

    Args:
        task: any task of this module.
        size: number of sequences in a pass, or None for an endless stream.
        batch_size: sequences in a batch; the last batch of a pass holds what is left.
        seed: a non-negative int.

    >>> from longlag.tasks import Adding
    >>> for x, target, lengths in dataset(Adding(T=50), size=5, batch_size=3, seed=0):
    ...     print(x.shape[1:], target.shape, lengths.shape)
    torch.Size([3, 2]) torch.Size([3, 1]) torch.Size([3])
    torch.Size([2, 2]) torch.Size([2, 1]) torch.Size([2])
    """
    if isinstance(task, type) or not isinstance(task, Task):
        raise TypeError(f"dataset: task must be a task such as Adding(T=100), got {task!r}")
    if size is not None:
        check_int("dataset", "size", size, 1)
    check_int("dataset", "batch_size", batch_size, 1)
    check_int("dataset", "seed", seed, 0)
    return _Stream(task, size, batch_size, seed)


class _Stream(IterableDataset[Batch]):
    def __init__(self, task: Task, size: int | None, batch_size: int, seed: int) -> None:
        self.task, self.size, self.batch_size, self.seed = task, size, batch_size, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        batches = count() if self.size is None else range(-(-self.size // self.batch_size))
        for k in islice(batches, first, None, stride):
            left = self.batch_size if self.size is None else self.size - k * self.batch_size
            rng = np.random.default_rng([self.seed, k])
            yield self.task.sample(min(self.batch_size, left), rng).padded()
