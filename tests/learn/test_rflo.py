"""RFLO against Murray's recursion, and against autograd with everything that passes through U detached (e-prop)."""

import numpy as np
import pytest
import torch
from helpers import DEFAULTS, error, numpy_weights, same
from learn.course import autograd, case, forward, make

import longlag as ll
from longlag.learn import RFLO, SnAp, TruncatedRTRL


def test_leaky_units_have_murrays_traces():
    """Murray 2019, eq. 3: p_ji(t) = (1 − 1/τ) p_ji(t−1) + (1/τ) φ'(u_j(t)) h_i(t−1), Δw_ji ∝ L_j(t) p_ji(t)."""
    tau, layer = 3.0, ll.Leaky(2, 4, alpha=3.0, **DEFAULTS)
    c = case(layer, ragged=False)._replace(state=None)
    w = numpy_weights(layer)
    U, W, b = w["weight_hh_l0"], w["weight_ih_l0"], w["bias_ih_l0"] + w["bias_hh_l0"]
    g = np.zeros((4, 7))
    for k in range(c.x.shape[1]):
        h, p = np.zeros(4), np.zeros((4, 7))
        for x, signal in zip(c.x[:, k].numpy(), c.dy[:, k].numpy()):
            u = U @ h + W @ x + b
            p = (1 - 1 / tau) * p + np.outer((1 - np.tanh(u) ** 2) / tau, np.concatenate([h, x, [1.0]]))
            h = (1 - 1 / tau) * h + np.tanh(u) / tau
            g += signal[:, None] * p
    ours = forward(RFLO(), layer, c)[2]
    same(ours["weight_hh_l0"], g[:, :4], "U", 1e-10)
    same(ours["weight_ih_l0"], g[:, 4:6], "W", 1e-10)
    same(ours["bias_hh_l0"], g[:, 6], "b", 1e-10)


def e_prop(name, layer, c):
    """Gradients by autograd of the step written out, y(t−1) detached where U reads it."""
    named = dict(layer.named_parameters())
    W, U, b_ih, b_hh = (named[f"{k}_l0"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    y = torch.zeros(3, 4, dtype=torch.float64)
    cell, loss = y, 0
    for x, dy in zip(c.x, c.dy):
        from_x, from_y = x @ W.t() + b_ih, y.detach() @ U.t() + b_hh
        if name == "lstm":
            i, f, g, o = (from_x + from_y).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            y = o.sigmoid() * cell.tanh()
        else:
            (x_r, x_z, x_n), (y_r, y_z, y_n) = from_x.chunk(3, -1), from_y.chunk(3, -1)
            z = (x_z + y_z).sigmoid()
            y = z * y + (1 - z) * (x_n + (x_r + y_r).sigmoid() * y_n).tanh()
        loss = loss + (y * dy).sum()
    assert isinstance(loss, torch.Tensor)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()))))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_gated_units_have_the_traces_of_e_prop(name):
    layer = make(name)
    c = case(layer, ragged=False)._replace(state=None)
    ours = forward(RFLO(), layer, c)[2]
    same(ours, e_prop(name, layer, c), name, 1e-10)
    exact = autograd(layer, c)[2]
    assert max(error(ours[key], exact[key]) for key in exact) > 0.01
    own = forward(SnAp(1), layer, c)[2]  # keeps a unit's weight on itself
    assert max(error(ours[key], own[key]) for key in exact) > 0.01


@pytest.mark.parametrize("name", ["elman", "rnn97", "lstm", "gru", "leaky_learned", "user_everything", "user_delay"])
def test_the_cuts_are_those_of_truncated_rtrl(name):
    layer = make(name)
    c = case(layer)
    same(forward(RFLO(), layer, c)[2], forward(TruncatedRTRL(), layer, c)[2], name, 0.0)
