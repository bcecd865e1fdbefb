"""Errors in the note on LSTM (Hochreiter and Schmidhuber 1997), part 1: the conventional net and its error flow.

net(t+1) = w [y(t); x(t)], y = σ(net), d units; outputs y(1)..y(T) from inputs x(0)..x(T−1).
"""

import itertools
from typing import Any

import torch
from helpers import error as rel
from torch.autograd.functional import jacobian

import longlag as ll
from longlag.cells import cell

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
d, d_in, T = 4, 3, 6


def slope(net):
    return torch.sigmoid(net) * (1 - torch.sigmoid(net))


def network(units=d, inputs=d_in, seed=0) -> Any:
    torch.manual_seed(seed)
    layer: Any = ll.Recurrent(ll.cells.rnn97, inputs, units, bias=False, **REFERENCE)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.weight_hh_l0.normal_()
    return layer


def case(seed=0):
    """A net, inputs (T, d_in), targets (T, d), and autograd's gradient of ½ Σ (y−ŷ)² for w = [recurrent, input]."""
    layer = network(seed=seed)
    x, target = torch.randn(T, d_in).double(), torch.rand(T, d).double()
    (0.5 * (layer(x)[0] - target) ** 2).sum().backward()
    return layer, x, target, torch.cat([layer.weight_hh_l0.grad, layer.weight_ih_l0.grad], 1)


def nets_of(layer, x):
    """net(1)..net(T) and the sources [y(t); x(t)] that made them, step by step."""
    w = torch.cat([layer.weight_hh_l0, layer.weight_ih_l0], 1).detach()
    y, nets, sources = x.new_zeros(len(w)), [], []
    for x_t in x:
        sources.append(torch.cat([y, x_t]))
        nets.append(w @ sources[-1])  # [RNN-97 1 net]
        y = torch.sigmoid(nets[-1])
    return torch.stack(nets), torch.stack(sources), w


def test_001_1_the_slope_is_taken_at_t():
    layer, x, target, truth = case()
    nets, sources, w = nets_of(layer, torch.cat([x, torch.randn(1, d_in).double()]))  # net(T+1) for the printed one
    for shift, holds in ((0, True), (1, False)):
        theta, dw = x.new_zeros(d), torch.zeros_like(w)
        for t in reversed(range(T)):
            error = torch.sigmoid(nets[t]) - target[t]
            theta = slope(nets[t + shift]) * (error + w[:, :d].t() @ theta)  # [RNN-97 1 BPTT]
            dw += torch.outer(theta, sources[t])
        assert rel(dw, truth) < EXACT if holds else rel(dw, truth) > 0.3


def test_001_2_the_direct_term_carries_delta_ki():
    layer, x, target, truth = case(seed=1)
    nets, sources, w = nets_of(layer, x)
    for delta, holds in ((torch.eye(d).double(), True), (torch.ones(d, d).double(), False)):
        P, dw = x.new_zeros(d, d, d + d_in), torch.zeros_like(w)
        before = x.new_zeros(d)
        for t in range(T):
            P = delta[:, :, None] * sources[t] + torch.einsum("kl,lij->kij", w[:, :d] * before, P)  # [RNN-97 1 RTRL]
            before = slope(nets[t])
            dw += torch.einsum("k,kij->ij", (torch.sigmoid(nets[t]) - target[t]) * before, P)
        assert rel(dw, truth) < EXACT if holds else rel(dw, truth) > 0.3


def flow(U, x, n, state=None):
    """∂ϑ_v(t−n)/∂ϑ_u(t) as (u, v) for the last t: x (T, d) is added to the nets, so ∂net(t)/∂x(t−n) it is."""
    layer = network(len(U), len(U))
    layer.load_state_dict({"weight_ih_l0": torch.eye(len(U)).double(), "weight_hh_l0": U})

    def last_net(x):
        y = layer(x[:-1], state)[0]
        return y[-1] @ U.t() + x[-1]

    return jacobian(last_net, x)[:, -1 - n]


def test_001_3_small_factors_on_every_path_do_not_make_the_sum_small():
    units, n = 20, 10
    U, half = torch.ones(units, units).double(), torch.full((1, units), 0.5).double()
    x = torch.full((n + 1, units), -units / 2).double()  # y = ½ everywhere: all nets 0, every factor w σ' = ¼
    theta = flow(U, x, n, half).t() @ torch.ones(units).double()
    ratio = float(theta.norm() / units**0.5)
    assert abs(ratio / 5.0**n - 1) < EXACT  # 9.8·10⁶, where the printed claim is (¼)ⁿ → 0


def test_001_3_large_factors_on_every_path_may_cancel():
    U, half = torch.tensor([[8.0, 8.0], [-8.0, -8.0]]).double(), torch.full((1, 2), 0.5).double()
    x = torch.tensor([[-8.0, 8.0]] * 3).double()  # nets 0: every factor has modulus 2
    assert flow(U, x, 1, half).abs().min() == 2
    assert flow(U, x, 2, half).abs().max() == 0


def test_001_3_the_norm_bounds_the_flow():
    torch.manual_seed(0)
    for scale in (0.5, 1.0, 3.0):
        U, x = scale * torch.randn(5, 5).double(), torch.randn(9, 5).double()
        for n, order in itertools.product((1, 3, 8), (1, 2, float("inf"))):
            through = torch.linalg.matrix_norm(flow(U, x, n).t(), order)
            assert through <= (0.25 * torch.linalg.matrix_norm(U.t(), order)) ** n
    U = 0.99 * (4 / 5) * torch.ones(5, 5).double()  # |w_ij| < 4/d is enough to vanish
    assert torch.linalg.matrix_norm(flow(U, x, 8), 2) < 0.99**8


def test_001_4_a_single_large_weight_does_not_vanish():
    """k_0 ← k_1 ← k_2: the weight into k_0 does not enter net_{k_1}, so for n = 1 the factor grows linearly."""
    x = torch.tensor([[0.3, 0.3, 0.3]] * 4).double()
    half = slope(x[0, 0])  # σ'(net_{k_1}(t−1)), no weight in it
    for w in (10.0, 100.0, 1000.0):
        U = torch.zeros(3, 3).double()
        U[0, 1] = w
        assert rel(flow(U, x, 1)[0, 1], w * half) < EXACT  # 24.4 at w = 100; printed: → 0
        U[1, 2] = w
        if w >= 100:
            assert 0 <= flow(U, x, 2)[0, 2] < 1e-16  # both weights grow: net_{k_1} saturates


def test_001_4_large_weights_that_cancel_in_the_nets_explode():
    """Two weights into each unit grow together and cancel: x = 0 keeps the nets at 0, the slopes at ¼."""
    x, n = torch.zeros(7, 2).double(), 5
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    for c in (10.0, 100.0, 1000.0):
        assert rel(flow(c * opposite, x, n), (c / 2) ** n / 2 * opposite) < EXACT  # printed: → 0 as c grows
        # one of the two fixed at −10: the net of its unit leaves 0 with c, and the path of growing weights vanishes
        fixed = torch.tensor([[c, -10.0], [-10.0, c]]).double()
        assert c == 10 or flow(fixed, x, n).abs().max() < 1e-9


def test_001_5_error_flow_is_a_sum_over_paths_in_this_index_order():
    torch.manual_seed(1)
    U, x, n, units = torch.randn(3, 3).double(), torch.randn(6, 3).double(), 3, range(3)
    layer = network(3, 3)
    layer.load_state_dict({"weight_ih_l0": torch.eye(3).double(), "weight_hh_l0": U})
    s = slope(nets_of(layer, x)[0])
    ours, printed = torch.zeros(3, 3).double(), torch.zeros(3, 3).double()
    for u, v in itertools.product(units, units):
        for middle in itertools.product(units, repeat=n - 1):
            k = (u, *middle, v)
            factors = torch.stack([s[-1 - q, k[q]] for q in range(1, n + 1)]).prod()
            ours[u, v] += factors * torch.stack([U[k[q - 1], k[q]] for q in range(1, n + 1)]).prod()
            printed[u, v] += factors * torch.stack([U[k[q], k[q - 1]] for q in range(1, n + 1)]).prod()
    truth = flow(U, x, n)
    assert rel(ours, truth) < EXACT
    assert rel(printed, truth) > 0.3  # the paper's (3.2), transposed


def test_001_5_where_a_weight_passes_most_error():
    """|w σ'(w y + c)| is largest at w = coth(net/2)/y, where the net is the one this weight enters."""
    for y, c in ((0.7, 0.4), (0.3, -0.2)):
        low, high = torch.tensor(0.1).double(), torch.tensor(30.0).double()
        for _ in range(200):  # golden section on a function with one maximum
            a, b = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
            low, high = (low, b) if a * slope(a * y + c) > b * slope(b * y + c) else (a, high)
        assert abs(float(low * y * torch.tanh((low * y + c) / 2)) - 1) < 1e-6


@cell(gates="a", params="w C")
def carousel(a, w, C):
    return (a + C) / w  # w f'(net) = 1; division by w, not multiplication


def test_001_6_a_carousel_is_constant_only_without_the_integration_constant():
    w, steps = 2.5, 30
    for C in (0.0, 0.5):
        layer = ll.Recurrent(carousel, 1, 1, bias=False, **REFERENCE)
        values = {"weight_ih_l0": [[0.0]], "weight_hh_l0": [[w]], "w_l0": [w], "C_l0": [C]}
        layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
        start = torch.tensor([[0.7]], dtype=torch.float64, requires_grad=True)
        y, _ = layer(torch.zeros(steps, 1).double(), start)
        (error,) = torch.autograd.grad(y[-1].sum(), start)
        assert rel(error, torch.ones(1, 1).double()) < EXACT  # constant error for every C
        assert rel(y[:, 0], 0.7 + torch.arange(1, steps + 1).double() * C / w) < EXACT
        assert (rel(y[-1], start[0]) < EXACT) == (C == 0)  # constant activation, as printed, for C = 0 only


def test_001_7_recurrent_columns_come_first():
    """w has the sources [y; x]: recurrent weights w_{j,i}, input weights w_{j,d+i}; the text has them exchanged."""
    layer, x = network(3, 3, seed=2), torch.randn(T, 3).double()
    w, y, exchanged = nets_of(layer, x)[2], x.new_zeros(3), x.new_zeros(3)
    for x_t in x:
        y = torch.sigmoid(w[:, :3] @ y + w[:, 3:] @ x_t)
        exchanged = torch.sigmoid(w[:, :3] @ x_t + w[:, 3:] @ exchanged)
    truth = layer(x)[1][0]
    assert rel(y, truth) < EXACT
    assert rel(exchanged, truth) > 0.1
