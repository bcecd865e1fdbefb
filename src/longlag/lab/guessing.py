"""Random weight guessing: nets are drawn until one classifies a whole training set. NumPy alone, many nets at once.

Letters: W (G, n, d + n + 1) weights of G nets, sources [x(t), y(t−1), 1], units hidden first, then outputs; within a
step the hidden units come first, and the outputs see their new activations.
"""

import copy
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from longlag.lab.learners import GuessingLearner
from longlag.lab.models import SequenceErrors, tested
from longlag.tasks import Ragged

NETS_AT_ONCE = 1024  # records do not depend on it


def sigmoid(x: NDArray) -> NDArray:
    """The logistic function, without overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def connected(learner: GuessingLearner) -> NDArray:
    """True where a weight exists, (n, d + n + 1)."""
    hidden, outputs, d = learner.hidden, learner.output_size, learner.input_size
    units = hidden + outputs
    mask = np.ones((units, d + units + 1), bool)
    if learner.connections == "all":
        mask[hidden:, -1] = False  # no biases at the outputs
        return mask
    among = mask[:, d:-1]
    among[:hidden, :hidden] = np.eye(hidden, dtype=bool)
    among[hidden:, hidden:] = ~np.eye(outputs, dtype=bool)
    return mask


def run_nets(W: NDArray, hidden: int, x: NDArray) -> Iterator[NDArray]:
    """y(t) of the outputs (G, B, d_out) step by step, in one array that each step overwrites; x (T, B, d)."""
    nets, units, sources = W.shape
    d = sources - units - 1
    z = np.zeros((nets, x.shape[1], sources))  # [x, y, 1]
    z[..., -1] = 1
    inner, outer = W[:, :hidden].transpose(0, 2, 1), W[:, hidden:].transpose(0, 2, 1)
    for x_t in x:
        z[..., :d] = x_t
        z[..., d : d + hidden] = sigmoid(z @ inner)
        z[..., d + hidden : -1] = sigmoid(z @ outer)
        yield z[..., d + hidden : -1]


class GuessingModel:
    """The net drawn last. Training teaches it nothing; `draw` gives new ones."""

    def __init__(self, learner: GuessingLearner, rng: np.random.Generator) -> None:
        self.learner, self.rng, self.connected = learner, rng, connected(learner)
        self.W = self.draw(1)[0]

    def draw(self, nets: int) -> NDArray:
        """So many nets, (G, n, d + n + 1), uniform in ±reach."""
        reach = self.learner.reach
        return self.rng.uniform(-reach, reach, (nets, *self.connected.shape)) * self.connected

    def train(self, batch: Ragged) -> SequenceErrors:
        return self.test(batch)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        outputs = self.outputs(batch)
        return tested(outputs[batch.offsets[1:] - 1] if last or batch.scored == "end" else outputs, batch, last)

    def outputs(self, batch: Ragged) -> NDArray:
        longest, sequence = int(batch.lengths.max()), np.repeat(np.arange(len(batch)), batch.lengths)
        step = np.arange(len(batch.inputs)) - batch.offsets[sequence]
        x = np.zeros((longest, len(batch), batch.input_size))
        x[step, sequence] = batch.dense()
        y = np.stack([y_t[0].copy() for y_t in run_nets(self.W[None], self.learner.hidden, x)])
        return y[step, sequence]

    def copy(self) -> "GuessingModel":
        return copy.deepcopy(self)


def classified(W: NDArray, hidden: int, batch: Ragged, bound: float) -> tuple[NDArray, NDArray, NDArray]:
    """Show each net the sequences up to its first wrong one: how many it saw, whether all were right, mean |error|."""
    seen, total = np.zeros(len(W), int), np.zeros(len(W))
    left, x = np.arange(len(W)), batch.dense()
    for k, target in enumerate(batch.clean_targets):
        *_, y = run_nets(W[left], hidden, x[batch.offsets[k] : batch.offsets[k + 1], None])
        error = np.abs(y[:, 0] - target)  # (nets left, d_out)
        seen[left] += 1
        total[left] += error.mean(1)
        left = left[(error < bound).all(1)]
        if not len(left):
            break
    return seen, np.isin(np.arange(len(W)), left), total / seen
