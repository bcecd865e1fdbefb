"""Errors in the textbook exercises on the forget-gate LSTM: corrected and printed formulas.

i, f, o = σ(·), g = tanh(·) of U h_{t−1} + W x_t + b; c_t = f c_{t−1} + i g; h_t = o tanh c_t; L = Σ CE(V h + c_out).
"""

from typing import Any

import pytest
import torch
from helpers import error as rel
from torch.nn.functional import cross_entropy, linear, one_hot

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
n, T = 3, 6
m = l = 4  # square V and U: products printed without transpose can then be evaluated
GATES = "ifgo"  # rows of the layer's matrices


class Case:
    """A random LSTM with non-zero h_0, c_0, its gates at every step, and autograd's gradients in ``truth``."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.layer: Any = ll.LSTM(n, m, **REFERENCE)
        with torch.no_grad():
            for p in self.layer.parameters():
                p.normal_(std=0.8)
        self.V, self.c_out = torch.randn(l, m).double().requires_grad_(), torch.randn(l).double().requires_grad_()
        self.x = torch.randn(T, n).double().requires_grad_()
        self.start = tuple(torch.randn(1, m).double().requires_grad_() for _ in range(2))
        self.y = one_hot(torch.randint(l, (T,)), l).double()
        z = linear(self.layer(self.x, self.start)[0], self.V, self.c_out)
        cross_entropy(z, self.y, reduction="sum").backward()
        W, U, b = self.layer.weight_ih_l0, self.layer.weight_hh_l0, self.layer.bias_ih_l0
        leaves = {"W": W, "U": U, "b": b, "V": self.V, "c_out": self.c_out}
        leaves |= {"x": self.x, "h_0": self.start[0], "c_0": self.start[1]}
        self.truth = {name: leaf.grad for name, leaf in leaves.items()}

    def gates(self):
        """i, f, g, o, c, h for t = 1..T, each (T, m), and c_0, h_0 in front of the last two."""
        layer, (h, c) = self.layer, (part[0].detach() for part in self.start)
        cs, hs, nets = [c], [h], []
        for x_t in self.x.detach():
            a = layer.weight_ih_l0 @ x_t + layer.weight_hh_l0 @ h + layer.bias_ih_l0 + layer.bias_hh_l0
            i, f, g, o = a.detach().view(4, m)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            c = f * c + i * g
            h = o * torch.tanh(c)
            nets.append(torch.stack([i, f, g, o]))
            cs.append(c)
            hs.append(h)
        return *torch.stack(nets, 1), torch.stack(cs), torch.stack(hs)


def backward(case, *, wrong_gate=False, shifted=False, no_transpose=False, no_g=False):
    """BPTT written out. wrong_gate: i(1−o) in dõ; shifted: Σ_{t=1}^{T} dã_{t+1} h_tᵀ; no_transpose: V dz, W and
    U likewise as rows would need; no_g: dg̃ left out of dh."""
    i, f, g, o, c, h = case.gates()
    U, V = case.layer.weight_hh_l0.detach().view(4, m, m), case.V.detach()
    W = case.layer.weight_ih_l0.detach().view(4, m, n)
    U_back = U if no_transpose else U.transpose(1, 2)
    heard = torch.tensor([1.0, 1.0, 0.0 if no_g else 1.0, 1.0]).double()
    d, dc = torch.zeros(4, m).double(), torch.zeros(m).double()
    out = {"W": torch.zeros(4, m, n), "U": torch.zeros(4, m, m), "b": torch.zeros(4, m), "V": torch.zeros(l, m)}
    out = {name: value.double() for name, value in out.items()} | {"c_out": torch.zeros(l).double()}
    dx = []
    for t in range(T, 0, -1):  # i[t−1] is the paper's i_t; c[t], h[t] are c_t, h_t
        dz = torch.softmax(V @ h[t] + case.c_out.detach(), 0) - case.y[t - 1]
        dh = (V if no_transpose else V.t()) @ dz + torch.einsum("a,aij,aj->i", heard, U_back, d)
        dc = dh * o[t - 1] * (1 - torch.tanh(c[t]) ** 2) + (dc * f[t] if t < T else 0)  # [LSTM-FG 1.1 dc]
        if shifted:
            out["U"] += torch.einsum("ai,j->aij", d, h[t])  # dã_{t+1} h_tᵀ, dã_{T+1} = 0
        d = torch.stack(
            [
                dc * g[t - 1] * i[t - 1] * (1 - i[t - 1]),
                dc * c[t - 1] * f[t - 1] * (1 - f[t - 1]),
                dc * i[t - 1] * (1 - g[t - 1] ** 2),
                dh * torch.tanh(c[t]) * (i if wrong_gate else o)[t - 1] * (1 - o[t - 1]),  # [LSTM-FG 1.1 dõ]
            ]
        )
        if not shifted:
            out["U"] += torch.einsum("ai,j->aij", d, h[t - 1])
        out["W"] += torch.einsum("ai,j->aij", d, case.x[t - 1].detach())
        out["b"] += d
        out["V"] += torch.outer(dz, h[t])
        out["c_out"] += dz
        dx.insert(0, torch.einsum("aij,ai->j", W, d))
    first = {"x": torch.stack(dx), "h_0": torch.einsum("aij,ai->j", U, d)[None], "c_0": (dc * f[0])[None]}
    return {name: value.flatten(0, 1) if name in ("W", "U", "b") else value for name, value in (out | first).items()}


def test_the_corrected_backward_pass():
    for seed in range(3):
        case = Case(seed)
        ours = backward(case)
        assert set(ours) == set(case.truth)
        for name, g in case.truth.items():
            assert rel(ours[name], g) < EXACT, name


def rows(gate):
    k = GATES.index(gate)
    return slice(k * m, (k + 1) * m)


def test_004_2_slope_of_the_output_gate():
    case = Case(seed=1)
    printed = backward(case, wrong_gate=True)
    assert rel(backward(case)["W"][rows("o")], case.truth["W"][rows("o")]) < EXACT
    assert rel(printed["W"][rows("o")], case.truth["W"][rows("o")]) > 0.3
    assert rel(printed["W"][rows("i")], case.truth["W"][rows("i")]) > 0.01  # through the recursion


def test_004_3_gradient_of_the_recurrent_weights_includes_h_0():
    case = Case(seed=2)
    assert rel(backward(case)["U"], case.truth["U"]) < EXACT
    assert rel(backward(case, shifted=True)["U"], case.truth["U"]) > 0.1


def test_004_4_columns_need_transposed_weights():
    case = Case(seed=3)
    printed = backward(case, no_transpose=True)
    for name in ("W", "U", "b", "x"):
        assert rel(backward(case)[name], case.truth[name]) < EXACT
        assert rel(printed[name], case.truth[name]) > 0.3
    assert rel(printed["V"], case.truth["V"]) < EXACT  # dz is not touched


@pytest.mark.parametrize("name", ["W", "U", "b"])
def test_004_5_the_candidate_sends_error_back(name):
    case = Case(seed=4)
    assert rel(backward(case)[name], case.truth[name]) < EXACT
    assert rel(backward(case, no_g=True)[name], case.truth[name]) > 0.05
    assert case.truth["c_out"].abs().max() > 0.1  # the output bias learns too: dc_out = Σ dz
    assert rel(backward(case)["c_out"], case.truth["c_out"]) < EXACT


def test_004_6_memory_expansion_needs_the_initial_cell():
    case = Case(seed=5)
    i, f, g, _, c, _ = case.gates()
    assert rel(case.layer(case.x, case.start)[1][1][0], c[T]) < EXACT
    kept = torch.stack([f[k + 1 :].prod(0) for k in range(T)])  # Π_{j>k} f_j
    expanded = (i * kept * g).sum(0)  # [LSTM-FG 25.26]
    assert rel(expanded + f.prod(0) * c[0], c[T]) < EXACT
    assert rel(expanded, c[T]) > 1e-3  # i_1 = 1, as printed, would not mend it: c_0 = 0 does
    i_1 = torch.cat([torch.ones(1, m).double(), i[1:]])
    assert rel((i_1 * kept * g).sum(0), c[T]) > 1e-3
    from_zero = case.layer(case.x, (case.start[0], torch.zeros(1, m).double()))[1][1][0]
    assert rel(from_zero, c[T]) > 1e-3  # and c_0 matters


def test_004_12_open_input_closed_forget_gate_is_not_elman():
    layer: Any = ll.LSTM(n, m, **REFERENCE)
    x = torch.randn(T, n).double()
    with torch.no_grad():
        for gate, bias in (("i", 60.0), ("f", -60.0)):
            layer.bias_ih_l0[rows(gate)] = bias
    y, (h, _) = layer(x)
    a = layer.weight_ih_l0 @ x[-1] + layer.weight_hh_l0 @ y[-2] + layer.bias_ih_l0 + layer.bias_hh_l0
    o, g = a[rows("o")], a[rows("g")]
    assert rel(torch.sigmoid(o) * torch.tanh(torch.tanh(g)), h[0]) < EXACT
    assert rel(torch.tanh(g), h[0]) > 0.1  # printed: the simple recurrent network
