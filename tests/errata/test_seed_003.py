"""Errors in the note on Elman gradients by vec and Kronecker calculus: corrected and printed formulas.

h_t = tanh(U h_{t−1} + W x_t + b_x + b_h), p = softmax(V h + c), ε = p − y, Λ_t = diag(1 − h_t²). The note's
W_x, W_h, W_y are W, U, V. Its sections 2.3 to 2.6 are missing; here they are.
"""

import torch
from helpers import error as rel
from torch.nn.functional import cross_entropy, linear, one_hot

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
n = m = 3  # as many inputs as units: the printed W_k, read as W_x, can then be evaluated
l, T = 4, 5


class Case:
    """A random network with a non-zero h_0, and autograd's gradients of Σ_t L_t in ``truth``."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        layer = ll.Elman(n, m, **REFERENCE)
        with torch.no_grad():
            for p in layer.parameters():
                p.normal_(std=0.8)
        V, c = torch.randn(l, m).double().requires_grad_(), torch.randn(l).double().requires_grad_()
        h0 = torch.randn(1, m).double().requires_grad_()
        self.x, self.y = torch.randn(T, n).double(), one_hot(torch.randint(l, (T,)), l).double()
        h = layer(self.x, h0)[0]
        z = linear(h, V, c)
        cross_entropy(z, self.y, reduction="sum").backward()
        leaves = {"V": V, "c": c, "h_0": h0, "W": layer.weight_ih_l0, "U": layer.weight_hh_l0}
        leaves |= {"b_x": layer.bias_ih_l0, "b_h": layer.bias_hh_l0}
        self.truth = {name: leaf.grad for name, leaf in leaves.items()}
        self.U, self.W, self.V = (leaves[name].detach() for name in "UWV")
        self.h = torch.cat([h0, h]).detach()  # h[t], t = 0..T
        self.x = torch.cat([torch.zeros(1, n).double(), self.x])  # x[t], t = 1..T
        self.eps = torch.cat([torch.zeros(1, l).double(), torch.softmax(z, -1).detach() - self.y])
        self.slope = [torch.diag(1 - h_t**2) for h_t in self.h]  # Λ_t

    def phi(self, t, k, U=None):
        """Φ(t, k) = Λ_t U Λ_{t−1} U …, k factors, multiplied left to right."""
        out = torch.eye(m).double()
        for s in range(k):
            out = out @ self.slope[t - s] @ (self.U if U is None else U)
        return out

    def row(self, direct, U=None):
        """Σ_t ε_tᵀ V Σ_{k<t} Φ(t, k) Λ_{t−k} D_{t−k}, with ``direct(t)`` = D_t, the direct term (m, ·)."""
        terms = [
            self.eps[t] @ self.V @ self.phi(t, k, U) @ self.slope[t - k] @ direct(t - k)
            for t in range(1, T + 1)
            for k in range(t)
        ]
        return sum(terms)


def kronecker(source):
    """sourceᵀ ⊗ I_m = ∂(A source)/∂vec A, columns of A stacked."""
    return torch.kron(source[None, :], torch.eye(m).double())


def unvec(row, columns):
    return row.view(columns, -1).t()


def test_003_1_the_recurrent_matrix_stands_in_equation_2():
    case, one = Case(), lambda t: torch.eye(m).double()
    assert rel(case.row(one), case.truth["b_x"]) < EXACT
    assert rel(case.row(one, U=case.W), case.truth["b_x"]) > 0.1  # "W_k", undefined in the note


def test_003_2_each_term_is_a_chain_down_to_the_direct_derivative():
    case = Case(seed=1)
    ours = case.row(lambda t: kronecker(case.x[t]))  # [ELMAN 1.2 W]
    assert rel(unvec(ours, n), case.truth["W"]) < EXACT
    # as garbled for h_2: the last factor Λ_{t−k} of the chain is missing
    printed = sum(
        case.eps[t] @ case.V @ case.phi(t, k) @ kronecker(case.x[t - k]) for t in range(1, T + 1) for k in range(t)
    )
    assert rel(unvec(printed, n), case.truth["W"]) > 0.1


def horner(case, e):
    """dW by e_t = Λ_t (Vᵀ ε_t + Uᵀ e_{t+1}), from e_{T+1} = ``e``."""
    dW = torch.zeros(m, n).double()
    for t in range(T, 0, -1):
        e = case.slope[t] @ (case.V.t() @ case.eps[t] + case.U.t() @ e)  # [ELMAN 1.2 Horner]
        dW += torch.outer(e, case.x[t])
    return dW, e


def test_003_3_the_algorithm_starts_from_zero():
    case = Case(seed=2)
    ours, left_over = horner(case, torch.zeros(m).double())
    assert rel(ours, case.truth["W"]) < EXACT
    assert rel(horner(case, left_over)[0], case.truth["W"]) > 0.01  # e not initialised: the last sequence's
    assert rel(case.U.t() @ left_over, case.truth["h_0"][0]) < EXACT


def test_003_4_products_are_ordered_with_s_increasing_from_left_to_right():
    case = Case(seed=3)
    for ordered in (True, False):
        dW = torch.zeros(m, n).double()
        for t in range(1, T + 1):
            for k in range(1, t + 1):
                chain = torch.eye(m).double()
                for s in range(k + 1, t + 1) if ordered else range(t, k, -1):
                    chain = chain @ case.U.t() @ case.slope[s]
                dW += torch.outer(case.slope[k] @ chain @ case.V.t() @ case.eps[t], case.x[k])
        assert rel(dW, case.truth["W"]) < EXACT if ordered else rel(dW, case.truth["W"]) > 0.01


def test_003_5_the_missing_sections():
    case = Case(seed=4)
    truth, steps = case.truth, range(1, T + 1)
    assert torch.equal(truth["b_x"], truth["b_h"])  # two biases, one gradient
    dU = case.row(lambda t: kronecker(case.h[t - 1]))  # [ELMAN 1.2 U]
    assert rel(unvec(dU, m), truth["U"]) < EXACT
    assert rel(case.row(lambda t: torch.eye(m).double()), truth["b_h"]) < EXACT
    dV = sum(case.eps[t] @ torch.kron(case.h[t][None, :], torch.eye(l).double()) for t in steps)
    assert rel(unvec(dV, m), truth["V"]) < EXACT
    assert rel(case.eps.sum(0), truth["c"]) < EXACT
    assert rel(sum(case.eps[t] @ case.V @ case.phi(t, t) for t in steps), truth["h_0"][0]) < EXACT
