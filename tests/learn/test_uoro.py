"""UORO: the recursion, its mean (exactly and over many draws), and where its random signs come from."""

import itertools

import pytest
import torch
from helpers import randn, same
from learn.course import autograd, case, forward, make

import longlag as ll
from longlag.learn import RTRL, UORO, _rank_one


@pytest.mark.parametrize("make_layer", [ll.Elman, ll.LSTM], ids=["elman", "lstm"])
def test_the_mean_over_all_signs_is_the_exact_gradient(make_layer, monkeypatch):
    """Two steps carry s̃ ⊗ θ̃ to the error at the third: all 2^(2n) sequences of signs, n state values."""
    torch.manual_seed(0)
    layer = make_layer(2, 2 if make_layer is ll.Elman else 1, dtype=torch.float64)
    n, x, dy = 2, randn(3, 1, 2), randn(1, layer.hidden_size, seed=1)
    exact, total, one, drawn = last_gradient(RTRL(), layer, x, dy), {}, {}, iter(())
    monkeypatch.setattr(_rank_one, "signs", lambda seed, like: next(drawn).expand(1, n))
    every = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1.0, 1.0), repeat=n)]
    for first, second in itertools.product(every, every):
        drawn = iter((first, second, first))  # the third step's are not read
        one = last_gradient(UORO(), layer, x, dy)
        total = {name: total.get(name, 0) + g / len(every) ** 2 for name, g in one.items()}
    same(total, exact, "mean", 1e-9)
    assert max(float((one[name] - exact[name]).abs().max()) for name in exact) > 1e-3


def last_gradient(rule, layer, x, dy):
    trace, state = rule.start(layer, x.shape[1]), None
    for x_t in x:
        _, state, trace = rule.step(layer, x_t, state, trace)
    return rule.gradients(layer, trace, dy)


@pytest.mark.parametrize("name", ["lstm x2", "lstm97", "local_net"])
def test_the_mean_over_many_draws_is_the_exact_gradient(name):
    """Within standard errors, sequences with resets and pauses included."""
    layer = make(name)
    c = case(layer, T=5)
    wanted = autograd(layer, c)[2]
    generator = torch.Generator().manual_seed(0)
    draws = [forward(UORO(generator), layer, c)[2] for _ in range(80)]
    z = []
    for key, exact in wanted.items():
        found = torch.stack([draw[key] for draw in draws])
        spread = found.std(0) / len(draws) ** 0.5
        random = spread > 1e-12
        same(found[0][~random], exact[~random], key, 1e-9)  # parameters that act on the output alone
        z.append(((found.mean(0) - exact) / spread)[random])
    z = torch.cat(z)
    assert float(z.abs().max()) < 5
    assert 0.5 < float(z.square().mean().sqrt()) < 1.5


def test_the_recursion_of_the_paper():
    """Tallec and Ollivier 2018, algorithm 1, on an Elman layer without bias."""
    layer = ll.Elman(2, 3, bias=False, dtype=torch.float64)
    W, U = (p.detach() for p in layer.parameters())
    x, dy, h = randn(4, 1, 2), randn(1, 3, seed=1), torch.zeros(3, dtype=torch.float64)
    rule = UORO(torch.Generator().manual_seed(7))
    trace, state = rule.start(layer, 1), None
    seed = trace.values["seed"]
    s, theta, eps = torch.zeros_like(h), torch.zeros(15, dtype=torch.float64), 1e-7
    for t in range(4):
        before = s, theta, h
        nu = _rank_one.signs(seed + t, h.view(1, 3, 1))[0]
        assert set(nu.tolist()) <= {-1.0, 1.0}
        new = torch.tanh(W @ x[t, 0] + U @ h)
        slope = 1 - new**2
        pushed = slope * (U @ s)
        direct = torch.cat([torch.outer(nu * slope, x[t, 0]).flatten(), torch.outer(nu * slope, h).flatten()])
        rho_0 = (theta.norm() / (pushed.norm() + eps)).sqrt() + eps
        rho_1 = (direct.norm() / (nu.norm() + eps)).sqrt() + eps
        s, theta, h = rho_0 * pushed + rho_1 * nu, theta / rho_0 + direct / rho_1, new
        _, state, trace = rule.step(layer, x[t], state, trace)
        s_before, theta_before, h_before = before
        da = dy[0] * slope
        wanted = ((da @ U) @ s_before) * theta_before
        wanted += torch.cat([torch.outer(da, x[t, 0]).flatten(), torch.outer(da, h_before).flatten()])
        ours = rule.gradients(layer, trace, dy)
        same(torch.cat([ours["weight_ih_l0"].flatten(), ours["weight_hh_l0"].flatten()]), wanted, f"{t}", 1e-10)


def test_the_generator_decides_the_signs_and_a_trace_keeps_its_own():
    layer = make("gru")
    c = case(layer, ragged=False)

    def run(seed):
        return forward(UORO(torch.Generator().manual_seed(seed)), layer, c)[2]

    same(run(1), run(1), "same seed", 0.0)
    assert not torch.equal(run(1)["weight_hh_l0"], run(2)["weight_hh_l0"])
    torch.manual_seed(3)
    first = forward(UORO(), layer, c)[2]
    torch.manual_seed(3)
    same(forward(UORO(), layer, c)[2], first, "torch's generator", 0.0)

    rule = UORO()
    trace, state = rule.start(layer, 3), c.state
    _, state, trace = rule.step(layer, c.x[0], state, trace)
    twin = trace.clone()
    one, two = (rule.gradients(layer, rule.step(layer, c.x[1], state, t)[2], c.dy[1]) for t in (trace, twin))
    same(one, two, "clone", 0.0)


def test_the_memory_is_one_number_per_parameter_and_state():
    layer = ll.GRU(10, 20)
    rule = UORO()
    _, _, trace = rule.step(layer, torch.randn(2, 10), None, rule.start(layer, 2))
    held = sum(v.numel() for v in trace.values["after"].values())
    w = sum(p.numel() for p in layer.parameters())
    assert held <= 2 * (w + 20)


def test_refusals():
    with pytest.raises(TypeError, match=r"UORO: generator must be a torch\.Generator or None, got int"):
        UORO(0)  # pyright: ignore[reportArgumentType]
    assert repr(UORO(torch.Generator())) == "UORO()"
