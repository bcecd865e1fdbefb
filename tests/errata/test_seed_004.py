"""Errors in the textbook exercises on sequence models: corrected and printed formulas (LSTM: test_seed_004_lstm)."""

import itertools
from typing import Any

import torch
from helpers import error as rel
from torch.autograd.functional import jacobian
from torch.nn.functional import cross_entropy, layer_norm, linear, one_hot

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
n, m, T = 3, 4, 6


def randomised(layer, std=0.8) -> Any:
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=std)
    return layer


def test_004_1_error_of_the_output_is_p_minus_y():
    torch.manual_seed(0)
    layer, x = randomised(ll.Elman(n, m, **REFERENCE)), torch.randn(T, n).double()
    V, y = torch.randn(m, m).double().requires_grad_(), one_hot(torch.randint(m, (T,)), m).double()
    h = layer(x)[0]
    (truth,) = torch.autograd.grad(cross_entropy(h @ V.t(), y, reduction="sum"), V)
    p = torch.softmax(h @ V.t(), -1)
    assert rel((p - y).t() @ h, truth) < EXACT
    assert abs(rel((y - p).t() @ h, truth) - 2) < EXACT  # printed: uphill


def test_004_7_the_backward_direction_reads_the_next_state():
    torch.manual_seed(1)
    layer, x = randomised(ll.Elman(n, m, bidirectional=True, **REFERENCE)), torch.randn(T, n).double()
    W, U = layer.weight_ih_l0_reverse, layer.weight_hh_l0_reverse
    b = layer.bias_ih_l0_reverse + layer.bias_hh_l0_reverse
    truth = layer(x)[0][:, m:]
    for steps, holds in ((range(T - 1, -1, -1), True), (range(T), False)):  # h²_{t+1}; printed: h²_{t−1}
        h, run = torch.zeros(m).double(), torch.zeros(T, m).double()
        for t in steps:
            h = run[t] = torch.tanh(W @ x[t] + U @ h + b)
        assert rel(run, truth) < EXACT if holds else rel(run, truth) > 0.1


def ln(r, gamma, beta, *, divisor, root=True, eps=1e-5):
    """γ (r − μ)/√(v + ε) + β over the units; ``root=False`` divides by v + ε, "σ" read as the deviation."""
    centred = r - r.mean()
    v = (centred**2).sum() / divisor + eps
    return gamma * centred / (v.sqrt() if root else v) + beta


def ln_case():
    torch.manual_seed(2)
    layer, x = ll.Elman(n, m, norm="layer", **REFERENCE), torch.randn(T, n).double()
    return randomised(layer), x, torch.randn(T, m).double()


def test_004_8_layer_norm_divides_by_the_root_of_the_unbiased_variance():
    layer, x, _ = ln_case()
    W, U, b = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0 + layer.bias_hh_l0
    gamma, beta = layer.norm_weight_l0[0], layer.norm_bias_l0[0]
    for divisor, root, holds in (
        (m - 1, True, True),
        (m - 1, False, False),  # printed: σ without square
        (m, True, False),  # the frameworks' convention
    ):
        h = torch.zeros(m).double()
        for x_t in x:
            h = torch.tanh(ln(W @ x_t + U @ h + b, gamma, beta, divisor=divisor, root=root))
        error = rel(h, layer(x)[1][0])
        assert error < EXACT if holds else error > 0.01
    r = W @ x[0] + b
    torch_way = layer_norm(r, (m,), gamma, beta)
    assert rel(ln(r, gamma, beta, divisor=m), torch_way) < EXACT


def test_004_8_its_backward_pass_divides_by_m_minus_1_too():
    layer, x, weight = ln_case()
    layer.zero_grad()
    (layer(x)[0] * weight).sum().backward()  # L = Σ weight · h, so ∂L_t/∂h_t = weight_t
    W, U, gamma = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), layer.norm_weight_l0[0].detach()
    b, h = (layer.bias_ih_l0 + layer.bias_hh_l0).detach(), layer(x)[0].detach()
    for divisor, holds in ((m - 1, True), (m, False)):
        dr, db, dgamma = torch.zeros(m).double(), torch.zeros(m).double(), torch.zeros(m).double()
        for t in reversed(range(T)):
            r = W @ x[t] + U @ (h[t - 1] if t else torch.zeros(m).double()) + b
            s = (r.var(correction=1) + 1e-5).sqrt()
            r_hat = (r - r.mean()) / s
            a = (1 - h[t] ** 2) * (weight[t] + U.t() @ dr)
            q = gamma * a
            dr = (q - q.mean() - r_hat * (q @ r_hat) / divisor) / s  # [LN-RNN 5 dr]
            db += dr
            dgamma += a * r_hat
        for ours, g in ((db, layer.bias_ih_l0.grad), (dgamma, layer.norm_weight_l0.grad[0])):
            assert rel(ours, g) < EXACT if holds else rel(ours, g) > 0.01


def test_004_9_errors_go_back_through_the_old_weights():
    """MLP with tanh layers and a softmax; δ^{s−1} = a' ⊙ W^sᵀ δ^s before W^s is updated."""
    torch.manual_seed(3)
    sizes, eta = (n, 5, 4, 3), 0.5
    weights = [torch.randn(b, a).double().requires_grad_() for a, b in itertools.pairwise(sizes)]
    x, y = torch.randn(n).double(), one_hot(torch.tensor(1), 3).double()
    h = [x]
    for W in weights[:-1]:
        h.append(torch.tanh(W @ h[-1]))
    z = weights[-1] @ h[-1]
    truth = torch.autograd.grad(cross_entropy(z[None], y[None]), weights)
    for updates_first in (False, True):
        delta, errors = torch.softmax(z, 0) - y, []  # p − y matches softmax with cross entropy; not any pair
        for s in reversed(range(3)):
            dW, W = torch.outer(delta, h[s]), weights[s]
            errors.insert(0, rel(dW, truth[s]))
            if updates_first:
                W = W - eta * dW  # printed
            delta = (1 - h[s] ** 2) * (W.t() @ delta)  # [MLP-BP 7]
        assert errors[2] < EXACT
        assert min(errors[:2]) > 0.05 if updates_first else max(errors) < EXACT


def test_004_10_a_chain_needs_a_start_score():
    """Σ_{t=1}^{n} A[y_t, y_{t−1}] reads y_0; as START it is a start score, and the chain rule of p(y) holds."""
    torch.manual_seed(4)
    K, L = 3, 4
    A, start, V, c = (torch.randn(*size).double() for size in ((K, K), (K,), (K, m), (K,)))
    h = torch.randn(L, m).double()
    B = linear(h, V, c)  # the emissions, undefined in the source

    def score(y, y_0=None):
        first = start[y[0]] if y_0 is None else A[y[0], y_0]
        return first + sum(A[b, a] for a, b in itertools.pairwise(y)) + sum(B[t, k] for t, k in enumerate(y))

    paths = list(itertools.product(range(K), repeat=L))
    scores = torch.stack([score(y) for y in paths])
    alpha = start + B[0]
    for t in range(1, L):
        alpha = B[t] + torch.logsumexp(A + alpha, -1)
    assert rel(torch.logsumexp(alpha, 0), torch.logsumexp(scores, 0)) < EXACT
    # "log probability p(y|x)": the probabilities sum to 1, their logarithms do not
    assert abs(float((scores - torch.logsumexp(alpha, 0)).exp().sum()) - 1) < EXACT
    # y_0 left to whatever index there is (the last label, as Python has it) is another model
    closed = torch.softmax(torch.stack([score(y, y_0=y[-1]) for y in paths]), 0)
    assert rel(closed, torch.softmax(scores, 0)) > 0.1


def test_004_11_teacher_forced_jordan_runs_in_parallel():
    torch.manual_seed(5)
    l = 5
    net = randomised(ll.Jordan(n, m, l, **REFERENCE))
    assert net.weight_fb.shape == (m, l)  # U
    x, y = torch.randn(T, n).double(), torch.randint(l, (T,))
    z = net(x, targets=y)[0]
    hears = jacobian(lambda x: net(x, targets=y)[0], x).abs().sum((1, 3))
    assert torch.equal(hears.diagonal().diag(), hears)  # no step waits for another
    heard = torch.cat([torch.full((1, l), 1 / l, dtype=torch.float64), one_hot(y, l).double()[:-1]])  # p_0 uniform
    for t in torch.randperm(T).tolist():  # in any order
        h = torch.tanh(net.weight_ih @ x[t] + net.weight_fb @ heard[t] + net.bias_h)
        assert rel(net.weight_ho @ h + net.bias_o, z[t]) < EXACT
    assert torch.tril(jacobian(lambda x: net(x)[0], x).abs().sum((1, 3)), -1).any()  # free running: they do
