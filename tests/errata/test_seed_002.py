"""Errors in the lecture notes on recurrent networks: corrected and printed formulas.

Elman network r_t = U h_{t−1} + W x_t + b, h = tanh r, z = V h + c, p = softmax z; n inputs, m units, l classes.
"""

from typing import Any

import torch
from helpers import error as rel
from torch.autograd.functional import jacobian
from torch.nn.functional import cross_entropy, linear, one_hot

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
n, m, T = 3, 4, 6
l = m  # as many classes as units: what is printed without transpose can then be evaluated


def case(seed=0) -> Any:
    """An Elman layer, V (l, m), c (l,), inputs (T, n), one-hot targets (T, l)."""
    torch.manual_seed(seed)
    layer = ll.Elman(n, m, **REFERENCE)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.8)
    V, c = torch.randn(l, m).double().requires_grad_(), torch.randn(l).double().requires_grad_()
    return layer, V, c, torch.randn(T, n).double(), one_hot(torch.randint(l, (T,)), l).double()


def test_002_2_factors_of_the_softmax_chain():
    o = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    k, i, exponentials = 1, 3, o.exp().detach().requires_grad_()
    (truth,) = torch.autograd.grad(-torch.log_softmax(o, 0)[k], o)
    Z, p = exponentials.sum(), torch.softmax(o, 0)
    (slope_k,) = torch.autograd.grad((exponentials / Z)[k], exponentials, retain_graph=True)
    (slope_i,) = torch.autograd.grad((exponentials / Z)[i], exponentials, retain_graph=True)
    ours, printed = -exponentials[k] / Z**2, -exponentials[i] / Z**2
    assert rel(ours, slope_k[i]) < EXACT
    assert rel(-1 / p[k] * ours * exponentials[i], truth[i]) < EXACT
    # printed: factors that are no derivative of anything here; their product is right by accident
    assert rel(printed, slope_k[i]) > 0.1
    assert rel(printed, slope_i[i]) > 0.1
    assert rel(-1 / p[i] * printed * exponentials[i], truth[i]) < EXACT


def test_002_3_gradient_of_v_is_an_outer_product():
    layer, V, c, x, y = case()
    h = layer(x)[0]
    (truth,) = torch.autograd.grad(cross_entropy(linear(h, V, c), y, reduction="sum"), V)
    error = torch.softmax(linear(h, V, c), -1) - y
    assert rel(torch.einsum("ti,tj->ij", error, h), truth) < EXACT  # Σ (ŷ − y) hᵀ
    assert rel((error * h).sum(0).expand(l, m), truth) > 0.3  # Σ (ŷ − y) h, which needs l = m to exist


def bptt(layer, V, c, x, y, *, local=False, early_slope=False):
    """∂L/∂h_t (T, m) and ∂L/∂U by BPTT from h_0 = 0.

    local: the recursion as printed for ∂L_t/∂h_t, nothing arrives from later losses.
    early_slope: ∂h_{t+1}/∂a_t · ∂a_t/∂h_t as printed, the slope taken at a_t.
    """
    U, h = layer.weight_hh_l0.detach(), layer(x)[0].detach()
    dr, dU, dhs = torch.zeros(m).double(), torch.zeros_like(U), []
    for t in reversed(range(len(x))):
        dz = torch.softmax(V @ h[t] + c, 0).detach() - y[t]
        later = U.t() @ dr
        if early_slope and t + 1 < len(x):
            later = U.t() @ (dr / (1 - h[t + 1] ** 2) * (1 - h[t] ** 2))
        dh = V.detach().t() @ dz + (0 if local else later)  # [ELMAN 1.1 dh]
        dr = (1 - h[t] ** 2) * dh  # [ELMAN 1.1 dr]
        dU += torch.outer(dr, h[t - 1] if t else torch.zeros(m).double())
        dhs.insert(0, dh)
    return torch.stack(dhs), dU


def total(layer, V, c, x, y):
    """∂L/∂h_t (T, m) and ∂L/∂U by autograd; each h_t is a leaf of its own through `step`."""
    hs, h = [], torch.zeros(1, m).double()
    for x_t in x:
        h = layer.step(x_t, h)[1]
        h.retain_grad()
        hs.append(h)
    layer.zero_grad()
    cross_entropy(linear(torch.cat(hs), V, c), y, reduction="sum").backward()
    return torch.cat([h.grad for h in hs]), layer.weight_hh_l0.grad


def test_002_4_the_recursion_is_for_the_whole_loss():
    network = case(seed=1)
    truth = total(*network)
    for ours, printed, g in zip(bptt(*network), bptt(*network, local=True), truth):
        assert rel(ours, g) < EXACT
        assert rel(printed, g) > 0.1


def test_002_5_both_factors_belong_to_the_next_net_input():
    network = case(seed=2)
    truth = total(*network)
    for ours, printed, g in zip(bptt(*network), bptt(*network, early_slope=True), truth):
        assert rel(ours, g) < EXACT
        assert rel(printed, g) > 0.1


def test_002_6_jacobians_multiply_and_are_not_symmetric():
    layer, _, _, x, _ = case(seed=3)
    U, h0 = layer.weight_hh_l0.detach(), torch.zeros(1, m).double()
    truth = jacobian(lambda h: layer(x, h)[1][0], h0)[:, 0]
    slopes = 1 - layer(x)[0].detach() ** 2
    J = [s[:, None] * U for s in slopes]
    product = torch.linalg.multi_dot(J[::-1])
    assert rel(product, truth) < EXACT
    power = torch.linalg.matrix_power(J[-1], T)  # printed: H does not depend on time
    assert rel(power, truth) > 0.1
    values, Q = torch.linalg.eig(J[-1])
    middle = torch.diag(values**T)
    assert rel((Q @ middle @ torch.linalg.inv(Q)).real, power) < EXACT
    assert rel((Q @ middle @ Q.t()).real, power) > 0.1  # printed: QΛᵏQᵀ


def test_002_7_a_causal_network_does_not_see_later_inputs():
    torch.manual_seed(4)
    x, y = torch.randn(T, n).double(), torch.randint(l, (T,))
    causal = ll.Jordan(n, m, l, hidden_feedback=True, **REFERENCE)
    both = ll.Elman(n, m, bidirectional=True, **REFERENCE)
    seen = jacobian(lambda x: causal(x, targets=y)[0], x).abs().sum((1, 3))  # (t, s): does output t hear input s?
    assert not torch.triu(seen, 1).any()  # p(y_t | y_<t, x_≤t) and no more
    assert (torch.tril(seen) > 1e-8).sum() == T * (T + 1) // 2
    seen = jacobian(lambda x: both(x)[0], x).abs().sum((1, 3))
    assert (seen > 1e-8).all()  # the full condition on x needs the other direction


def test_002_8_teacher_forcing_isolates_steps_only_without_hidden_feedback():
    torch.manual_seed(5)
    x, y = torch.randn(T, n).double(), torch.randint(l, (T,))
    for hidden_feedback in (False, True):
        net = ll.Jordan(n, m, l, hidden_feedback=hidden_feedback, **REFERENCE)
        heard = jacobian(lambda x, net=net: net(x, targets=y)[0], x).abs().sum((1, 3))
        assert heard.diagonal().min() > 1e-8
        assert torch.tril(heard, -1).any() == hidden_feedback


def test_002_9_radius_of_the_matrix_and_of_the_jacobian():
    net = ll.EchoState(n, 60, 1, spectral_radius=0.9, **REFERENCE)
    x = torch.randn(40, 1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    U = net.reservoir.weight_hh_l0
    assert abs(float(torch.linalg.eigvals(U).abs().max()) - 0.9) < EXACT
    assert 0.2 < net.jacobian_radius(x) < 0.8
    assert abs(net.jacobian_radius(0 * x) - 0.9) < EXACT  # they agree at rest only
