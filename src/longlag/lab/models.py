"""Learners at work: weights drawn from a generator, then trained and tested on packed blocks; the same four verbs."""

import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from longlag.engines.cpu.online97 import train as online97
from longlag.engines.cpu.online97.train import Errors
from longlag.lab import plain_cpu
from longlag.lab.experiment import Memory, Plain
from longlag.tasks import Ragged


class Model(Protocol):
    """What a trial needs of a learner."""

    def train(self, batch: Ragged) -> Errors:
        """Learn the sequences one after another; the errors of each before its update."""
        ...

    def test(self, batch: Ragged, last: bool = False) -> Errors:
        """Errors against noise-free targets with frozen weights; last: of the last steps only."""
        ...

    def outputs(self, batch: Ragged) -> NDArray:
        """y at every step, (N, d_out)."""
        ...

    def copy(self) -> "Model":
        """The learner as it stands."""
        ...


def last_steps(batch: Ragged) -> NDArray:
    """True at the last step of each sequence, (N,)."""
    mask = np.zeros(len(batch.inputs), np.bool_)
    mask[batch.offsets[1:] - 1] = True
    return mask


def initial_weights(learner: Memory, rng: np.random.Generator) -> dict[str, NDArray]:
    """Uniform in ±reach; stated gate biases are constants. [LSTM-97 4]"""
    weights = {name: rng.uniform(-learner.reach, learner.reach, shape) for name, shape in learner.shapes().items()}
    for name, value in (("bias_ig", learner.input_gate_bias), ("bias_og", learner.output_gate_bias)):
        if value:
            weights[name] = np.array(value)
    return weights


class MemoryModel:
    """LSTM-1997."""

    def __init__(self, learner: Memory, rng: np.random.Generator) -> None:
        self.learner = learner
        self.weights = online97.pack(learner.network, initial_weights(learner, rng))

    def train(self, batch: Ragged) -> Errors:
        own = self.learner
        return online97.train(
            own.network, self.weights, batch.inputs, batch.offsets, batch.targets,
            lr=own.lr, update=own.update, initial=own.initial,
        )  # fmt: skip

    def test(self, batch: Ragged, last: bool = False) -> Errors:
        return self._evaluate(batch, mask=last_steps(batch) if last else None)

    def outputs(self, batch: Ragged) -> NDArray:
        kept = self._evaluate(batch, outputs=True).outputs
        assert kept is not None
        return kept

    def copy(self) -> "MemoryModel":
        twin = copy.copy(self)
        twin.weights = self.weights._replace(units=self.weights.units.copy(), out=self.weights.out.copy())
        return twin

    def _evaluate(self, batch: Ragged, **options) -> Errors:
        network, initial = self.learner.network, self.learner.initial
        return online97.evaluate(
            network, self.weights, batch.inputs, batch.offsets, batch.clean_targets, initial=initial, **options
        )


class GrowingModel(MemoryModel):
    """LSTM-1997 whose memory block is added in the course of learning. [LSTM-97 4]"""

    def __init__(self, learner: Memory, rng: np.random.Generator) -> None:
        super().__init__(learner, rng)
        self.complete, self.seen, self.before = False, 0, np.inf
        public = online97.unpack(learner.network, self.weights)
        self.direct = np.ascontiguousarray(public["weight_out"][:, : learner.network.input_size].T)

    def train(self, batch: Ragged) -> Errors:
        if self.complete:
            return super().train(batch)
        per_step, errors = self.learner.update == "step", np.empty((len(batch), 3))
        lr = self.learner.lr
        plain_cpu.direct(self.direct, batch.inputs, batch.offsets, batch.targets, lr, per_step, errors)
        self._grow(len(batch), errors[:, 1].mean())
        return Errors(*errors.T)

    def test(self, batch: Ragged, last: bool = False) -> Errors:
        return super().test(batch, last) if self.complete else failed(len(batch))

    def _grow(self, sequences: int, error: float) -> None:
        self.seen += sequences
        grow, before, self.before = self.learner.grow, self.before, error
        self.complete = error > 0.99 * before if grow == "plateau" else self.seen >= grow
        if self.complete:
            public = online97.unpack(self.learner.network, self.weights)
            public["weight_out"][:, : self.learner.network.input_size] = self.direct.T
            self.weights = online97.pack(self.learner.network, public)


class PlainModel:
    """A net without memory cells."""

    def __init__(self, learner: Plain, rng: np.random.Generator) -> None:
        self.learner = learner
        n, d = learner.units, learner.input_size
        rows = learner.readout * (learner.direct * d + n)
        self.W = rng.uniform(-learner.reach, learner.reach, (n, d + n))
        self.V = rng.uniform(-learner.reach, learner.reach, (rows, learner.output_size))

    def train(self, batch: Ragged) -> Errors:
        errors, own = np.empty((len(batch), 3)), self.learner
        block = batch.inputs, batch.offsets, batch.targets
        if own.rule == "rtrl":
            plain_cpu.rtrl(self.W, self.V, *block, own.lr, own.update == "step", errors)
        else:
            plain_cpu.bptt(self.W, self.V, *block, own.lr, own.rule == "bptt", errors)
        return Errors(*errors.T)

    def test(self, batch: Ragged, last: bool = False) -> Errors:
        wrong = np.abs(self.outputs(batch) - np.eye(batch.output_size)[batch.targets])  # (N, d_out)
        if last:
            wrong = wrong[batch.offsets[1:] - 1]
        starts = np.arange(len(batch)) if last else batch.offsets[:-1]
        counts = 1 if last else batch.lengths
        mean = np.add.reduceat(wrong.mean(1), starts) / counts
        squared = np.add.reduceat((wrong**2).sum(1), starts)
        return Errors(np.maximum.reduceat(wrong.max(1), starts), mean, squared)

    def outputs(self, batch: Ragged) -> NDArray:
        kept = np.empty((len(batch.inputs), batch.output_size))
        plain_cpu.observe(self.W, self.V, batch.inputs, batch.offsets, kept)
        return kept

    def copy(self) -> "PlainModel":
        return copy.deepcopy(self)


def failed(sequences: int) -> Errors:
    """As wrong as can be: the net is not complete yet."""
    return Errors(*np.full((3, sequences), np.inf))


def build(learner: Memory | Plain, rng: np.random.Generator) -> Model:
    """A fresh learner."""
    if isinstance(learner, Plain):
        return PlainModel(learner, rng)
    return GrowingModel(learner, rng) if learner.grow else MemoryModel(learner, rng)
