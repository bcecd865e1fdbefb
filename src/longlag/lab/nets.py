"""Learners as networks of the library: a layer, its output units, a learning rule, and the weights they start with."""

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from longlag import cells
from longlag.cells import Cell
from longlag.lab.learners import CellLearner, Learner, LSTM97Learner, PlainLearner
from longlag.layers import LSTM97, Layer, Recurrent, State
from longlag.learn import RTRL, Rule, TruncatedRTRL

GROUPS = {"hid": "hidden", "ig": "gates", "og": "gates", "cell": "cells", "out": "output"}
DOUBLE = torch.float64
Weights = dict[str, NDArray]


class Reset97(LSTM97):
    """An `LSTM97` whose fed-back activations are not 0 before a sequence."""

    def __init__(self, initial: float, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial = initial

    def initial_state(self, batch: int) -> State:
        y, s = self.state_spec.zeros(batch, self.any_weight)
        return y + self.initial, s


class Net(nn.Module):
    """A layer, a read-out (None: the layer's output is the answer), and how the layer learns.

    Attributes:
        softmax: the answer is read through a softmax, and the loss is the cross-entropy.
        weights: by name, as arrays that share the parameters' memory.
    """

    def __init__(self, layer: Layer, readout: nn.Module | None, rule: Rule, softmax: bool = False) -> None:
        super().__init__()
        self.layer, self.readout, self.rule, self.softmax = layer, readout, rule, softmax
        self.weights = {name.removeprefix("layer."): p.detach().numpy() for name, p in self.named_parameters()}

    def load(self, weights: Weights) -> None:
        """Take these weights."""
        for name, value in self.weights.items():
            value[...] = weights[name]


def net_of(learner: Learner) -> Net:
    """The network that a learner describes, in float64; under BPTT and Adam in float32, as is usual."""
    if isinstance(learner, LSTM97Learner):
        return Net(lstm97(learner), None, TruncatedRTRL(), softmax=learner.network.output == "softmax")
    if isinstance(learner, PlainLearner):  # errors stop at the copy of the context: truncated RTRL
        return Net(elman(learner), None, TruncatedRTRL())
    assert isinstance(learner, CellLearner), "guessing has no network of the library"
    cell = cell_named(learner.cell)
    dtype = torch.float32 if learner.rule == "bptt" else DOUBLE
    layer = Recurrent(cell, learner.input_size, learner.hidden, dtype=dtype)
    outputs: list[nn.Module] = [nn.Linear(learner.hidden, learner.output_size, dtype=dtype)]
    outputs += [nn.Sigmoid()] * (learner.output == "logistic")
    return Net(layer, nn.Sequential(*outputs), TruncatedRTRL() if cell.dense else RTRL())


def lstm97(learner: LSTM97Learner) -> LSTM97:
    """The layer of an LSTM-1997 learner."""
    n = learner.network
    return Reset97(
        learner.initial, n.input_size, n.blocks, n.block_size, n.hidden_units, n.output_size,
        output_gates=n.output_gates, recurrent=n.recurrent,
        input_to_output=n.input_to_output, bias={GROUPS[name] for name in learner.biases},
        g=n.g, h=n.h, output="linear" if n.output == "softmax" else n.output, dtype=DOUBLE,
    )  # fmt: skip


def elman(learner: PlainLearner) -> LSTM97:
    """Elman's net of 1997, logistic and without biases: an `LSTM97` with hidden units only."""
    return LSTM97(
        learner.input_size, 0, hidden_units=learner.hidden, output_size=learner.output_size,
        input_to_output=learner.direct, bias=False, dtype=DOUBLE,
    )  # fmt: skip


@cache
def cell_named(name: str) -> Cell:
    """A cell of the library by its name, or the user's own by "module:name"."""
    module, colon, attribute = name.rpartition(":")
    if not colon:
        known = [each for each in dir(cells) if isinstance(getattr(cells, each), Cell)]
        if name not in known:
            raise ValueError(f"reproduce: cell must be one of {known} or 'module:cell', got {name!r}")
        return getattr(cells, name)
    try:
        cell = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"reproduce: cell must be 'module:cell' that can be imported, got {name!r} ({error})"
        ) from None
    if not isinstance(cell, Cell):
        raise ValueError(f"reproduce: cell must be made by @longlag.cell, got {name!r}, a {type(cell).__name__}")
    return cell


def initial_weights(learner: Learner, rng: np.random.Generator) -> Weights:
    """Uniform in ±reach; stated gate biases are constants, and so are the params of a cell. [LSTM-97 4]"""
    uniform = lambda shape: rng.uniform(-learner.reach, learner.reach, shape)  # noqa: E731
    if isinstance(learner, LSTM97Learner):
        weights = {name: uniform(shape) for name, shape in learner.shapes().items()}
        for name, value in (("bias_ig", learner.input_gate_bias), ("bias_og", learner.output_gate_bias)):
            if value and name in weights:
                weights[name] = np.array(value)
        return weights
    if isinstance(learner, CellLearner):
        net, cell = net_of(learner), cell_named(learner.cell)
        params = {f"{name}_l0" for name in cell.params}
        weights = {name: value if name in params else uniform(value.shape) for name, value in net.weights.items()}
        for gate, value in learner.gate_bias:
            place = slice(cell.gates.index(gate) * learner.hidden, (cell.gates.index(gate) + 1) * learner.hidden)
            for name in {"bias_ih_l0", "bias_hh_l0"} & set(weights):
                weights[name][place] = value if name == "bias_ih_l0" else 0.0
        return weights
    assert isinstance(learner, PlainLearner)
    n, d = learner.units, learner.input_size
    return {"weight_hid": uniform((n, d + n)), "weight_out": uniform((learner.direct * d + n, learner.output_size)).T}


def with_blocks(learner: LSTM97Learner, blocks: int) -> LSTM97Learner:
    """The same learner with another number of blocks, and without gate biases of its own."""
    network = replace(learner.network, blocks=blocks)
    return replace(learner, network=network, input_gate_bias=(), output_gate_bias=(), construction=None)
