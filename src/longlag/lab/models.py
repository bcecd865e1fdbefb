"""Learners at work: weights drawn from a generator, then trained and tested on packed blocks of sequences."""

import copy
from dataclasses import asdict
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from longlag.engines.cpu.online97 import train as online97
from longlag.lab import plain_cpu
from longlag.lab.learners import Architecture, LSTM97Learner, PlainLearner
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


def last_steps(batch: Ragged) -> NDArray:
    """True at the last step of each sequence, (N,)."""
    mask = np.zeros(len(batch.inputs), np.bool_)
    mask[batch.offsets[1:] - 1] = True
    return mask


def initial_weights(learner: LSTM97Learner, rng: np.random.Generator) -> dict[str, NDArray]:
    """Uniform in ±reach; stated gate biases are constants. [LSTM-97 4]"""
    weights = {name: rng.uniform(-learner.reach, learner.reach, shape) for name, shape in learner.shapes().items()}
    for name, value in (("bias_ig", learner.input_gate_bias), ("bias_og", learner.output_gate_bias)):
        if value and name in weights:
            weights[name] = np.array(value)
    return weights


class LSTM97Model:
    """LSTM-1997 under truncated RTRL. `network` is the network in use; its weights have the engine's layout."""

    def __init__(self, learner: LSTM97Learner, rng: np.random.Generator) -> None:
        self.learner = learner
        self.use(learner.network, initial_weights(learner, rng))

    def use(self, network: Architecture, weights: dict[str, NDArray]) -> None:
        """Go on with this network and these weights (names and shapes as in `LSTM97Learner.shapes`)."""
        self.network, self.kernel_network = network, online97.Network(**asdict(network))
        self.weights = online97.pack(self.kernel_network, weights)

    def public_weights(self) -> dict[str, NDArray]:
        """Copies of the weights by name."""
        return online97.unpack(self.kernel_network, self.weights)

    def train(self, batch: Ragged) -> SequenceErrors:
        own = self.learner
        errors = online97.train(
            self.kernel_network, self.weights, batch.inputs, batch.offsets, batch.targets,
            lr=own.lr, update=own.update, initial=own.initial,
        )  # fmt: skip
        return SequenceErrors(*errors[:3])

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        return SequenceErrors(*self._evaluate(batch, mask=last_steps(batch) if last else None)[:3])

    def outputs(self, batch: Ragged) -> NDArray:
        kept = self._evaluate(batch, outputs=True).outputs
        assert kept is not None
        return kept

    def copy(self) -> "LSTM97Model":
        twin = copy.copy(self)
        twin.weights = self.weights._replace(units=self.weights.units.copy(), out=self.weights.out.copy())
        return twin

    def _evaluate(self, batch: Ragged, *, mask: NDArray | None = None, outputs: bool = False) -> online97.Errors:
        return online97.evaluate(
            self.kernel_network, self.weights, batch.inputs, batch.offsets, batch.clean_targets,
            initial=self.learner.initial, mask=mask, outputs=outputs,
        )  # fmt: skip


class PlainModel:
    """A net without memory cells."""

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
            plain_cpu.bptt(self.W, self.V, *block, own.lr, own.rule == "bptt", errors)
        return SequenceErrors(*errors.T)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        return errors_of(self.outputs(batch), batch, last)

    def outputs(self, batch: Ragged) -> NDArray:
        kept = np.empty((len(batch.inputs), batch.output_size))
        plain_cpu.observe(self.W, self.V, batch.inputs, batch.offsets, kept)
        return kept

    def copy(self) -> "PlainModel":
        return copy.deepcopy(self)


def errors_of(outputs: NDArray, batch: Ragged, last: bool) -> SequenceErrors:
    """Errors of the outputs (N, d_out) of all steps against the noise-free targets; last: of the last steps only."""
    targets = batch.clean_targets
    wanted = np.eye(batch.output_size)[targets] if targets.ndim == 1 else targets
    if batch.scored == "end" or last:
        ends = batch.offsets[1:] - 1
        wrong = np.abs(outputs[ends] - (wanted if batch.scored == "end" else wanted[ends]))  # (n, d_out)
        return SequenceErrors(wrong.max(1), wrong.mean(1), (wrong**2).sum(1))
    wrong, starts = np.abs(outputs - wanted), batch.offsets[:-1]
    mean = np.add.reduceat(wrong.mean(1), starts) / batch.lengths
    return SequenceErrors(np.maximum.reduceat(wrong.max(1), starts), mean, np.add.reduceat((wrong**2).sum(1), starts))
