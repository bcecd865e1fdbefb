"""RNN-97 and LSTM-97 written out in NumPy, forward and backward, against `Recurrent(rnn97)` and `LSTM97`."""

import numpy as np
import pytest
import torch
from helpers import LAYERS, SQUASHES, gradients, numpy_weights, parts, randn, same, some_state, whole

import longlag as ll

B = 2
every_length = pytest.mark.parametrize("T", [1, 2, 7])


def sigma(z):
    return 1 / (1 + np.exp(-z))


def dsigma(z):
    return sigma(z) * (1 - sigma(z))


SQUASH = {  # value and slope
    "4s-2": (lambda a: 4 * sigma(a) - 2, lambda a: 4 * dsigma(a)),
    "2s-1": (lambda a: 2 * sigma(a) - 1, lambda a: 2 * dsigma(a)),
    "logistic": (sigma, dsigma),
    "tanh": (np.tanh, lambda a: 1 - np.tanh(a) ** 2),
    "identity": (lambda a: a, lambda a: 1.0),
    "linear": (lambda a: a, lambda a: 1.0),
}


def targets(y, seed=8):
    """Targets ŷ and the mask m of scored steps."""
    scored = randn(*y.shape[:2], 1, seed=seed).gt(-0.5).double()
    scored[-1, 0] = 1.0
    return randn(*y.shape, seed=seed + 1), scored


# ------------------------------------------------------------------------------------------------------ RNN-97


@every_length
def test_rnn97(T):
    """[RNN-97 1]: net(t+1) = w [y(t); x(t)]; ϑ(t) = D(t) (m_t (y − ŷ) + Wᵀ ϑ(t+1)); dw = Σ ϑ(t+1) [y(t); x(t)]ᵀ."""
    layer = LAYERS["rnn97"](bias=False)
    x, y_0 = randn(T, B, 3).requires_grad_(), some_state(layer, B)[0].requires_grad_()
    y, final = layer(x, y_0)
    target, m = targets(y)
    ours = gradients(0.5 * (m * (y - target) ** 2).sum(), layer, x, y_0)
    P, d = numpy_weights(layer), 4
    w = np.concatenate([P["weight_hh_l0"], P["weight_ih_l0"]], 1)
    dw, dx, dy_0 = np.zeros_like(w), np.zeros((T, B, 3)), np.zeros((1, B, d))
    for b in range(B):
        state, source, net = [y_0[0, b].detach().numpy()], [], [None]
        for x_t in x[:, b].detach().numpy():
            source.append(np.concatenate([state[-1], x_t]))
            net.append(w @ source[-1])
            state.append(sigma(net[-1]))
        same(y[:, b], np.array(state[1:]))
        same(final[0, b], state[-1])
        theta = np.zeros(d)
        for t in range(T, 0, -1):
            own = m[t - 1, b].numpy() * (state[t] - target[t - 1, b].numpy())
            theta = dsigma(net[t]) * (own + w[:, :d].T @ theta)
            dw += np.outer(theta, source[t - 1])
            dx[t - 1, b] = w[:, d:].T @ theta
        dy_0[0, b] = w[:, :d].T @ theta
    same(ours, {"weight_ih_l0": dw[:, d:], "weight_hh_l0": dw[:, :d], "0": dx, "1": dy_0})


# ----------------------------------------------------------------------------------------------------- LSTM-97


class OneSequence:
    """[LSTM-97 2] for one sequence. y: everything fed back, s: the cells' internal states; loops over blocks, cells."""

    def __init__(self, layer, x, y, s):
        self.P, self.net = numpy_weights(layer), layer
        self.nb, self.db, self.nh = layer.blocks, layer.block_size, layer.hidden_units
        self.g, self.dg = SQUASH[layer.g]
        self.h, self.dh = SQUASH[layer.h]
        self.f, self.df = SQUASH[layer.output]
        self.x, self.kept, self.y_0 = x, [], y
        self.outputs = []
        for x_t in x:
            y, s = self.step(x_t, y, s)
        self.final = y, s

    def net_input(self, group, j, source):
        w = self.P[f"weight_{group}"]
        return sum(w[j] * source) + (self.P[f"bias_{group}"][j] if f"bias_{group}" in self.P else 0.0)

    def step(self, x, y, s):
        nb, db, open_ = self.nb, self.db, not self.net.output_gates
        source = np.concatenate([x, y]) if self.net.recurrent else x
        n_hid = np.array([self.net_input("hid", p, source) for p in range(self.nh)])
        n_ig = np.array([self.net_input("ig", k, source) for k in range(nb)])
        n_og = np.array([] if open_ else [self.net_input("og", k, source) for k in range(nb)])
        y_og = np.ones(nb) if open_ else sigma(n_og)
        n_cell, s_new, y_cell = np.zeros(nb * db), np.zeros(nb * db), np.zeros(nb * db)
        for k in range(nb):
            for j in range(k * db, (k + 1) * db):
                n_cell[j] = self.net_input("cell", j, source)
                s_new[j] = s[j] + sigma(n_ig[k]) * self.g(n_cell[j])
                y_cell[j] = y_og[k] * self.h(s_new[j])
        y_hid = sigma(n_hid)
        seen = np.concatenate([x if self.net.input_to_output else [], y_hid, y_cell])
        n_out = None
        if self.net.output_size is None:
            self.outputs.append(np.concatenate([y_hid, y_cell]))
        else:
            n_out = np.array([self.net_input("out", i, seen) for i in range(self.net.output_size)])
            self.outputs.append(self.f(n_out))
        self.kept.append((source, seen, n_out, n_hid, n_ig, n_og, y_og, n_cell, s_new))
        return np.concatenate([y_hid, sigma(n_ig), sigma(n_og), y_cell]), s_new

    def backward(self, de):
        """[LSTM-97 3.5]: de (T, outputs) = ∂L/∂outputs -> gradients by name, of x, of y(0) and s(0)."""
        nb, db, nh, d_in = self.nb, self.db, self.nh, self.x.shape[1]
        d = {name: np.zeros_like(value) for name, value in self.P.items()}
        rbar, sbar, dx = np.zeros_like(self.y_0), np.zeros(nb * db), np.zeros_like(self.x)
        gates = 0 if not self.net.output_gates else nb
        for t in reversed(range(len(self.x))):
            source, seen, n_out, n_hid, n_ig, n_og, y_og, n_cell, s = self.kept[t]
            e = de[t]
            if n_out is not None:
                delta = de[t] * self.df(n_out)
                self.add(d, "out", delta, seen)
                e = self.P["weight_out"].T @ delta
                if self.net.input_to_output:
                    dx[t] += e[:d_in]
                    e = e[d_in:]
            ybar_hid, ybar_ig = rbar[:nh] + e[:nh], rbar[nh : nh + nb].copy()
            ybar_og, ybar_cell = rbar[nh + nb : nh + nb + gates].copy(), rbar[nh + nb + gates :] + e[nh:]
            for k in range(nb):
                for j in range(k * db, (k + 1) * db):
                    if gates:
                        ybar_og[k] += ybar_cell[j] * self.h(s[j])
                    sbar[j] += ybar_cell[j] * y_og[k] * self.dh(s[j])
                    ybar_ig[k] += sbar[j] * self.g(n_cell[j])
            y_ig = np.repeat(sigma(n_ig), db)
            nbar = {"hid": ybar_hid * dsigma(n_hid), "ig": ybar_ig * dsigma(n_ig), "og": ybar_og * dsigma(n_og)}
            nbar["cell"] = sbar * y_ig * self.dg(n_cell)
            back = np.zeros_like(source)
            for group, value in nbar.items():
                if len(value):
                    self.add(d, group, value, source)
                    back += self.P[f"weight_{group}"].T @ value
            dx[t] += back[:d_in]
            rbar = back[d_in:] if self.net.recurrent else np.zeros_like(rbar)
        return d, dx, rbar, sbar

    @staticmethod
    def add(d, group, nbar, source):
        d[f"weight_{group}"] += np.outer(nbar, source)
        if f"bias_{group}" in d:
            d[f"bias_{group}"] += nbar


def check(layer, T):
    x = randn(T, B, 3).requires_grad_()
    state = [part.requires_grad_() for part in some_state(layer, B)]
    out, final = layer(x, whole(state))
    target, m = targets(out)
    ours = gradients(0.5 * (m * (out - target) ** 2).sum(), layer, x, *state)
    found = []
    for b in range(B):
        s = OneSequence(layer, x[:, b].detach().numpy(), *(part[b].detach().numpy() for part in state))
        same(out[:, b], np.array(s.outputs), "outputs")
        same([part[b] for part in parts(final)], s.final, "final state")
        found.append(s.backward(m[:, b].numpy() * (np.array(s.outputs) - target[:, b].numpy())))
    by_name, dx, dy_0, ds_0 = zip(*found)
    wanted = {name: sum(d[name] for d in by_name) for name in by_name[0]}
    same(ours, {**wanted, "0": np.stack(dx, 1), "1": np.stack(dy_0), "2": np.stack(ds_0)})


@every_length
@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("lstm97")])
def test_lstm97(T, name):
    check(LAYERS[name](size=2), T)


def test_lstm97_where_growing_starts():
    """Inputs to outputs and nothing else, as the nets of experiment 2 begin."""
    check(LAYERS["lstm97"](blocks=0, hidden_units=0, input_to_output=True), 3)


@pytest.mark.parametrize("g", SQUASHES)
@pytest.mark.parametrize("h", SQUASHES)
def test_lstm97_squashing_functions(g, h):
    check(LAYERS["lstm97"](size=2, g=g, h=h), 3)


@pytest.mark.parametrize("group", ["hidden", "gates", "cells", "output"])
def test_lstm97_biases_one_group_at_a_time(group):
    layer = LAYERS["lstm97"](size=2, bias=[group])
    names = {"hidden": ["hid"], "gates": ["ig", "og"], "cells": ["cell"], "output": ["out"]}[group]
    assert {n for n, _ in layer.named_parameters() if "bias" in n} == {f"bias_{name}" for name in names}
    check(layer, 3)


CELL_AND_GATE = {"output_gates": False, "recurrent": False, "input_to_output": True, "bias": False}


@pytest.mark.parametrize(
    ("weights", "sizes", "options"),  # input_size, blocks, block_size, hidden_units, output_size
    [
        (264, (7, 4, 1, 0, 7), {"bias": ["gates"]}),  # experiment 1, nets 4-1
        (276, (7, 3, 2, 0, 7), {"bias": ["gates"]}),  # 1, nets 3-2
        (10504, (101, 1, 1, 0, 101), CELL_AND_GATE),  # 2a, 2b with p = 100
        (364, (54, 2, 1, 0, 2), {"bias": False}),  # 2c: 6 p + 64 with p = 50
        (102, (1, 3, 1, 0, 1), {"bias": ["cells", "gates"]}),  # 3
        (93, (2, 2, 2, 0, 1), {}),  # 4, 5
        (156, (8, 2, 2, 0, 4), {}),  # 6a
        (308, (8, 3, 2, 0, 8), {}),  # 6b
    ],
)
def test_weight_counts_of_the_paper(weights, sizes, options):
    assert sum(p.numel() for p in ll.LSTM97(*sizes, **options).parameters()) == weights


def test_initial_weights_and_gate_biases():
    net = ll.LSTM97(4, 3, 2, 5, 2, input_gate_bias=[-1, -3, -5], output_gate_bias=-2.0, init_range=0.2)
    assert net.get_parameter("bias_ig").tolist() == [-1, -3, -5]
    assert net.get_parameter("bias_og").tolist() == [-2, -2, -2]
    others = torch.cat([p.flatten() for n, p in net.named_parameters() if n not in ("bias_ig", "bias_og")])
    assert others.abs().max() < 0.2
    assert others.abs().max() > 0.19
    assert others.mean().abs() < 4 * 0.2 / 3**0.5 / len(others) ** 0.5


@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("lstm97")])
def test_a_new_block_that_is_not_read_changes_nothing(name):
    net = LAYERS[name](size=1)
    x = randn(6, B, 3)
    before, (y, s) = net(x)
    old, blocks = {n: p.detach().clone() for n, p in net.named_parameters()}, net.blocks
    net.add_block()
    assert net.blocks == blocks + 1
    for n, p in net.named_parameters():  # old rows stand first, new ones are drawn from the initial range
        assert p.dtype == torch.float64
        assert n not in old or set(old[n].flatten().tolist()) <= set(p.flatten().tolist())
        assert p.abs().max() < 0.8
    new = slice(-net.block_size, None)
    with torch.no_grad():  # nobody reads the new cells or gates
        for n, p in net.named_parameters():
            if n == "weight_out":
                p[:, new] = 0
            elif p.dim() == 2 and net.recurrent:
                start = 3
                for section, size in net.sections.items():
                    start += size
                    added = {"hid": 0, "ig": 1, "og": size > 0, "cell": net.block_size}[section]
                    p[:, start - added : start] = 0
    after, (y_new, s_new) = net(x)
    if net.output_size is None:
        after = after[..., : -net.block_size]
    same(after, before)
    same(s_new[:, : s.shape[1]], s)
    assert y_new.shape[1] == y.shape[1] + net.block_size + 1 + net.output_gates


def test_a_new_block_takes_the_gate_biases_it_is_given():
    net = LAYERS["lstm97"](size=1, input_gate_bias=-1.0)
    net.add_block(input_gate_bias=-3.0, output_gate_bias=-4.0)
    assert net.bias_ig.tolist() == [-1, -3]
    assert net.bias_og[-1] == -4
    check(net, 3)
