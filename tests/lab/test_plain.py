"""The dense competitors' compiled loops against autograd and against the rules of `learn`."""

import numpy as np
import pytest
import torch

import longlag as ll
from longlag.lab import plain_cpu
from longlag.lab.learners import PlainLearner
from longlag.lab.models import PlainModel
from longlag.lab.trials import build
from longlag.tasks import EmbeddedReber

NETS = {
    "fully recurrent": PlainLearner(7, 3, 7, "rtrl", 0.1, readout=False),
    "one hidden unit": PlainLearner(7, 1, 7, "bptt", 0.1, direct=True),
    "hidden units": PlainLearner(7, 5, 7, "rtrl", 0.1),
}
every_net = pytest.mark.parametrize("learner", NETS.values(), ids=NETS)


def batch(n, seed=0):
    return EmbeddedReber().sample(n, np.random.default_rng(seed))


def outputs(W, V, learner, symbols):
    """y(t) = σ(W [x, y(t−1)]), then the outputs, in torch."""
    d, y, out = learner.input_size, torch.zeros(learner.units, dtype=W.dtype), []
    for symbol in symbols:
        y = torch.sigmoid(W[:, symbol] + W[:, d:] @ y)
        if learner.readout:
            net = y @ V[-learner.units :] + (V[symbol] if learner.direct else 0)
            out.append(torch.sigmoid(net))
        else:
            out.append(y[: learner.output_size])
    return torch.stack(out)


def gradients(learner, model, data):
    """Autograd of ½ Σ (y − ŷ)² over one sequence, and its outputs."""
    W, V = (torch.tensor(w, requires_grad=True) for w in (model.W, model.V))
    y = outputs(W, V, learner, data.inputs)
    wanted = torch.eye(learner.output_size, dtype=y.dtype)[data.targets]
    ((y - wanted) ** 2).sum().div(2).backward()
    assert W.grad is not None
    return W.grad.numpy(), np.zeros_like(model.V) if V.grad is None else V.grad.numpy(), y.detach().numpy()


def learned(rule, model, data, lr=1.0, flag=False):
    """By how much a rule of the laboratory changes the weights, over −lr."""
    W, V, errors = model.W.copy(), model.V.copy(), np.empty((len(data), 3))
    given = (lr, flag, errors) if rule == "rtrl" else (lr, errors)
    getattr(plain_cpu, rule)(W, V, data.inputs, data.offsets, data.targets, *given)
    return (model.W - W) / lr, (model.V - V) / lr, errors


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)


@every_net
def test_outputs_are_the_equations(learner):
    model, data = PlainModel(learner, np.random.default_rng(1)), batch(1)
    close(model.outputs(data), gradients(learner, model, data)[2])


@every_net
def test_rtrl_and_bptt_give_the_exact_gradient(learner):
    model, data = PlainModel(learner, np.random.default_rng(1)), batch(1)
    dW, dV, y = gradients(learner, model, data)
    for rule in ("rtrl", "bptt"):
        found = learned(rule, model, data)
        close(found[0], dW)
        close(found[1], dV)
        wrong = np.abs(y - np.eye(7)[data.targets])
        close(found[2][0], [wrong.max(), wrong.mean(), (wrong**2).sum()])


def test_the_fully_recurrent_net_agrees_with_the_rules_of_learn():
    learner = NETS["fully recurrent"]
    model, data = PlainModel(learner, np.random.default_rng(1)), batch(1)
    layer = ll.Recurrent(ll.cells.rnn97, 7, 10, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("weight_ih_l0").copy_(torch.tensor(model.W[:, :7]))
        layer.get_parameter("weight_hh_l0").copy_(torch.tensor(model.W[:, 7:]))
    rule, state = ll.learn.RTRL(), None
    trace, total = rule.start(layer, 1), {"weight_ih_l0": 0, "weight_hh_l0": 0}
    for symbol, target in zip(data.inputs, data.targets):
        y, state, trace = rule.step(layer, torch.eye(7, dtype=torch.float64)[symbol][None], state, trace)
        error = torch.zeros_like(y)
        error[0, :7] = y[0, :7] - torch.eye(7, dtype=torch.float64)[target]
        grads = rule.gradients(layer, trace, error)
        total = {key: total[key] + grads[key].detach().numpy() for key in total}
    found = learned("rtrl", model, data)[0]
    close(found, np.concatenate([total["weight_ih_l0"], total["weight_hh_l0"]], axis=1))


def test_updates_per_step_and_per_sequence():
    learner = NETS["fully recurrent"]
    model, data = PlainModel(learner, np.random.default_rng(1)), batch(3)
    W = model.W.copy()
    for k in range(3):
        step = PlainModel(learner, np.random.default_rng(1))
        step.W = W.copy()
        W -= 0.5 * gradients(learner, step, data.take(np.array([k])))[0]
    close(model.W - 0.5 * learned("rtrl", model, data, 0.5)[0], W)
    assert np.abs(learned("rtrl", model, data, 0.5, True)[0] - learned("rtrl", model, data, 0.5)[0]).max() > 1e-4
    one = data.take(np.array([0]))
    short = type(one)(one.inputs[:1], np.array([0, 1]), one.targets[:1], 7, 7)
    close(learned("rtrl", model, short, 0.5, True)[0], learned("rtrl", model, short, 0.5)[0])


@every_net
def test_test_errors_come_from_the_outputs(learner):
    model, data = PlainModel(learner, np.random.default_rng(1)), batch(5)
    wrong = np.abs(model.outputs(data) - np.eye(7)[data.targets])
    whole, last = model.test(data), model.test(data, last=True)
    for k, (a, b) in enumerate(zip(data.offsets[:-1], data.offsets[1:])):
        close([whole.largest[k], whole.mean[k]], [wrong[a:b].max(), wrong[a:b].mean()])
        close(whole.squared[k], (wrong[a:b] ** 2).sum())
        close([last.largest[k], last.mean[k]], [wrong[b - 1].max(), wrong[b - 1].mean()])


def test_each_rule_has_its_kernel():
    data = batch(2)
    for learner in NETS.values():
        model = build(learner, np.random.default_rng(1))
        assert isinstance(model, PlainModel)
        before = PlainModel(learner, np.random.default_rng(1))
        model.train(data)
        close(before.W - model.W, 0.1 * learned(learner.rule, before, data, 0.1)[0])
