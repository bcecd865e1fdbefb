"""CLIP: learn.Online's clipping by the global norm, against autograd through time and torch's clipping."""

import pytest
import torch
from helpers import DEFAULTS, randn, same
from torch import nn

import longlag as ll
from longlag.learn import RTRL, Online, squared_error

STEPS = 6


def networks():
    """A layer and its read-out; the same weights at every call."""
    torch.manual_seed(3)
    return ll.Elman(3, 4, **DEFAULTS), nn.Linear(4, 2, dtype=torch.float64)


def parameters(layer, readout):
    return [*layer.parameters(), *readout.parameters()]


def online(clip, loss=squared_error):
    """One update by learn.Online at the end of a sequence: the change of every weight, and the learner."""
    layer, readout = networks()
    before = [p.detach().clone() for p in parameters(layer, readout)]
    sgd = torch.optim.SGD(parameters(layer, readout), lr=1.0)
    learner = Online(layer, readout, loss, RTRL(), sgd, every=STEPS, clip=clip)
    for x_t, target in zip(randn(STEPS, 2, 3, seed=1), randn(STEPS, 2, 2, seed=2)):
        learner.step(x_t, target)
    return [was - p.detach() for was, p in zip(before, parameters(layer, readout))], learner


def by_torch(clip):
    """The same update by autograd through time and torch.nn.utils.clip_grad_norm_: gradients and their norm ν."""
    layer, readout = networks()
    output = readout(layer(randn(STEPS, 2, 3, seed=1))[0])
    squared_error(output, randn(STEPS, 2, 2, seed=2)).backward()
    norm = nn.utils.clip_grad_norm_(parameters(layer, readout), clip)
    return [p.grad for p in parameters(layer, readout) if p.grad is not None], float(norm)


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_the_global_norm_is_that_of_torch():
    gradients, norm = by_torch(torch.inf)
    changes, learner = online(clip=None)
    same(changes, gradients)
    assert learner.gradient_norm == pytest.approx(norm, rel=1e-12)
    assert float(flat(changes).norm()) == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("limit", [0.1, 1.0, 100.0])
def test_gradients_above_the_limit_are_scaled_down_to_it(limit):
    gradients, norm = by_torch(limit)
    changes, learner = online(clip=limit)
    clipped = norm > limit
    assert clipped == (limit < 100)  # both cases are met
    same(changes, [g * (1 + 1e-6 / norm) for g in gradients] if clipped else gradients)  # torch divides by ν + 1e-6
    assert float(flat(changes).norm()) == pytest.approx(min(norm, limit), rel=1e-12)
    assert learner.gradient_norm == pytest.approx(norm, rel=1e-12)  # ν is reported as it was before clipping


def test_clipping_keeps_the_direction():
    whole, clipped = flat(online(clip=None)[0]), flat(online(clip=0.5)[0])
    assert abs(float(torch.cosine_similarity(whole, clipped, 0)) - 1) < 1e-12
    assert torch.cosine_similarity(whole, whole.clamp(-0.1, 0.1), 0) < 0.99  # clamping each entry does not


class Multiply(torch.autograd.Function):
    """The identity; its gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx, y, factor):
        ctx.factor = factor
        return y.clone()

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0] * ctx.factor, None


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_an_update_with_a_norm_that_is_not_finite_is_skipped(bad):
    changes, learner = online(1.0, loss=lambda y, target: squared_error(Multiply.apply(y, bad), target))
    assert not torch.isfinite(torch.tensor(learner.gradient_norm))
    assert float(flat(changes).abs().max()) == 0
    assert (learner.skipped, learner.updates) == (1, 0)
