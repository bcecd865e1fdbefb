"""Error flow as a sum over paths: eq. 13-14 of the 1997 source, against autograd and against loops. [RNN-97 1.1]"""

import itertools

import helpers
import pytest
import torch
from torch import nn

import longlag as ll
from longlag import cells, flow

T, B, d = 6, 2, 3
KINDS = {
    "rnn97": (lambda: ll.Recurrent(cells.rnn97, d, d, bias=False, dtype=torch.float64), torch.sigmoid),
    "elman": (lambda: ll.Elman(d, d, bias=False, dtype=torch.float64), torch.tanh),
    "relu": (lambda: ll.Elman(d, d, bias=False, nonlinearity="relu", dtype=torch.float64), torch.relu),
    "torch": (lambda: nn.RNN(d, d, bias=False, dtype=torch.float64), torch.tanh),
}


def case(name):
    """A layer whose net inputs are x(t) + U y(t−1), its squashing function, and x."""
    torch.manual_seed(5)
    layer, f = KINDS[name][0](), KINDS[name][1]
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(d))
        layer.weight_hh_l0.normal_()
    return layer, f, helpers.randn(T, B, d, seed=2)


def nets_of(U, f, x):
    nets, y = [], torch.zeros(B, d, dtype=torch.float64)
    for x_t in x:
        nets.append(x_t + y @ U.t())
        y = f(nets[-1])
    return torch.stack(nets)


def thetas(layer, f, x, error, t):
    """∂L/∂net(t−q), L = Σ error · y(t): x(t) is added to net(t), so its gradient is that of net(t)."""
    x = x[: t + 1].clone().requires_grad_()
    y, U = torch.zeros(B, d, dtype=torch.float64), layer.weight_hh_l0.detach()
    for x_t in x:
        y = f(x_t + y @ U.t())
    return torch.autograd.grad((error * y).sum(), x)[0].flip(0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("t", [None, 4])
def test_net_errors_are_the_gradients_of_the_net_inputs(name, t):
    layer, f, x = case(name)
    error = helpers.randn(B, d, seed=3)
    found = flow.net_errors(layer, x, error, t)
    helpers.same(found, thetas(layer, f, x, error, T - 1 if t is None else t), name, 1e-12)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lag", [1, 2, 4])
def test_paths_of_net_inputs_are_equation_13_to_14(name, lag):
    """∂ϑ_v(t−n)/∂ϑ_u(t) = Σ_{k1..k(n−1)} Π_q w_k(q−1)k(q) f′(net_k(q)(t−q)): each path, and their sum."""
    layer, f, x = case(name)
    t, U = 4, layer.weight_hh_l0.detach()
    paths = flow.path_products(layer, x, lag, t, of="net")
    assert paths.shape == (B, *[d] * (lag + 1))
    nets = nets_of(U, f, x).requires_grad_()
    slopes = torch.autograd.grad(f(nets).sum(), nets)[0]
    for b, route in itertools.product(range(B), itertools.product(range(d), repeat=lag + 1)):
        product = 1.0
        for q in range(1, lag + 1):
            product *= float(U[route[q - 1], route[q]] * slopes[t - q, b, route[q]])
        assert float(paths[(b, *route)]) == pytest.approx(product, rel=1e-12, abs=1e-15)
    # the sum over the inner units carries any error ϑ(t) back to ϑ(t−n)
    total = paths.flatten(2, -2).sum(2) if lag > 1 else paths
    for seed in (7, 8):
        wanted = thetas(layer, f, x, helpers.randn(B, d, seed=seed), t)
        helpers.same(torch.einsum("buv, bu -> bv", total, wanted[0]), wanted[lag], f"{name} lag {lag}", 1e-12)


def test_the_slopes_of_outputs_are_one_step_later():
    """∂y/∂y and ∂ϑ/∂ϑ differ by the slopes at their ends: f′(net_k0(t)) first, f′(net_kn(t−n)) last."""
    layer, f, x = case("rnn97")
    outputs = flow.path_products(layer, x, 3, 4)
    nets = flow.path_products(layer, x, 3, 4, of="net")
    s = f(nets_of(layer.weight_hh_l0.detach(), f, x))
    slopes = s * (1 - s)
    helpers.same(outputs * slopes[1].view(B, 1, 1, 1, d), nets * slopes[4].view(B, d, 1, 1, 1), tolerance=1e-12)
    assert float((outputs - nets).abs().max()) > 1e-4


def test_the_bound_of_the_source_holds_for_net_errors():
    layer, _, x = case("rnn97")
    theta = flow.net_errors(layer, x, helpers.randn(B, d, seed=3))
    factor = flow.conditions(layer).spectral
    lags = torch.arange(T, dtype=torch.float64).unsqueeze(-1)
    assert bool((theta.norm(dim=-1) <= factor**lags * theta[0].norm(dim=-1) * (1 + 1e-12)).all())


def test_one_sequence_and_a_parametrised_matrix():
    layer, f, x = case("elman")
    error = helpers.randn(B, d, seed=3)
    alone = flow.net_errors(layer, x[:, 1], error[1])
    helpers.same(alone[:, 0], flow.net_errors(layer, x, error)[:, 1], tolerance=1e-12)

    class Doubled(nn.Module):
        def forward(self, raw):
            return 2 * raw

    nn.utils.parametrize.register_parametrization(layer, "weight_hh_l0", Doubled())
    helpers.same(flow.net_errors(layer, x, error), thetas(layer, f, x, error, T - 1), tolerance=1e-12)


X = torch.zeros(5, 2, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda e: flow.path_products(e, X, 5, of="net"),
            ValueError,
            "path_products: lag must be an int of 1..4, got 5",
        ),
        (lambda e: flow.path_products(e, X, True, of="net"), ValueError, "lag must be an int of 1..4, got True"),
        (
            lambda e: flow.path_products(e, X, 1, of="error"),
            ValueError,
            "of must be one of 'output', 'net', got 'error'",
        ),
        (lambda e: flow.net_errors(e, X, torch.zeros(3)), TypeError, "net_errors: error must be torch.float64"),
        (
            lambda e: flow.net_errors(e, X, X[0, 0]),
            ValueError,
            r"net_errors: error must have shape \(2, 3\), got \(3,\)",
        ),
        (
            lambda e: flow.net_errors(ll.LSTM(3, 3).double(), X, X[0]),
            ValueError,
            "net_errors: layer must be one level of",
        ),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call(ll.Elman(3, 3, dtype=torch.float64))
