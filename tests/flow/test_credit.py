"""Credit of a loss to earlier inputs and states, against autograd on re-run pieces."""

import helpers
import pytest
import torch
from torch import nn

import longlag as ll
from longlag import flow


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


T, B = 5, 2


def by_autograd(layer, x, loss):
    """[t, s] norms of ∂L_t/∂x(s) and ∂L_t/∂(state that step s reads), each from a run that starts at s."""
    inputs, states = torch.zeros(T, T, B, dtype=torch.float64), torch.zeros(T, T, B, dtype=torch.float64)
    axis, outputs = helpers.batch_axis(layer), layer(x)[0].detach()
    for s in range(T):
        state = layer(x[:s])[1] if s else helpers.whole(helpers.rest(layer, B))
        leaves = [part.detach().requires_grad_() for part in helpers.parts(state)]
        x_s = x[s].clone().requires_grad_()
        tail, _ = layer(torch.cat([x_s.unsqueeze(0), x[s + 1 :]]), helpers.whole(leaves))
        losses = loss(torch.cat([outputs[:s], tail]))
        for t in range(s, T):
            dx, *ds = torch.autograd.grad(
                losses[t].sum(), [x_s, *leaves], retain_graph=True, allow_unused=True, materialize_grads=True
            )
            inputs[t, s] = dx.norm(dim=-1)
            flat = [d.movedim(axis, 0).flatten(1) for d in ds]
            states[t, s] = torch.cat(flat, 1).norm(dim=1) if flat else 0
    return inputs, states


@pytest.mark.parametrize("name", [n for n in helpers.ONE_WAY if n != "jordan_argmax"])
def test_credit_is_the_gradient(name):
    layer, x = make(name), helpers.randn(T, B, 3)
    target = helpers.randn(*layer(x)[0].shape, seed=7)

    def loss(y):
        return (y - target).square().sum(-1)

    credit = flow.gradient_by_lag(layer, x, loss)
    inputs, states = by_autograd(layer, x, loss)
    helpers.same(credit.inputs, inputs, "inputs", 1e-10)
    helpers.same(credit.states, states, "states", 1e-10)


def test_a_loss_may_read_several_steps_through_a_readout():
    layer, readout = make("gru"), nn.Linear(4, 2, dtype=torch.float64)
    x = helpers.randn(T, B, 3)

    def loss(y):  # each step is scored together with the one before
        z = readout(y)
        return (z + torch.cat([torch.zeros_like(z[:1]), z[:-1]])).square().sum(-1)

    credit = flow.gradient_by_lag(layer, x, loss)
    inputs, states = by_autograd(layer, x, loss)
    helpers.same(credit.inputs, inputs, "inputs", 1e-10)
    helpers.same(credit.states, states, "states", 1e-10)


def test_shares_add_up_and_fade_with_a_forgetting_loop():
    layer = ll.LocalFeedback(1, 1, feedback="net", bias=False, constrain=None, dtype=torch.float64)
    nn.init.constant_(layer.get_parameter("u_l0"), 0.5)
    credit = flow.gradient_by_lag(layer, torch.zeros(6, 1, 1, dtype=torch.float64), lambda y: y.sum(-1))
    share = credit.share()
    assert float(share.sum()) == pytest.approx(1)
    # at rest every slope is ½: lag q occurs in 6 − q losses with weight ½ᵠ
    wanted = torch.tensor([(6 - q) * 0.5**q for q in range(6)], dtype=torch.float64)
    helpers.same(share, wanted / wanted.sum())


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda y: y.sum(), r"loss must give one value per step and sequence \(5, 2\), got shape \(\)"),
        (lambda y: 1.0, "got float"),
        (lambda y: (y.sum(-1) - y.sum(-1)[3]).log(), "loss must be finite, got NaN or infinity first at step"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, text):
    with pytest.raises(ValueError, match=text):
        flow.gradient_by_lag(make("elman"), helpers.randn(T, B, 3), loss)
