"""LF-92 and LF-92-ML written out in NumPy, forward and adjoint, against `LocalFeedback(Network)`."""

import numpy as np
import pytest
import torch
from helpers import LAYERS, gradients, numpy_weights, parts, randn, same, some_state, whole

import longlag as ll

B = 2
every_length = pytest.mark.parametrize("T", [1, 2, 7])
KINDS = ("static", "net", "activation")


def f(a):
    return np.tanh(a / 2)


def slope(a):
    return 0.5 * (1 - f(a) ** 2)


class Unit:
    """One unit of one sequence [LF-92 1]: its row w, its gain, a(0) or h(0); lists over t = 0..T."""

    def __init__(self, kind, w, bias, gain, start, source):
        self.kind, self.w, self.gain, self.source = kind, w, gain, source
        self.a, self.h = [start], [start]
        for x in source:
            own = {"static": 0.0, "net": gain * self.a[-1], "activation": gain * self.h[-1]}[kind]
            self.a.append(own + sum(w * x) + bias)
            self.h.append(f(self.a[-1]))

    @property
    def final(self):
        return self.a[-1] if self.kind == "net" else self.h[-1]

    def adjoint(self, e):
        """[LF-92 2.2]: e (T,) = ∂L/∂h(t) directly -> dw, dbias, dgain, dstart, and what the source receives."""
        T, dw, dbias, dgain = len(self.source), np.zeros_like(self.w), 0.0, 0.0
        below = np.zeros_like(self.source)
        abar = np.zeros(T + 2)
        for t in range(T, 0, -1):
            loop = {"static": 0.0, "net": self.gain, "activation": self.gain * slope(self.a[t])}[self.kind]
            abar[t] = e[t - 1] * slope(self.a[t]) + loop * abar[t + 1]
            dw += abar[t] * self.source[t - 1]
            dbias += abar[t]
            dgain += abar[t] * (self.a if self.kind == "net" else self.h)[t - 1]
            below[t - 1] = abar[t] * self.w
        return dw, dbias, dgain, self.gain * abar[1], below


class Net:
    """The network for one sequence: layers of `Unit`, static outputs on top, dynamic ones beside. [LF-92-ML 5]"""

    def __init__(self, layer, x, state):
        self.P, self.state = numpy_weights(layer), dict(zip(layer.state_sizes, state))
        self.x, below, self.hidden = x, x, []
        for i in range(len(layer.hidden_sizes)):
            units = self.units(f"hidden_{i}", KINDS, below)
            self.hidden.append(units)
            below = np.stack([unit.h[1:] for _, _, unit in units], 1)
        self.outputs = self.units("output", KINDS[:1], below) + self.units("output", KINDS[1:], x)
        self.y = np.stack([unit.h[1:] for _, _, unit in self.outputs], 1)

    def units(self, place, kinds, source):
        made = []
        for kind in kinds:
            group = f"groups.{place}_{kind}."
            gains = self.P.get(group + "u_l0", self.P.get(group + "v_l0"))
            for j, w in enumerate(self.P.get(group + "weight_ih_l0", ())):
                bias = self.P[group + "bias_ih_l0"][j] if group + "bias_ih_l0" in self.P else 0.0
                start = self.state[f"{place}_{kind}"][j] if gains is not None else 0.0
                gain = 0.0 if gains is None else gains[j]
                made.append((f"{place}_{kind}", j, Unit(kind, w, bias, gain, start, source)))
        return made

    def finals(self):
        values = {}
        for group, _, unit in (member for layer in [*self.hidden, self.outputs] for member in layer):
            values.setdefault(group, []).append(unit.final)
        return [np.array(values[group]) for group in self.state]

    def backward(self, e):
        """e (T, l) = ∂L/∂y: gradients by parameter name, of the state by group, of x."""
        d = {name: np.zeros_like(value) for name, value in self.P.items()}
        dstate = {group: np.zeros_like(value) for group, value in self.state.items()}
        dx = np.zeros_like(self.x)
        to_hidden = np.zeros((len(self.x), len(self.hidden[-1])))
        for k, (group, j, unit) in enumerate(self.outputs):
            below = self.collect(d, dstate, group, j, unit, e[:, k])
            if unit.kind == "static":
                to_hidden = to_hidden + below
            else:
                dx += below
        for units in reversed(self.hidden):
            each = [self.collect(d, dstate, g, j, u, to_hidden[:, k]) for k, (g, j, u) in enumerate(units)]
            to_hidden = np.sum(each, 0)
        return d, dstate, dx + to_hidden

    @staticmethod
    def collect(d, dstate, group, j, unit, e):
        dw, dbias, dgain, dstart, below = unit.adjoint(e)
        values = {"weight_ih_l0": dw, "bias_ih_l0": dbias, "u_l0": dgain, "v_l0": dgain}
        for name, value in values.items():
            if f"groups.{group}.{name}" in d:
                d[f"groups.{group}.{name}"][j] += value
        if group in dstate:
            dstate[group][j] += dstart
        return below


@every_length
@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("local_network")])
def test_the_network_of_1992(T, name):
    layer = LAYERS[name](size=2)
    x = randn(T, B, 3).requires_grad_()
    state = [part.requires_grad_() for part in some_state(layer, B)]
    y, final = layer(x, whole(state))
    d, scored = randn(*y.shape, seed=8), randn(T, B, 1, seed=9).gt(-0.5).double()
    scored[-1, 0] = 1.0
    ours = gradients((scored * (y - d) ** 2).sum(), layer, x, *state)

    found = []
    for b in range(B):
        net = Net(layer, x[:, b].detach().numpy(), [part[b].detach().numpy() for part in state])
        same(y[:, b], net.y, "outputs")
        same([part[b] for part in parts(final)], net.finals(), "final state")
        e = 2 * scored[:, b].numpy() * (net.y - d[:, b].numpy())
        found.append(net.backward(e))
    by_name, by_group, dx = zip(*found)
    wanted = {name: sum(g[name] for g in by_name) for name in by_name[0]}
    same(ours["0"], np.stack(dx, 1), "x")
    for i, group in enumerate(layer.state_sizes):
        same(ours[str(1 + i)], np.stack([g[group] for g in by_group]), group)
    for key, value in ours.items():
        if key.endswith(".original"):  # u = (1−η) tanh û, v = 2 (1−η) tanh v̂ [LF-92 4]
            own = key.replace("parametrizations.", "").removesuffix(".original")
            limit = 0.999 * (2 if "activation" in own else 1)
            raw = layer.get_parameter(key).detach().numpy()
            same(numpy_weights(layer)[own], limit * np.tanh(raw), own)
            same(value, wanted[own] * limit * (1 - np.tanh(raw) ** 2), key)
        elif key.startswith("groups"):
            same(value, wanted[key], key)


@every_length
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_one_kind(T, kind):
    layer = LAYERS[f"local_{kind}"](size=3)
    x, state = randn(T, B, 3), some_state(layer, B)
    y, final = layer(x, whole(state))
    P = numpy_weights(layer)
    gains = P.get("u_l0", P.get("v_l0", np.zeros(3)))
    for b in range(B):
        for j in range(3):
            start = float(state[0][0, b, j]) if state else 0.0
            unit = Unit(kind, P["weight_ih_l0"][j], P["bias_ih_l0"][j], gains[j], start, x[:, b].numpy())
            same(y[:, b, j], np.array(unit.h[1:]))
            if state:
                same(final[0, b, j], np.array(unit.final))


def test_weight_count():
    """m n + m_N + m_A + l_S m + (l_N + l_A)(n + 1) [LF-92 1]."""
    n, (mS, mN, mA), (lS, lN, lA) = 5, (2, 3, 4), (1, 2, 3)
    net = ll.LocalFeedbackNetwork(n, (mS, mN, mA), (lS, lN, lA), constrain=None)
    m = mS + mN + mA
    assert sum(p.numel() for p in net.parameters()) == m * n + mN + mA + lS * m + (lN + lA) * (n + 1)


def test_outputs_with_feedback_never_read_the_hidden_layer():
    net = LAYERS["local_network"](size=2)
    x = randn(5, B, 3)
    before = net(x)[0]
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "hidden" in name:
                parameter += 1.0
    after = net(x)[0]
    assert torch.equal(before[..., 1:], after[..., 1:])
    assert not torch.equal(before[..., :1], after[..., :1])


@pytest.mark.parametrize(("kind", "name", "limit"), [("net", "u_l0", 1.0), ("activation", "v_l0", 2.0)])
def test_forgetting_is_kept_whatever_training_does(kind, name, limit):
    layer = LAYERS[f"local_{kind}"](2, 50, constrain="forget", time_constant=1000.0)
    free = LAYERS[f"local_{kind}"](2, 50, time_constant=1000.0)
    for gains in (getattr(layer, name), getattr(free, name)):  # u = e^(−1/τ), v = 2 e^(−1/τ), 1 ≤ τ ≤ 1000 [LF-92 4 τ]
        tau = -1 / torch.log(gains.detach() / limit)
        assert tau.min() >= 1 - 1e-9
        assert 300 < tau.max() <= 1000 + 1e-6
        assert 0.3 < (tau < 1000**0.5).double().mean() < 0.7  # log-uniform
    with pytest.raises(AttributeError, match=rf"{name} is computed from parametrizations\.{name}\.original; to set it"):
        layer.get_parameter(name)
    before = getattr(layer, name).detach()
    setattr(layer, name, before / 2)
    same(getattr(layer, name), before / 2)
    with torch.no_grad():
        layer.get_parameter(f"parametrizations.{name}.original").add_(1e3)
    same(getattr(layer, name), torch.full((50,), 0.999 * limit, dtype=torch.float64))
