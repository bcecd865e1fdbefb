"""Memory: what an LSTM's cells are made of, the carousel of 1997, and drift."""

import math

import helpers
import numpy as np
import pytest
import torch
from torch import nn

import longlag as ll
from longlag import flow, tasks
from longlag.flow._drift import slope_of_h


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


# ----------------------------------------------------------------------------------- memory expansion [LSTM-FG 25.26]
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("t", [None, 5])
def test_the_expansion_is_the_state(level, t):
    layer = make("lstm_three_layers")
    x, start = helpers.randn(9, 2, 3), helpers.some_state(layer, 2)
    memory = flow.memory_weights(layer, x, t, level=level, state=helpers.whole(start))
    steps = 9 if t is None else t + 1
    _, (_, c) = layer(x[:steps], helpers.whole(start))
    helpers.same(memory.contributions.sum(0) + memory.carried, c[level])
    helpers.same(memory.state, c[level])
    assert memory.weights.shape == (steps, 2, 4)


def test_weights_by_their_definition():
    """w_k = i_k Π_{j>k} f_j, gates computed by hand; without c(−1) the carried part is 0, but i_0 ≠ 1."""
    layer, x = make("lstm"), helpers.randn(6, 2, 3)
    w = {name: torch.as_tensor(value) for name, value in helpers.numpy_weights(layer).items()}
    i, f, g = [], [], []
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for x_t in x:
        net = x_t @ w["weight_ih_l0"].T + w["bias_ih_l0"] + h @ w["weight_hh_l0"].T + w["bias_hh_l0"]
        gates = net.view(2, 4, 4).unbind(1)
        i.append(torch.sigmoid(gates[0]))
        f.append(torch.sigmoid(gates[1]))
        g.append(torch.tanh(gates[2]))
        c = f[-1] * c + i[-1] * g[-1]
        h = torch.sigmoid(gates[3]) * torch.tanh(c)
    memory = flow.memory_weights(layer, x)
    for k in range(6):
        wanted = i[k].clone()
        for j in range(k + 1, 6):
            wanted *= f[j]
        helpers.same(memory.weights[k], wanted, f"k = {k}")
        helpers.same(memory.written[k], g[k])
    assert bool((memory.carried == 0).all())
    assert bool(((memory.weights > 0) & (memory.weights < 1)).all())
    share = memory.contributions.abs()
    ages = sum((5 - k) * share[k] for k in range(6)) / share.sum(0)
    helpers.same(memory.age, ages)


def test_long_memories_do_not_underflow_and_torch_layers_serve():
    theirs = nn.LSTM(2, 3, batch_first=True)
    with torch.no_grad():
        theirs.get_parameter("bias_hh_l0")[3:6] = -20.0  # forget at once
    memory = flow.memory_weights(theirs, torch.zeros(1, 50, 2))
    assert bool(torch.isfinite(memory.log_weights).all())
    assert float(memory.log_weights[0].max()) < -900
    helpers.same(memory.contributions.sum(0) + memory.carried, theirs(torch.zeros(1, 50, 2))[1][1][0])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: flow.memory_weights(ll.GRU(3, 4).double(), x),
            TypeError,
            "cannot analyse GRU: its cells must be the forget",
        ),
        (lambda x: flow.memory_weights(ll.LSTM97(3, 1), x), TypeError, "cannot analyse LSTM97"),
        (
            lambda x: flow.memory_weights(make("lstm"), x, level=1),
            ValueError,
            "level must be an int of 0..0, got 1",
        ),
        (lambda x: flow.memory_weights(make("lstm"), x, 7), ValueError, "t must be a step of 0..4, got 7"),
        (lambda x: flow.carousel(ll.LSTM(3, 4), x), TypeError, "carousel: cannot analyse LSTM: it must be LSTM97"),
        (
            lambda x: flow.carousel(make("lstm97_hidden_only"), x),
            TypeError,
            "LSTM97 with at least one block",
        ),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call(helpers.randn(5, 2, 3))


# --------------------------------------------------------------------------------------------- carousel [LSTM-97 4]
CAROUSELS = [name for name in helpers.ONE_WAY if name.startswith("lstm97") and name != "lstm97_hidden_only"]


def with_state(network, x, s, y, cut):
    """s after the steps of x, from [y; s]; with the cuts of 1997 the fed-back activations are constants."""
    for x_t in x:
        _, (y, s) = network.step(x_t, (y.detach() if cut else y, s))
    return s


@pytest.mark.parametrize("name", CAROUSELS)
def test_the_carousel_turns_without_loss(name):
    network, x = make(name), helpers.randn(8, 2, 3)
    start = helpers.some_state(network, 2)
    found = flow.carousel(network, x, state=start)
    assert bool((found.cut == 1).all())  # exactly
    C, section = network.cells, list(network.sections.values())
    for q in range(8):
        y, s = network(x[: 8 - q], start)[1]
        leaf = s.detach().requires_grad_()
        # what the cells put out is a function of s: y_cell = y_og h(s); everything else of y stays
        pieces = list(y.detach().split(section, -1))
        gate = pieces[2].repeat_interleave(2, -1) if network.output_gates else 1.0
        h = {"2s-1": lambda v: 2 * torch.sigmoid(v) - 1, "identity": lambda v: v}[network.h]
        pieces[3] = gate * h(leaf)
        for cut, wanted in ((False, found.full[q]), (True, found.cut[q])):
            final = with_state(network, x[8 - q :], leaf, torch.cat(pieces, -1), cut)
            if cut and q:  # the cut also applies to the first step after s(t−q)
                final = with_state(network, x[8 - q :], leaf, torch.cat(pieces, -1).detach(), cut)
            rows = [torch.autograd.grad(v.sum(), leaf, retain_graph=True)[0] for v in final.unbind(-1)]
            matrix = torch.stack(rows, 1)
            helpers.same(matrix.diagonal(dim1=1, dim2=2), wanted, f"{name} lag {q} cut {cut}", 1e-10)
            if not cut:
                helpers.same(found.full_norm[q], torch.linalg.svdvals(matrix)[:, 0], tolerance=1e-10)
    assert found.full.shape == (8, 2, C)
    if network.recurrent:
        assert float((found.full[1:] - 1).abs().min()) > 0
    else:
        assert bool((found.full == 1).all())


@pytest.mark.parametrize("q", [0, 5, 50])
def test_errors_are_scaled_on_entering_and_leaving_only(q):
    """∂y_cell(t)/∂net(t−q) under the cuts = y_og(t) h′(s(t)) · {y_ig g′, g σ′}(t−q), for every q. [LSTM-97 4]"""
    network, x = make("lstm97"), helpers.randn(60, 2, 3)
    found = flow.carousel(network, x)
    # a tiny detour: an extra net input added at step t−q, differentiated with everything fed back detached
    extra = torch.zeros(2, sum(network.sections.values()), dtype=torch.float64, requires_grad=True)
    y, s = (part.clone() for part in network.initial_state(2))
    y_cell, (w, b) = s, network.weights()
    for t in range(60):
        net = x[t] @ w[:, :3].T + b + y.detach() @ w[:, 3:].T + (extra if t == 59 - q else 0)
        hid, ig, og, a = net.split(list(network.sections.values()), -1)
        wide = [gate.repeat_interleave(2, -1) for gate in (ig, og)]
        s = s + torch.sigmoid(wide[0]) * (4 * torch.sigmoid(a) - 2)
        y_cell = torch.sigmoid(wide[1]) * (2 * torch.sigmoid(s) - 1)
        y = torch.cat([torch.sigmoid(hid), torch.sigmoid(ig), torch.sigmoid(og), y_cell], -1)
    first_gate, first_cell = network.sections["hid"], sum(list(network.sections.values())[:3])
    for j in range(network.cells):
        d = torch.autograd.grad(y_cell[:, j].sum(), extra, retain_graph=True)[0]
        helpers.same(d[:, first_cell + j], found.entering[:, j] * found.leaving_cell[q, :, j], "cell", 1e-10)
        helpers.same(d[:, first_gate + j // 2], found.entering[:, j] * found.leaving_gate[q, :, j], "gate", 1e-10)


# ------------------------------------------------------------------------------------------------ drift [LSTM-97 4]
@pytest.fixture(scope="module")
def drifted():
    torch.manual_seed(0)
    network = ll.LSTM97(2, 2, 2, output_size=1, dtype=torch.float64)
    before = {name: p.clone() for name, p in network.named_parameters()}
    found = flow.drift(network, tasks.Multiplication(22), biases=(0.0, -3.0, -6.0), updates=25, batch=4)
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]), "drift must leave the network as it is"
    return found


def test_a_negative_bias_keeps_the_internal_states_near_zero(drifted):
    last = drifted.state[:, -5:].mean(-1)
    assert float(last[0]) > 10 * float(last[1]) > 100 * float(last[2])
    slopes = drifted.slope[:, -5:].mean(-1)
    assert float(slopes[0]) < 0.8 < 0.99 < float(slopes[1]) < float(slopes[2]) <= 1
    assert bool((drifted.largest <= drifted.bound).all())
    assert bool((drifted.gate[0] > drifted.gate[1]).all())


def test_training_follows_the_truncated_gradient():
    """The first two losses, with the update between them written out: fed-back activations detached. [LSTM-97 3.4]"""
    torch.manual_seed(3)
    network = ll.LSTM97(2, 1, 2, output_size=1, dtype=torch.float64)
    found = flow.drift(network, tasks.Multiplication(22), biases=(-1.0,), updates=2, batch=3, learning_rate=0.7, seed=9)
    rng = np.random.default_rng(9)
    nn.init.constant_(network.get_parameter("bias_ig"), -1.0)
    for update in range(2):
        batch = tasks.Multiplication(22).sample(3, rng)
        loss = torch.zeros((), dtype=torch.float64)
        ends = []
        for k in range(3):
            x = torch.as_tensor(batch.inputs[batch.offsets[k] : batch.offsets[k + 1]])
            y, s = (part[0] for part in network.initial_state(1))
            out = y
            for x_t in x:
                out, (y, s) = network.step(x_t, (y.detach(), s))
            loss = loss + 0.5 * (out - torch.as_tensor(batch.targets[k])).square().sum() / 3
            ends.append(s.detach())
        assert float(found.loss[0, update]) == pytest.approx(float(loss.detach()), rel=1e-6)
        assert float(found.state[0, update]) == pytest.approx(float(torch.stack(ends).abs().mean()), rel=1e-6)
        slope = [float(4 * torch.sigmoid(s) * (1 - torch.sigmoid(s))) for s in torch.stack(ends).flatten()]
        assert float(found.slope[0, update]) == pytest.approx(sum(slope) / len(slope), rel=1e-6)
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in network.parameters():
                assert p.grad is not None
                p -= 0.7 * p.grad


@pytest.mark.parametrize(("bias", "steps"), [(0.0, 5), (-3.0, 53), (-5.0, 374), (-6.0, 1011)])
def test_how_long_drift_takes(bias, steps):
    """5/(2 σ(b)) steps to |s| = 5 when g is at its largest, ±2. [LSTM-97 4]"""
    network = ll.LSTM97(1, 1, recurrent=False, input_gate_bias=bias, output_gate_bias=0.0, dtype=torch.float64)
    with torch.no_grad():
        network.get_parameter("weight_ig").zero_()
        network.get_parameter("weight_cell").fill_(50.0)
    reached = float(network(torch.ones(steps, 1, 1).double())[1][1].detach())
    assert round(5 / (reached / steps)) == steps


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: flow.drift(ll.LSTM(2, 2), tasks.Adding(22)), TypeError, "drift: cannot analyse LSTM"),
        (lambda: flow.drift(ll.LSTM97(2, 1), tasks.Adding(22)), ValueError, "biased gates and output units"),
        (
            lambda: flow.drift(ll.LSTM97(2, 1, output_size=1), tasks.Adding(22), updates=0),
            ValueError,
            "updates must be",
        ),
        (
            lambda: flow.drift(ll.LSTM97(7, 1, output_size=7), tasks.EmbeddedReber(), updates=1, batch=2),
            ValueError,
            "task must score the end of its sequences",
        ),
        (
            lambda: flow.drift(ll.LSTM97(2, 1, output_size=1, output="linear"), tasks.Adding(22), learning_rate=1e30),
            ValueError,
            "loss must be finite, got NaN or infinity at update .* with bias 0",
        ),
    ],
)
def test_bad_drift_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_slope_of_every_h():
    s = helpers.randn(3, 4).requires_grad_()
    functions = {"2s-1": lambda v: 2 * torch.sigmoid(v) - 1, "tanh": torch.tanh, "identity": lambda v: v}
    for name, h in functions.items():
        network = ll.LSTM97(2, 1, 4, h=name, dtype=torch.float64)
        wanted = torch.autograd.grad(h(s).sum(), s)[0]
        helpers.same(slope_of_h(network, s.detach()), wanted, name)
    assert math.isclose(float(slope_of_h(ll.LSTM97(1, 1), torch.tensor([5.0]))), 0.0133, rel_tol=5e-3)
