"""The laboratory's networks in compiled code against the rules of `learn`: the same errors and the same weights.

Both learn several sequences, with updates after every step or after every sequence, in float64.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from longlag.lab import hs97
from longlag.lab.beyond import claims
from longlag.lab.learners import CellLearner, LSTM97Learner
from longlag.lab.models import LayerModel
from longlag.lab.nets import net_of
from longlag.lab.profiles import paper
from longlag.tasks import Ragged

OFFSETS = np.array([0, 4, 5, 13])  # a sequence of one step among them


def distinct():
    """The learners of all experiments, one of each network and rule: sizes of the data do not matter here."""
    found = {}
    for experiment in (*paper(), *claims()):
        own = experiment.learner
        if isinstance(own, LSTM97Learner):
            small = replace(own.network, input_size=min(own.network.input_size, 3), output_size=1)
            same = replace(own, network=small, lr=1.0, reach=1.0, input_gate_bias=(), construction=None)
            same = replace(same, output_gate_bias=())
            found.setdefault(same, pytest.param(own, id=experiment.label))
    return list(found.values())


def sequences(learner, symbols, every):
    """Random sequences of the learner's sizes; targets at every step, or at the ends."""
    rng, N, n = np.random.default_rng(1), OFFSETS[-1], len(OFFSETS) - 1
    d, o = (learner.network.input_size, learner.network.output_size) if isinstance(learner, LSTM97Learner) else (
        learner.input_size, learner.output_size)  # fmt: skip
    inputs = rng.integers(0, d, N) if symbols else rng.normal(size=(N, d))
    return Ragged(inputs, OFFSETS, rng.integers(0, o, N) if every else rng.uniform(size=(n, o)), d, o)


def answer(net, out):
    """What a network answers: its outputs, through a softmax if it learns by cross-entropy."""
    return torch.softmax(out, -1) if net.softmax else out


def learn_by_rule(net, data, learner):
    """Train a network by its rule, step by step in Python; the errors y − ŷ at the scored steps."""
    layer, rule, readout = net.layer, net.rule, net.readout or torch.nn.Identity()
    x = torch.from_numpy(data.dense())
    wanted = torch.from_numpy(np.eye(data.output_size)[data.targets] if data.scored == "every" else data.targets)
    parameters = dict(layer.named_parameters())
    weights = [*parameters.values(), *readout.parameters()]
    found = []
    for k, (first, end) in enumerate(pairwise(OFFSETS)):
        state, trace = layer.validate_state(None, 1), rule.start(layer, 1)
        total = [torch.zeros_like(w) for w in weights]
        for t in range(first, end):
            y, state, trace = rule.step(layer, x[t : t + 1], state, trace)
            y.requires_grad_()
            out = answer(net, readout(y))
            scored = data.scored == "every" or t == end - 1
            if scored:
                error = out - wanted[t if data.scored == "every" else k]
                found.append(error.detach()[0].numpy())
                loss = -(wanted[t] * out.log()).sum() if net.softmax else (error**2).sum() / 2
                dy, *outer = torch.autograd.grad(loss, [y, *readout.parameters()])
                grads = rule.gradients(layer, trace, dy)
                inner = [grads[name] for name in parameters]
                total = [a + b for a, b in zip(total, [*inner, *outer])]
            if (scored and learner.update == "step") or t == end - 1:
                with torch.no_grad():
                    for w, slope in zip(weights, total):
                        w -= learner.lr * slope
                total = [torch.zeros_like(w) for w in weights]
    return np.array(found)


def same_errors(summed, errors, every):
    """Largest, mean and squared error of each sequence (3, n), and the errors (scored steps, outputs)."""
    sequence = np.searchsorted(OFFSETS, np.arange(OFFSETS[-1]), "right") - 1 if every else np.arange(3)
    for k in range(3):
        here = np.abs(errors[sequence == k])
        np.testing.assert_allclose(summed[:, k], [here.max(), here.mean(), (here**2).sum()], rtol=1e-9)


def answers(net, data):
    """Outputs at all steps, by the layer's own steps."""
    kept = []
    for first, end in pairwise(OFFSETS):
        state = net.layer.validate_state(None, 1)
        for t in range(first, end):
            with torch.no_grad():
                y, state = net.layer.step(torch.from_numpy(data.dense()[t : t + 1]), state)
                kept.append(answer(net, y if net.readout is None else net.readout(y))[0].numpy())
    return np.array(kept)


def check(learner, data):
    """A model of the laboratory and the rule learn the same."""
    model, net = LayerModel(learner, np.random.default_rng(0)), net_of(learner)
    rng = np.random.default_rng(2)
    model.weights = {name: rng.uniform(-0.7, 0.7, value.shape) for name, value in model.weights.items()}
    net.load(model.weights)
    for _ in range(2):
        errors = model.train(data)
        found = learn_by_rule(net, data, learner)
        same_errors(np.stack(errors), found, data.scored == "every")
        for name, value in net.weights.items():
            np.testing.assert_allclose(model.weights[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    outputs = answers(net, data)
    np.testing.assert_allclose(model.outputs(data), outputs, rtol=1e-9)
    ends = model.machine.outputs(model.weights, data, ends=True)
    np.testing.assert_allclose(ends, outputs[OFFSETS[1:] - 1], rtol=1e-9)


@pytest.mark.parametrize("learner", distinct())
def test_lstm97_learns_by_truncated_rtrl(learner):
    symbols = learner.network.input_size > 2
    learner = replace(learner, lr=0.3, construction=None)
    check(learner, sequences(learner, symbols, every=symbols and learner.network.output_size > 2))


@pytest.mark.parametrize("update", ["sequence", "step"])
@pytest.mark.parametrize("symbols", [False, True])
def test_every_kind_of_data_and_update(symbols, update):
    """Targets at every step for numbers, at the ends for symbols: what no experiment has."""
    paper = hs97.experiment_6(2).learner
    assert isinstance(paper, LSTM97Learner)
    learner = replace(paper, lr=0.3, update=update)
    learner = replace(learner, network=replace(learner.network, input_size=8 if symbols else 2))
    check(learner, sequences(learner, symbols, every=not symbols))


def test_elmans_net_learns_by_truncated_rtrl():
    """Errors stop at the copy of the context."""
    learner = replace(hs97.plain_1("ELM", 15).learner, hidden=3, lr=0.3)
    check(learner, sequences(learner, symbols=True, every=True))


@pytest.mark.parametrize(("cell", "output"), [("lstm", "logistic"), ("net_feedback", "linear")])
def test_any_cell_learns_by_its_rule(cell, output):
    """Dense cells by truncated RTRL, local ones exactly."""
    learner = CellLearner(cell, "", 3, 4, 2, reach=0.7, lr=0.3, output=output)
    check(learner, sequences(learner, symbols=True, every=False))
