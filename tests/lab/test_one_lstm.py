"""The laboratory's kernels against the library's layers and rules: the same errors and the same weights, float64.

A trial could be run by either. Both learn several sequences, with updates after every step or after every sequence.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import longlag as ll
from longlag.engines.cpu.online97 import train as online97
from longlag.lab.beyond import claims
from longlag.lab.learners import LSTM97Learner, PlainLearner
from longlag.lab.models import LSTM97Model, PlainModel
from longlag.lab.profiles import paper
from longlag.tasks import Ragged

GROUPS = {"hid": "hidden", "ig": "gates", "og": "gates", "cell": "cells", "out": "output"}
OFFSETS = np.array([0, 4, 5, 13])  # a sequence of one step among them


def distinct(kind):
    """The learners of all experiments, one of each network and rule: sizes of the data do not matter here."""
    found = {}
    for experiment in (*paper(), *claims()):
        own = experiment.learner
        if isinstance(own, LSTM97Learner):
            small = replace(own.network, input_size=min(own.network.input_size, 3), output_size=1)
            same = replace(own, network=small, lr=1.0, reach=1.0, input_gate_bias=(), construction=None)
            same = replace(same, output_gate_bias=())
        elif isinstance(own, PlainLearner):
            same = replace(own, input_size=1, output_size=1, lr=1.0)
        else:
            continue
        if isinstance(own, kind):
            found.setdefault(same, pytest.param(own, id=experiment.label))
    return list(found.values())


def layer_of(learner):
    """The library's layer with the architecture of a learner, and weights that are large enough to tell."""
    n = learner.network
    return ll.LSTM97(
        n.input_size, n.blocks, n.block_size, n.hidden_units, n.output_size, output_gates=n.output_gates,
        recurrent=n.recurrent, input_to_output=n.input_to_output, bias={GROUPS[name] for name in learner.biases},
        g=n.g, h=n.h, output=n.output, init_range=0.7, dtype=torch.float64,
    )  # fmt: skip


def sequences(learner, symbols, every):
    """Random sequences of the learner's sizes; targets at every step, or at the ends."""
    rng, N, n = np.random.default_rng(1), OFFSETS[-1], len(OFFSETS) - 1
    d, o = (learner.network.input_size, learner.network.output_size) if isinstance(learner, LSTM97Learner) else (
        learner.input_size, learner.output_size)  # fmt: skip
    inputs = rng.integers(0, d, N) if symbols else rng.normal(size=(N, d))
    return Ragged(inputs, OFFSETS, rng.integers(0, o, N) if every else rng.uniform(size=(n, o)), d, o)


def learn_by_rule(layer, readout, rule, data, lr, update, initial=0.0):
    """Train layer and read-out by a rule of `learn`; the errors y − ŷ at the scored steps."""
    x = torch.from_numpy(data.dense())
    wanted = torch.from_numpy(np.eye(data.output_size)[data.targets] if data.scored == "every" else data.targets)
    parameters = dict(layer.named_parameters())
    weights = [*parameters.values(), *readout.parameters()]
    found = []
    for k, (first, end) in enumerate(pairwise(OFFSETS)):
        state = layer.validate_state(None, 1)
        if initial:
            state = (torch.full_like(state[0], initial), state[1])
        trace, total = rule.start(layer, 1), [torch.zeros_like(w) for w in weights]
        kept = []  # BPTT takes the errors of the whole sequence at once
        for t in range(first, end):
            y, state, trace = rule.step(layer, x[t : t + 1], state, trace)
            y.requires_grad_()
            out = readout(x[t : t + 1], y)
            scored = data.scored == "every" or t == end - 1
            if scored:
                error = out - wanted[t if data.scored == "every" else k]
                found.append(error.detach()[0].numpy())
                dy, *outer = torch.autograd.grad((error**2).sum() / 2, [y, *readout.parameters()])
                if rule.deferred:
                    kept.append(dy)
                    inner = [torch.zeros_like(p) for p in parameters.values()]
                else:
                    grads = rule.gradients(layer, trace, dy)
                    inner = [grads[name] for name in parameters]
                total = [a + b for a, b in zip(total, [*inner, *outer])]
            if rule.deferred and t == end - 1:
                grads = rule.gradients(layer, trace, kept)
                total = [a + grads[name] for a, name in zip(total, parameters)] + total[len(parameters) :]
            if (scored and update == "step") or t == end - 1:
                with torch.no_grad():
                    for w, slope in zip(weights, total):
                        w -= lr * slope
                total = [torch.zeros_like(w) for w in weights]
    return np.array(found)


def same_errors(summed, errors, every):
    """Largest, mean and squared error of each sequence (3, n), and the errors (scored steps, outputs)."""
    sequence = np.searchsorted(OFFSETS, np.arange(OFFSETS[-1]), "right") - 1 if every else np.arange(3)
    for k in range(3):
        here = np.abs(errors[sequence == k])
        np.testing.assert_allclose(summed[:, k], [here.max(), here.mean(), (here**2).sum()], rtol=1e-9)


class NoReadout(torch.nn.Module):
    """The layer's output is the prediction."""

    def forward(self, x, y):
        return y


@pytest.mark.parametrize("update", ["sequence", "step"])
@pytest.mark.parametrize("learner", distinct(LSTM97Learner))
def test_the_kernel_is_lstm97_under_truncated_rtrl(learner, update):
    symbols = learner.network.input_size > 2
    layer, model = layer_of(learner), LSTM97Model(learner, np.random.default_rng(0))
    model.use(learner.network, {name: p.detach().numpy() for name, p in layer.named_parameters()})
    for every in (True, False):
        data = sequences(learner, symbols, every)
        errors = online97.train(
            model.kernel_network, model.weights, data.inputs, data.offsets, data.targets, lr=0.3, update=update,
            initial=learner.initial,
        )  # fmt: skip
        found = learn_by_rule(layer, NoReadout(), ll.learn.TruncatedRTRL(), data, 0.3, update, learner.initial)
        same_errors(np.stack(errors[:3]), found, every)
        public = model.public_weights()
        for name, p in layer.named_parameters():
            np.testing.assert_allclose(public[name], p.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


class Plain97(torch.nn.Module):
    """The read-out of a plain net, without biases: from [x if direct; y], or the first units."""

    def __init__(self, learner, V):
        super().__init__()
        self.learner = learner
        if learner.readout:
            self.V = torch.nn.Parameter(torch.tensor(V))

    def forward(self, x, y):
        if not self.learner.readout:
            return y[:, : self.learner.output_size]
        return torch.sigmoid((torch.cat([x, y], 1) if self.learner.direct else y) @ self.V)


RULES = {"rtrl": ll.learn.RTRL(), "bptt": ll.learn.BPTT(), "elman": ll.learn.TruncatedRTRL()}


@pytest.mark.parametrize("learner", distinct(PlainLearner))
def test_the_plain_nets_are_recurrent_layers_under_the_rules(learner):
    """Elman's rule, whose errors stop at the copy of the context, is truncated RTRL."""
    model = PlainModel(replace(learner, reach=0.7, lr=0.3), np.random.default_rng(0))
    layer = ll.Recurrent(ll.cells.rnn97, learner.input_size, learner.units, bias=False, dtype=torch.float64)
    readout = Plain97(learner, model.V)
    inner = dict(layer.named_parameters())
    with torch.no_grad():
        inner["weight_ih_l0"].copy_(torch.from_numpy(model.W[:, : learner.input_size]))
        inner["weight_hh_l0"].copy_(torch.from_numpy(model.W[:, learner.input_size :]))
    data = sequences(learner, symbols=True, every=True)
    errors = model.train(data)
    found = learn_by_rule(layer, readout, RULES[learner.rule], data, 0.3, learner.update)
    same_errors(np.stack(errors), found, True)
    weights = torch.cat([inner["weight_ih_l0"], inner["weight_hh_l0"]], 1).detach().numpy()
    np.testing.assert_allclose(model.W, weights, rtol=1e-9, atol=1e-12)
    for V in readout.parameters():
        np.testing.assert_allclose(model.V, V.detach().numpy(), rtol=1e-9, atol=1e-12)
