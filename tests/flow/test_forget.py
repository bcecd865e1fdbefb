"""Forgetting of local-feedback networks: measured, bounded, and what a finite window keeps. [LF-92 3]"""

import math

import helpers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import longlag as ll
from longlag import flow


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


NETWORKS = [name for name in helpers.ONE_WAY if name.startswith("local_") and "norm" not in name]


def influence(network, x, t):
    """|∂y_i(t)/∂x_k(t−q)| (t + 1, B, O, I) by autograd."""
    x = x.clone().requires_grad_()
    y = network(x)[0][t]
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0][: t + 1] for column in y.unbind(-1)]
    return torch.stack(rows, 2).flip(0).abs()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("t", [None, 4])
def test_measured_influence_is_the_gradient(name, t):
    network, x = make(name), helpers.randn(7, 2, 3)
    found = flow.forgetting(network, x, t)
    helpers.same(found.measured, influence(network, x, 6 if t is None else t), name, 1e-10)


def test_the_bound_of_one_hidden_layer_is_the_papers():
    """¼ Σ_j |w_out,ij w_jk| ρ_jᵠ for static outputs, ½ |W_out,ik| ρᵠ for outputs with feedback, q ≥ 1."""
    network = make("local_network", size=2)
    w = helpers.numpy_weights(network)
    found = flow.forgetting(network, helpers.randn(6, 1, 3))
    for q in range(1, 6):
        static = 0.0
        for kind, gain in (
            ("net", abs(w["groups.hidden_0_net.u_l0"])),
            ("activation", abs(w["groups.hidden_0_activation.v_l0"]) / 2),
        ):
            columns = slice(2, 4) if kind == "net" else slice(4, 6)
            out = abs(w["groups.output_static.weight_ih_l0"][:, columns])
            static = static + 0.25 * (out * gain**q) @ abs(w[f"groups.hidden_0_{kind}.weight_ih_l0"])
        dynamic = [
            0.5
            * abs(w[f"groups.output_{kind}.weight_ih_l0"])
            * (abs(w[f"groups.output_{kind}.{p}_l0"]) / d)[:, None] ** q
            for kind, p, d in (("net", "u", 1), ("activation", "v", 2))
        ]
        helpers.same(found.bound[q], torch.cat([torch.as_tensor(v) for v in (static, *dynamic)]), f"lag {q}", 1e-12)


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from(NETWORKS), st.floats(0.1, 5))
def test_no_bound_is_violated(seed, name, scale):
    network = make(name, size=2, seed=seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(scale)  # loops that do not forget, too
    found = flow.forgetting(network, scale * helpers.randn(8, 20, 3, seed=seed))
    assert bool((found.measured.amax(1) <= found.bound * (1 + 1e-9)).all())
    changes = torch.tensor([found.window_change(steps) for steps in range(1, 9)])
    assert bool((changes <= found.window_bound.amax(-1) * (1 + 1e-9) + 1e-12).all())


def paths_by_hand(network, hidden, q):
    """(O, I): the sum over all routes from the input to an output, and over all ways to spread q delays on their loops.

    A unit multiplies by its weight, then by ρʲ if it holds the change for j steps, then by its largest slope ½.
    """
    w = helpers.numpy_weights(network)

    def units(layer, kinds, below):
        """|∂(outputs of a layer)/∂x(t−q)| by delay, from that of the layer it reads."""
        rows = []
        for kind in kinds:
            if f"groups.{layer}_{kind}.weight_ih_l0" not in w:
                continue
            W = abs(w[f"groups.{layer}_{kind}.weight_ih_l0"])
            loop = {"net": ("u", 1), "activation": ("v", 2)}.get(kind)
            rho = abs(w[f"groups.{layer}_{kind}.{loop[0]}_l0"]) / loop[1] if loop else np.zeros(len(W))
            rows.append([sum(0.5 * np.diag(rho**j) @ W @ below[p - j] for j in range(p + 1)) for p in range(q + 1)])
        return [np.concatenate([row[p] for row in rows]) for p in range(q + 1)] if rows else None

    x = [np.eye(3) * (p == 0) for p in range(q + 1)]
    h = x
    for i in range(hidden):
        h = units(f"hidden_{i}", ("static", "net", "activation"), h)
    outputs = [units("output", ("static",), h), units("output", ("net", "activation"), x)]
    return torch.as_tensor(np.concatenate([found[q] for found in outputs if found is not None]))


@pytest.mark.parametrize("output", [(1, 0, 0), (2, 1, 1), (0, 2, 1), (0, 0, 2)])
@pytest.mark.parametrize("hidden", [[(1, 2, 1)], [(0, 0, 2), (3, 0, 0)], [(1, 2, 1), (2, 1, 1), (0, 1, 2)]])
def test_bounds_of_deep_networks_are_sums_over_paths(hidden, output):
    """Static outputs read the last hidden layer; outputs with feedback read x, whatever lies between."""
    torch.manual_seed(3)
    network = ll.LocalFeedbackNetwork(3, hidden, output, bias=True, dtype=torch.float64)
    x = helpers.randn(6, 4, 3)
    found = flow.forgetting(network, x)
    assert found.bound.shape == (6, sum(output), 3)
    for q in range(6):
        helpers.same(found.bound[q], paths_by_hand(network, len(hidden), q), f"lag {q}", 1e-12)
    assert bool((found.measured.amax(1) <= found.bound * (1 + 1e-12)).all())
    changes = torch.tensor([found.window_change(steps) for steps in range(1, 7)])
    assert bool((changes <= found.window_bound.amax(-1) + 1e-12).all())


def test_bounds_are_tight_for_units_at_rest():
    network = ll.LocalFeedbackNetwork(1, (0, 1, 1), (1, 0, 0), constrain=None, dtype=torch.float64)
    with torch.no_grad():
        for name, value in {"hidden_0_net.u_l0": 0.8, "hidden_0_activation.v_l0": 1.2}.items():
            network.groups.get_parameter(name).fill_(value)
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.abs_()
    found = flow.forgetting(network, torch.zeros(30, 1, 1, dtype=torch.float64))
    helpers.same(found.measured[:, 0], found.bound)  # every slope is at its largest, ½
    assert found.gain == 0.8


def test_signs_do_not_cancel_in_the_bound():
    """u = (½, −½), w_out = (1, −1), w = (1, 1), q = 3: the influence is ¼ · 0.25, the literal bound was 0. [000-3]"""
    network = ll.LocalFeedbackNetwork(1, (0, 2, 0), (1, 0, 0), constrain=None, dtype=torch.float64)
    with torch.no_grad():
        network.groups.get_parameter("hidden_0_net.u_l0").copy_(torch.tensor([0.5, -0.5]))
        network.groups.get_parameter("hidden_0_net.weight_ih_l0").fill_(1.0)
        network.groups.get_parameter("output_static.weight_ih_l0").copy_(torch.tensor([[1.0, -1.0]]))
    found = flow.forgetting(network, torch.zeros(4, 1, 1, dtype=torch.float64))
    assert float(found.measured[3, 0, 0, 0]) == pytest.approx(0.25 * 0.25, rel=1e-12)
    assert float(found.bound[3, 0, 0]) == pytest.approx(0.25 * 0.25, rel=1e-12)


@pytest.mark.parametrize("name", ["local_network_forget", "local_net_forget"])
@pytest.mark.parametrize("epsilon", [1e-2, 1e-5])
def test_a_forgetting_network_is_a_map_of_a_finite_window(name, epsilon):
    network, x = make(name, time_constant=4.0), helpers.randn(400, 5, 3)
    found = flow.forgetting(network, x)
    steps = found.window(epsilon)
    assert found.forgets
    assert 1 < steps < 400
    assert found.window_change(int(steps)) < epsilon
    y, _ = network(x)
    alone, _ = network(x[-int(steps) :])
    assert float((y[-1] - alone[-1]).detach().abs().max()) == pytest.approx(found.window_change(int(steps)), rel=1e-9)
    horizon = int(found.horizon(epsilon))
    assert float(found.bound[horizon:].max()) < epsilon <= float(found.bound[horizon - 1].max())


def test_batch_first_says_the_same():
    x = helpers.randn(12, 2, 3)
    found = flow.forgetting(make("local_network_forget"), x)
    other = flow.forgetting(make("local_network_forget", batch_first=True), x.transpose(0, 1))
    helpers.same(other.measured, found.measured)
    assert other.window_change(5) == found.window_change(5) > 0


def test_the_window_bound_is_the_papers():
    """½ Σ_j |w_out,ij| {½ |u|^Q C/(1−|u|); (|v|/2)^Q}."""
    network, x = make("local_network_forget", size=2), helpers.randn(30, 4, 3)
    found = flow.forgetting(network, x)
    w = helpers.numpy_weights(network)
    u, v = abs(w["groups.hidden_0_net.u_l0"]), abs(w["groups.hidden_0_activation.v_l0"])
    C = abs(x.numpy() @ w["groups.hidden_0_net.weight_ih_l0"].T).max((0, 1))
    out = abs(w["groups.output_static.weight_ih_l0"])
    for Q in (1, 7, 30):
        hidden = torch.cat([torch.as_tensor(0.5 * u**Q * C / (1 - u)), torch.as_tensor((v / 2) ** Q)])
        helpers.same(found.window_bound[Q - 1, :1], 0.5 * torch.as_tensor(out) @ hidden, f"Q={Q}")


def test_conditions_are_checked_unit_by_unit():
    network = make("local_network", size=2)
    with torch.no_grad():
        network.groups.get_parameter("hidden_0_net.u_l0").copy_(torch.tensor([0.5, -1.0]))
        network.groups.get_parameter("hidden_0_activation.v_l0").copy_(torch.tensor([-2.5, 1.9]))
    found = flow.forgetting(network, helpers.randn(5, 1, 3))
    forgets = {units.name: units.forgets.tolist() for units in found.units}
    assert forgets["hidden_0_net"] == [True, False]
    assert forgets["hidden_0_activation"] == [False, True]
    assert forgets["hidden_0_static"] == [True, True]
    assert not found.forgets
    assert found.gain == 1.25
    assert found.window(1e-3) == found.horizon(1e-3) == math.inf


def test_a_latch_forgets_in_derivative_but_not_in_fact():
    """v = 4: two stable states; ∂h(t)/∂x(t−q) vanishes while the bit stays. [LF-92 3]"""
    latch = ll.LocalFeedback(1, 1, feedback="activation", bias=False, constrain=None, dtype=torch.float64)
    nn.init.constant_(latch.get_parameter("v_l0"), 4.0)
    nn.init.constant_(latch.get_parameter("weight_ih_l0"), 5.0)
    x = torch.zeros(60, 2, 1, dtype=torch.float64)
    x[0, :, 0] = torch.tensor([1.0, -1.0])
    found = flow.forgetting(latch, x)
    assert not found.forgets
    assert float(found.measured[-1].max()) < 1e-12
    y = latch(x)[0][-1, :, 0]
    helpers.same(y.detach(), torch.tensor([0.9575, -0.9575], dtype=torch.float64), tolerance=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: flow.forgetting(ll.LSTM(3, 4), x),
            TypeError,
            "forgetting: cannot analyse LSTM: it must be LocalFeedback",
        ),
        (lambda x: flow.forgetting(make("local_net_norm"), x), ValueError, "LocalFeedback with norm"),
        (lambda x: flow.forgetting(make("local_activation_two_ways"), x), ValueError, "bidirectional=True"),
        (lambda x: flow.forgetting(make("local_net"), x, 9), ValueError, "t must be a step of 0..4, got 9"),
        (
            lambda x: flow.forgetting(make("local_net"), x).window_change(6),
            ValueError,
            "steps must be an int of 1..5",
        ),
        (
            lambda x: flow.forgetting(make("local_net"), x).horizon(0),
            ValueError,
            "epsilon must be positive",
        ),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call(helpers.randn(5, 2, 3))
