"""Learning as is usual today: back-propagation through time over a few sequences at once, and Adam."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longlag.lab.learners import CellLearner
from longlag.lab.models import SequenceErrors, errors_of, tested
from longlag.lab.nets import initial_weights, net_of
from longlag.tasks import Ragged

LONGEST_GRADIENT = 1.0  # norm


class BatchModel:
    """A layer of any cell whose weights Adam changes after every `batch` sequences; tasks scored at the end only."""

    def __init__(self, learner: CellLearner, rng: np.random.Generator) -> None:
        net = net_of(learner)
        net.load(initial_weights(learner, rng))
        assert net.readout is not None
        self.layer, self.readout, self.batch = net.layer, net.readout, learner.batch
        self.parameters = list(net.parameters())
        self.adam = torch.optim.Adam(self.parameters, learner.lr)

    def train(self, batch: Ragged) -> SequenceErrors:
        if batch.scored != "end":
            raise ValueError("trial: rule 'bptt' needs a task scored at the end, got one scored at every step")
        outputs = []
        for start in range(0, len(batch), self.batch):
            piece = batch.take(np.arange(start, min(start + self.batch, len(batch))))
            x, target, lengths = piece.padded()
            y = self.readout(self.layer(x)[0][lengths - 1, torch.arange(len(piece))])
            self.adam.zero_grad()
            ((y - target).square().sum(1).mean() / 2).backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, LONGEST_GRADIENT)
            self.adam.step()
            outputs.append(y.detach())
        return errors_of(torch.cat(outputs).double().numpy(), batch.targets, batch.offsets)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        return tested(self.outputs(batch)[batch.offsets[1:] - 1], batch, last)

    @torch.no_grad()
    def outputs(self, batch: Ragged) -> NDArray:
        x, _, lengths = batch.padded()
        y: Tensor = self.readout(self.layer(x)[0])
        there = torch.arange(len(x)) < lengths[:, None]  # (B, T)
        return y.transpose(0, 1)[there].double().numpy()

    def copy(self) -> "BatchModel":
        return copy.deepcopy(self)
