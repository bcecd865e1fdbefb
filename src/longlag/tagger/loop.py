"""The training loop: epochs, averaged weights, checkpoints. Interrupted training gives the same numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from longlag.tagger import folder as folders
from longlag.tagger.batches import Batch, Corpus, shuffled
from longlag.tagger.model import Tagger

LONGEST_BATCH = 4096  # padded words
CLIP = 5.0  # largest norm of the gradient of the mean loss per word
WARM_UP = 0.05  # share of the training over which the rate rises
AVERAGE = 0.999  # decay of the averaged weights per update
BETAS = (0.9, 0.99)
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's state of a parameter


class World(NamedTuple):
    """Processes that train together, and which of them this is."""

    rank: int = 0
    size: int = 1

    def rows(self, sentences: int) -> tuple[slice, int]:
        """This process's share of a batch and its weight; an empty share is one sentence of weight 0."""
        share = slice(self.rank * sentences // self.size, (self.rank + 1) * sentences // self.size)
        return (share, 1) if share.start < share.stop else (slice(0, 1), 0)


class Loop:
    """The state of a training: tagger, averaged weights, optimiser, epochs done.

    Args:
        tagger: what is trained.
        corpus: on what.
        batch_size: sentences of an update.
        rate: highest learning rate; it rises over the first twentieth of training, then falls to 0.
        epochs: passes over the corpus.
        world: the processes that share every batch.
    """

    def __init__(
        self, tagger: Tagger, corpus: Corpus, *, batch_size: int, rate: float, epochs: int, world: World | None = None
    ) -> None:
        self.tagger, self.corpus, self.world = tagger, corpus, world or World()
        self.batch_size, self.rate, self.epochs = batch_size, rate, epochs
        self.averaged = copy.deepcopy(tagger).eval()
        self.model = DistributedDataParallel(tagger) if self.world.size > 1 else tagger
        self.optimizer = torch.optim.Adam(tagger.parameters(), lr=rate, betas=BETAS, fused=True)
        self.epoch = self.updates = self.best_epoch = 0
        self.best = -1.0

    @property
    def epochs_without_progress(self) -> int:
        """Epochs since the best one; 0 as long as no epoch has scored above 0, as F1 does before the first span."""
        return self.epoch - self.best_epoch if self.best > 0 else 0

    def run_epoch(self, watch: Callable[[int, int], None]) -> float:
        """One pass over the corpus; returns the mean loss per word. ``watch`` gets batches done and their number."""
        groups = shuffled(self.corpus.lengths, self.batch_size, LONGEST_BATCH)
        total, words = 0.0, 0
        self.tagger.train()
        for k, chosen in enumerate(groups):
            batch = self.corpus.batch(chosen)
            loss = self.backward(batch)
            if not math.isfinite(loss):
                raise ValueError(f"tagger: the loss is {loss} in epoch {self.epoch + 1}; try a lower rate")
            self._update((self.epoch + (k + 0.5) / len(groups)) / self.epochs)
            total, words = total + loss, words + int(batch.lengths.sum())
            watch(k + 1, len(groups))
        self.epoch += 1
        return self.summed(total) / words

    def backward(self, batch: Batch) -> float:
        """Gradients of the mean loss per word of the whole batch, the same in every process; this one's loss."""
        self.optimizer.zero_grad(set_to_none=True)
        noise = self.tagger.network.draw(batch)
        rows, weight = self.world.rows(len(batch.lengths))
        loss = self.model(batch.rows(rows), noise.rows(rows)) * weight
        (loss * (self.world.size / int(batch.lengths.sum()))).backward()  # processes' gradients are averaged
        return float(loss.detach())

    @torch.no_grad()
    def _update(self, progress: float) -> None:
        gradients = [p.grad for p in self.tagger.parameters() if p.grad is not None]
        norm = float(get_total_norm(gradients))
        if norm > CLIP:
            for gradient in gradients:
                gradient.mul_(CLIP / norm)
        self.optimizer.param_groups[0]["lr"] = self.rate * min(1.0, progress / WARM_UP) * (1 - progress)
        self.optimizer.step()
        keep = min(AVERAGE, (self.updates + 1) / (self.updates + 10))  # young averages forget faster
        for mean, value in zip(self.averaged.parameters(), self.tagger.parameters()):
            mean.lerp_(value, 1 - keep)
        self.updates += 1

    # ---------------------------------------------------------------------------------------------- checkpoints
    def write(self, folder: Path) -> None:
        """Write a checkpoint: weights, averages, the optimiser's moments, the random generator's state."""
        tensors: dict[str, Tensor] = {"generator": torch.get_rng_state()}
        averages = dict(self.averaged.named_parameters())
        for name, p in self.tagger.named_parameters():
            state = self.optimizer.state.get(p, {})
            moments = {moment: state[moment] for moment in MOMENTS if moment in state}
            for kind, value in {"weight": p, "average": averages[name], **moments}.items():
                tensors[f"{kind}/{name}"] = value
        notes = {"epoch": self.epoch, "updates": self.updates, "best": self.best, "best_epoch": self.best_epoch}
        folders.write_tensors(folder / folders.CHECKPOINT, tensors, **notes)

    def read(self, folder: Path) -> None:
        """Continue bit for bit from where `write` was called."""
        path = folder / folders.CHECKPOINT
        tensors, notes = folders.read_tensors(path)
        kinds: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            kinds.setdefault(kind, {})[name] = value
        folders.fit(self.tagger, kinds["weight"], path)
        folders.fit(self.averaged, kinds["average"], path)
        for name, p in self.tagger.named_parameters():
            if "step" in kinds:
                self.optimizer.state[p] = {moment: kinds[moment][name] for moment in MOMENTS}
        torch.set_rng_state(tensors["generator"])
        self.epoch, self.updates, self.best, self.best_epoch = (
            notes[name] for name in ("epoch", "updates", "best", "best_epoch")
        )

    def summed(self, value: float) -> float:
        """The sum of all processes' values."""
        if self.world.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(shared)
        return float(shared)

    def agreed(self, value: float) -> float:
        """The first process's value, in all of them."""
        if self.world.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(shared, 0)
        return float(shared)


@contextmanager
def reproducible() -> Iterator[None]:
    """Deterministic algorithms and a random state of our own; the caller's settings are restored."""
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=warn)
