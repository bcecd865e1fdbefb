"""Learners at work: networks of the library, trained and tested on packed blocks of sequences."""

import copy
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor

from longlag.lab import plain_cpu
from longlag.lab.learners import CellLearner, LSTM97Learner, PlainLearner
from longlag.lab.nets import Weights, initial_weights, net_of
from longlag.learn import Online, StreamError, cross_entropy, squared_error
from longlag.tasks import Ragged


class SequenceErrors(NamedTuple):
    """Errors y − ŷ over the scored outputs of each of n sequences."""

    largest: NDArray  # (n,) max |y − ŷ|
    mean: NDArray  # (n,) mean |y − ŷ|
    squared: NDArray  # (n,) Σ (y − ŷ)²


class Model(Protocol):
    """What a trial needs of a learner."""

    def train(self, batch: Ragged) -> SequenceErrors:
        """Learn the sequences one after another; the errors of each before its update."""
        ...

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        """Errors against noise-free targets with frozen weights; last: of the last steps only."""
        ...

    def outputs(self, batch: Ragged) -> NDArray:
        """y at every step, (N, d_out)."""
        ...

    def copy(self) -> "Model":
        """The learner in its present state, independent of the original."""
        ...


LayerLearner = LSTM97Learner | PlainLearner | CellLearner


class Machine:
    """A network and what trains it. Weights are lent to it for a call, so models of the same learner can share it."""

    def __init__(self, learner: LayerLearner) -> None:
        self.net, self.per_step = net_of(learner), learner.update == "step"
        descent = torch.optim.SGD(self.net.parameters(), learner.lr)
        loss = cross_entropy if self.net.softmax else squared_error
        self.online = Online(self.net.layer, self.net.readout, loss, self.net.rule, descent)
        self.online.plan("cpu")  # the laboratory learns in compiled code, or says why it cannot

    def train(self, weights: Weights, batch: Ragged) -> tuple[Weights, NDArray]:
        """The weights after learning the batch, and the outputs at the scored steps, each before its update.

        Outputs are NaN from the first step on at which a number is not finite.
        """
        self.net.load(weights)
        starts, ends = marks(batch)
        scored = None if batch.scored == "every" else ends
        update = ends if scored is not None or not self.per_step else torch.ones_like(ends)
        targets = torch.from_numpy(batch.targets)
        if self.net.softmax and targets.is_floating_point():
            targets = targets / targets.sum(1, keepdim=True)
        try:
            outputs = self.online.run(
                torch.from_numpy(batch.inputs), targets, reset=starts, scored=scored, update=update
            ).numpy()
        except StreamError as failure:
            outputs = np.full((len(targets), batch.output_size), np.nan)
            outputs[: len(failure.outputs)] = failure.outputs.numpy()
        return {name: value.copy() for name, value in self.net.weights.items()}, self.answers(outputs)

    def outputs(self, weights: Weights, batch: Ragged, ends: bool = False) -> NDArray:
        """The outputs at every step, or at the ends of the sequences."""
        self.net.load(weights)
        starts, last = marks(batch)
        wanted = last if ends else None
        return self.answers(self.online.predict(torch.from_numpy(batch.inputs), reset=starts, wanted=wanted).numpy())

    def answers(self, outputs: NDArray) -> NDArray:
        """The net's answers from what the layer or its read-out puts out."""
        return softmax(outputs, axis=1) if self.net.softmax else outputs


def marks(batch: Ragged) -> tuple[Tensor, Tensor]:
    """True at the first and at the last step of each sequence, (N,) each."""
    starts, ends = (torch.zeros(len(batch.inputs), dtype=torch.bool) for _ in range(2))
    starts[torch.from_numpy(batch.offsets[:-1])] = True
    ends[torch.from_numpy(batch.offsets[1:] - 1)] = True
    return starts, ends


@lru_cache(64)
def machine_of(learner: LayerLearner) -> Machine:
    """The machine of a learner, built once per process."""
    return Machine(learner)


class LayerModel:
    """A network of the library that learns by its rule.

    Attributes:
        weights: by name; they are replaced when the model learns, never changed in place.
        described: the learner whose network the weights fit.
    """

    def __init__(self, learner: LayerLearner, rng: np.random.Generator) -> None:
        self.learner = learner
        self.use(learner, initial_weights(learner, rng))

    def use(self, described: LayerLearner, weights: Weights) -> None:
        """Go on with the network of this learner and these weights."""
        self.described, self.weights = described, weights

    @property
    def machine(self) -> Machine:
        """What runs the network."""
        return machine_of(self.described)

    def train(self, batch: Ragged) -> SequenceErrors:
        self.weights, outputs = self.machine.train(self.weights, batch)
        return errors_of(outputs, batch.targets, batch.offsets)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        return tested(self.machine.outputs(self.weights, batch, last or batch.scored == "end"), batch, last)

    def outputs(self, batch: Ragged) -> NDArray:
        return self.machine.outputs(self.weights, batch)

    def copy(self) -> Self:
        return copy.copy(self)


class PlainModel:
    """A net without memory cells under RTRL or BPTT."""

    def __init__(self, learner: PlainLearner, rng: np.random.Generator) -> None:
        self.learner = learner
        n, d = learner.units, learner.input_size
        rows = learner.readout * (learner.direct * d + n)
        self.W = rng.uniform(-learner.reach, learner.reach, (n, d + n))
        self.V = rng.uniform(-learner.reach, learner.reach, (rows, learner.output_size))

    def train(self, batch: Ragged) -> SequenceErrors:
        errors, own = np.empty((len(batch), 3)), self.learner
        block = batch.inputs, batch.offsets, batch.targets
        if own.rule == "rtrl":
            plain_cpu.rtrl(self.W, self.V, *block, own.lr, own.update == "step", errors)
        else:
            plain_cpu.bptt(self.W, self.V, *block, own.lr, errors)
        return SequenceErrors(*errors.T)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        outputs = self.outputs(batch)
        return tested(outputs[batch.offsets[1:] - 1] if last else outputs, batch, last)

    def outputs(self, batch: Ragged) -> NDArray:
        kept = np.empty((len(batch.inputs), batch.output_size))
        plain_cpu.observe(self.W, self.V, batch.inputs, batch.offsets, kept)
        return kept

    def copy(self) -> "PlainModel":
        return copy.deepcopy(self)


def tested(outputs: NDArray, batch: Ragged, last: bool) -> SequenceErrors:
    """Errors against the noise-free targets; outputs of the last steps if only these count, else of all."""
    targets, ends = batch.clean_targets, batch.offsets[1:] - 1
    only_ends = last and batch.scored == "every"
    return errors_of(outputs, targets[ends] if only_ends else targets, batch.offsets)


def errors_of(outputs: NDArray, targets: NDArray, offsets: NDArray) -> SequenceErrors:
    """Errors of the outputs (·, d_out) against targets: one row per sequence, or one per step. `outputs` is used up."""
    wrong = outputs
    if targets.ndim == 1:
        wrong[np.arange(len(targets)), targets] -= 1
    else:
        wrong -= targets
    np.abs(wrong, out=wrong)
    found = wrong.max(1), wrong.mean(1), np.einsum("no,no->n", wrong, wrong)
    if len(wrong) == len(offsets) - 1:
        return SequenceErrors(*found)
    starts, lengths = offsets[:-1], np.diff(offsets)
    largest, mean, squared = (f.reduceat(v, starts) for f, v in zip((np.maximum, np.add, np.add), found))
    return SequenceErrors(largest, mean / lengths, squared)
