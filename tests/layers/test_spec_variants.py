"""LEAKY, SKIP and LN-RNN written out in NumPy, forward and backward, against `Leaky`, `Skip` and ``norm``."""

import numpy as np
import pytest
import torch
from helpers import LAYERS, Head, gradients, numpy_weights, randn, same, some_state

B, H = 2, 4
every_length = pytest.mark.parametrize("T", [1, 2, 7])


def run(T, name):
    layer = LAYERS[name]()
    x, state = randn(T, B, 3).requires_grad_(), some_state(layer, B)[0].requires_grad_()
    with torch.no_grad():
        for own, parameter in layer.named_parameters():
            if "norm" in own:
                parameter += randn(*parameter.shape, seed=7)  # γ = 1, β = 0 would hide both
    P = {name.removesuffix("_l0"): value for name, value in numpy_weights(layer).items()}
    y, final = layer(x, state)
    return layer, x, state, y, final, P


def total(gradients_of_sequences, *names):
    """Sums over sequences by the layer's parameter names, x and the initial state stacked again."""
    found = dict(zip(names, zip(*gradients_of_sequences)))
    wanted = {name: sum(values) for name, values in found.items() if name not in ("x", "state")}
    wanted["bias_hh"] = wanted["bias_ih"]
    by_name = {f"{name}_l0": value for name, value in wanted.items()}
    return {**by_name, "0": np.stack(found["x"], 1), "1": np.stack(found["state"])[None]}


def check_backward(T, name, forward, backward, *names):
    layer, x, state, y, final, P = run(T, name)
    head = Head(T, B, H)
    ours = gradients(head.loss(y), layer, x, state, head.V, head.c_out)
    found, outputs = [], []
    for b in range(B):
        kept = forward(P, x[:, b].detach().numpy(), state[0, b].detach().numpy())
        h = kept[0]
        same(y[:, b], h, "outputs")
        same(final[0, b], kept[1], "final state")
        found.append(backward(P, *kept[2:], head.dz(h, b) @ head.V.detach().numpy()))
        outputs.append(h)
    dV, dc_out = head.gradients(np.stack(outputs, 1))
    wanted = {**total(found, *names), "2": dV, "3": dc_out}
    same(ours, {name: wanted[name] for name in ours})
    return ours, wanted


# ------------------------------------------------------------------------------------------------------ LEAKY


def leaky_forward(P, x, h_0):
    """[LEAKY 2] -> outputs, final state, then what the way back needs."""
    h, tau = [h_0], []
    for x_t in x:
        r = P["weight_hh"] @ h[-1] + P["weight_ih"] @ x_t + P["bias_ih"] + P["bias_hh"]
        tau.append(np.tanh(r))
        h.append((1 - 1 / P["alpha"]) * h[-1] + tau[-1] / P["alpha"])
    return np.array(h[1:]), h[-1], x, h, tau


def leaky_backward(P, x, h, tau, e):
    U, W, alpha = P["weight_hh"], P["weight_ih"], P["alpha"]
    dU, dW, db, da, dx = np.zeros_like(U), np.zeros_like(W), np.zeros(H), np.zeros(H), np.zeros_like(x)
    dh = np.zeros(H)
    for t in reversed(range(len(x))):
        dh = dh + e[t]
        dr = dh / alpha * (1 - tau[t] ** 2)
        da += dh * (h[t] - tau[t]) / alpha**2
        dU += np.outer(dr, h[t])
        dW += np.outer(dr, x[t])
        db += dr
        dx[t] = W.T @ dr
        dh = (1 - 1 / alpha) * dh + U.T @ dr
    return dU, dW, db, da, dx, dh


@every_length
def test_leaky(T):
    names = "weight_hh", "weight_ih", "bias_ih", "alpha", "x", "state"
    check_backward(T, "leaky", leaky_forward, leaky_backward, *names)


@every_length
def test_leaky_with_a_learned_time_constant(T):
    """dL/dα̂ = dL/dα σ(α̂), because α = 1 + softplus(α̂)."""
    layer, x, state, y, _, P = run(T, "leaky_learned")
    head = Head(T, B, H)
    raw = layer.parametrizations.alpha_l0.original
    same(P["alpha"], 1 + np.log1p(np.exp(raw.detach().numpy())), "α")
    same(P["alpha"], np.full(H, 2.5), "initial α")
    ours = gradients(head.loss(y), layer)["parametrizations.alpha_l0.original"]
    wanted = 0
    for b in range(B):
        h, _, *kept = leaky_forward(P, x[:, b].detach().numpy(), state[0, b].detach().numpy())
        e = head.dz(h, b) @ head.V.detach().numpy()
        wanted = wanted + leaky_backward(P, *kept, e=e)[3]
    same(ours, wanted / (1 + np.exp(-raw.detach().numpy())), "α̂")


def test_leaky_units_each_with_its_own_time_constant():
    alpha = torch.tensor([1.0, 2.0, 5.0, 50.0])
    layer = LAYERS["leaky"](alpha=alpha)
    same(layer.alpha_l0, alpha.double())
    assert not layer.alpha_l0.requires_grad
    x, P = randn(3, 1, 3), {name.removesuffix("_l0"): v for name, v in numpy_weights(layer).items()}
    same(layer(x)[0][:, 0], leaky_forward(P, x[:, 0].numpy(), np.zeros(H))[0])


# ------------------------------------------------------------------------------------------------------- SKIP


def skip_forward(delays):
    def forward(P, x, buffer):
        """[SKIP 3]; buffer: h_0, h_−1, … newest first."""
        h = {-k: value for k, value in enumerate(buffer)}
        for t in range(1, len(x) + 1):
            r = P["weight_hh"] @ h[t - 1] + P["weight_ih"] @ x[t - 1] + P["bias_ih"] + P["bias_hh"]
            for d, S in zip(delays, P["weight_skip"]):
                r = r + S @ h[t - d]
            h[t] = np.tanh(r)
        T = len(x)
        final = np.array([h[T - k] for k in range(len(buffer))])
        return np.array([h[t] for t in range(1, T + 1)]), final, x, h

    return forward


def skip_backward(delays):
    def backward(P, x, h, e):
        U, S, W, T = P["weight_hh"], P["weight_skip"], P["weight_ih"], len(x)
        dU, dS, dW, db, dx = np.zeros_like(U), np.zeros_like(S), np.zeros_like(W), np.zeros(H), np.zeros_like(x)
        dr = {t: np.zeros(H) for t in range(T + 1, T + 1 + max(delays))}

        def from_later(t):
            """Uᵀ dr_{t+1} + Σ_d S_dᵀ dr_{t+d}, of steps that exist."""
            return sum((M.T @ dr[t + d] for d, M in zip((1, *delays), (U, *S)) if t + d >= 1), np.zeros(H))

        for t in range(T, 0, -1):
            dr[t] = (1 - h[t] ** 2) * (e[t - 1] + from_later(t))
            dU += np.outer(dr[t], h[t - 1])
            for k, d in enumerate(delays):
                dS[k] += np.outer(dr[t], h[t - d])
            dW += np.outer(dr[t], x[t - 1])
            db += dr[t]
            dx[t - 1] = W.T @ dr[t]
        return dU, dS, dW, db, dx, np.array([from_later(-k) for k in range(max(delays))])

    return backward


@every_length
@pytest.mark.parametrize(("name", "delays"), [("skip", (2,)), ("skip_several", (4, 2))])
def test_skip(T, name, delays):
    names = "weight_hh", "weight_skip", "weight_ih", "bias_ih", "x", "state"
    check_backward(T, name, skip_forward(delays), skip_backward(delays), *names)


# ----------------------------------------------------------------------------------------------------- LN-RNN


def norm_forward(P, x, h_0):
    """[LN-RNN 5] with the variance's divisor m−1."""
    h, hats, deviations = [h_0], [], []
    for x_t in x:
        r = P["weight_hh"] @ h[-1] + P["weight_ih"] @ x_t + P["bias_ih"] + P["bias_hh"]
        s = np.sqrt(((r - r.mean()) ** 2).sum() / (H - 1) + 1e-5)
        hats.append((r - r.mean()) / s)
        deviations.append(s)
        h.append(np.tanh(P["norm_weight"][0] * hats[-1] + P["norm_bias"][0]))
    return np.array(h[1:]), h[-1], x, h, hats, deviations


def norm_backward(P, x, h, hats, deviations, e):
    U, W, gamma = P["weight_hh"], P["weight_ih"], P["norm_weight"][0]
    dU, dW, db, dx = np.zeros_like(U), np.zeros_like(W), np.zeros(H), np.zeros_like(x)
    dgamma, dbeta, dr = np.zeros((1, H)), np.zeros((1, H)), np.zeros(H)
    for t in reversed(range(len(x))):
        a = (1 - h[t + 1] ** 2) * (e[t] + U.T @ dr)
        dgamma += a * hats[t]
        dbeta += a
        q = gamma * a
        dr = (q - q.mean() - hats[t] * (q * hats[t]).sum() / (H - 1)) / deviations[t]
        dU += np.outer(dr, h[t])
        dW += np.outer(dr, x[t])
        db += dr
        dx[t] = W.T @ dr
    return dU, dW, db, dgamma, dbeta, dx, U.T @ dr


@every_length
def test_layer_normalisation(T):
    names = "weight_hh", "weight_ih", "bias_ih", "norm_weight", "norm_bias", "x", "state"
    ours, _ = check_backward(T, "elman_norm", norm_forward, norm_backward, *names)
    db = ours["bias_ih_l0"]
    assert db.sum().abs() < 1e-12 * db.abs().max()  # Σ_j dr_j = 0


def test_layer_normalisation_does_not_see_a_common_shift():
    layer, x, state, y, _, _ = run(7, "elman_norm")
    with torch.no_grad():
        layer.bias_ih_l0 += 3.0
    same(layer(x, state)[0], y)


def test_both_divisors_are_the_same_network_with_other_weights():
    """(r − μ)/√(v m/(m−1)) = √((m−1)/m) (r − μ)/√v: γ and ε absorb the factor."""
    paper, torch_ = (LAYERS["elman"](norm=norm) for norm in ("layer", "layer_torch"))
    x = 1e6 * randn(5, B, 3)  # beside such a variance ε does not count
    with torch.no_grad():
        torch_.norm_weight_l0 *= ((H - 1) / H) ** 0.5
    same(paper(x)[0], torch_(x)[0])
    assert (paper(x)[0] - LAYERS["elman"](norm="layer_torch")(x)[0]).abs().max() > 1e-3


def test_the_torch_divisor_is_that_of_torch():
    layer = LAYERS["elman"](norm="layer_torch")
    x, h = randn(4, B, 3), torch.zeros(B, H, dtype=torch.float64)
    y, _ = layer(x)
    norm = torch.nn.LayerNorm(H, dtype=torch.float64)
    for t in range(4):
        r = x[t] @ layer.weight_ih_l0.t() + layer.bias_ih_l0 + h @ layer.weight_hh_l0.t() + layer.bias_hh_l0
        h = torch.tanh(norm(r))
        same(y[t], h)
