"""Sequences of unequal lengths from the workers of a ``DataLoader``; alone, or in several processes under ``torchrun``.

    python examples/with_processes.py [--workers 2]
    torchrun --standalone --nproc-per-node 2 examples/with_processes.py

The first step of a sequence shows which of two symbols to remember; the last step must say it. A worker makes a batch:
it pads the sequences and gives their ``lengths``, which is all that a layer needs. Under torchrun each process takes
its share of the sequences, and ``DistributedDataParallel`` averages the gradients.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import longlag as ll

Sample = tuple[Tensor, int]


class Recall(Dataset[Sample]):
    """Noise of 5 to 30 steps, whose first step is marked by 1 or −1."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Sample:
        generator = torch.Generator().manual_seed(number)  # a sample depends on its number, not on the process
        x = torch.randn(int(torch.randint(5, 31, (), generator=generator)), 2, generator=generator) / 2
        symbol = int(torch.randint(2, (), generator=generator))
        x[:, 1] = 0
        x[0, 1] = 2 * symbol - 1
        return x, symbol


def collate(samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded inputs (T, B, 2), lengths (B,), symbols (B,)."""
    xs, symbols = zip(*samples)
    return pad_sequence(list(xs)), torch.tensor([len(x) for x in xs]), torch.tensor(symbols)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = ll.LSTM(2, 16, forget_bias=2.0), nn.Linear(16, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y, _ = self.layer(x, lengths=lengths)
        return self.head(y[lengths - 1, torch.arange(len(lengths))])


def train(workers: int, count: int, epochs: int) -> tuple[float, float]:
    """The share of right answers in the last epoch, and the largest difference of a weight among the processes."""
    torch.manual_seed(0)
    data, several = Recall(count), distributed.is_initialized()
    sampler = DistributedSampler(data) if several else None
    loader = DataLoader(data, 32, sampler=sampler, shuffle=sampler is None, num_workers=workers, collate_fn=collate)
    model = DistributedDataParallel(Model()) if several else Model()
    optimizer, right = torch.optim.Adam(model.parameters(), lr=1e-2), torch.zeros(2)
    for epoch in range(epochs):
        right.zero_()
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, lengths, symbols in loader:
            logits = model(x, lengths)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, symbols).backward()
            optimizer.step()
            right += torch.tensor([(logits.argmax(-1) == symbols).sum(), len(symbols)])
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    largest = weights.clone()
    if several:
        distributed.all_reduce(right)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        distributed.all_reduce(weights, distributed.ReduceOp.MIN)
    return float(right[0] / right[1]), float((largest - weights).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="of each process's DataLoader")
    parser.add_argument("--count", type=int, default=2000, help="sequences")
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        distributed.init_process_group("gloo")
    right, difference = train(asked.workers, asked.count, asked.epochs)
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{processes} processes: {right:.1%} right; weights differ by {difference:.0e} among them")
    if processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
