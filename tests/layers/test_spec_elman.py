"""ELMAN, PAT-I, PAT-II and MLP-BP written out in NumPy, forward and backward, against `Elman`."""

import numpy as np
import pytest
import torch
from helpers import LAYERS, Head, gradients, numpy_weights, randn, same, some_state

B = 2
every_length = pytest.mark.parametrize("T", [1, 2, 7])


def run(T, name="elman"):
    """A layer, its input and initial state as leaves, its outputs and final state, its weights in NumPy."""
    layer = LAYERS[name]()
    x, h_0 = randn(T, B, 3).requires_grad_(), some_state(layer, B)[0].requires_grad_()
    y, final = layer(x, h_0)
    P = numpy_weights(layer)
    zero = np.zeros(4)
    weights = P["weight_hh_l0"], P["weight_ih_l0"], P.get("bias_ih_l0", zero) + P.get("bias_hh_l0", zero)
    return layer, x, h_0, y, final, weights


def forward(U, W, b, x, h_0, act=np.tanh):
    """h_0 … h_T of one sequence, unit by unit. [ELMAN 1]"""
    h = [h_0]
    for t in range(len(x)):
        r = [sum(U[j] * h[t]) + sum(W[j] * x[t]) + b[j] for j in range(len(b))]
        h.append(act(np.array(r)))
    return np.array(h)


def sequences(x, h_0):
    return [(x[:, b].detach().numpy(), h_0[0, b].detach().numpy()) for b in range(B)]


def hidden(weights, x, h_0):
    """h_1 … h_T of all sequences (T, B, H)."""
    U, W, b = weights
    return np.stack([forward(U, W, b, *sequence)[1:] for sequence in sequences(x, h_0)], 1)


@every_length
@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("elman", np.tanh),
        ("elman_no_bias", np.tanh),
        ("elman_relu", lambda r: np.maximum(r, 0)),
        ("rnn97", lambda r: 1 / (1 + np.exp(-r))),
    ],
)
def test_forward(T, name, act):
    _, x, h_0, y, final, weights = run(T, name)
    for b, sequence in enumerate(sequences(x, h_0)):
        h = forward(*weights, *sequence, act)
        same(y[:, b], h[1:], "outputs")
        same(final[0, b], h[-1], "final state")


def bptt(U, W, b, x, h, e):
    """[ELMAN 1.1] for one sequence: x (T, n), h_0…h_T, e_t = Vᵀ dz_t."""
    dU, dW, db, dx, dr = np.zeros_like(U), np.zeros_like(W), np.zeros_like(b), np.zeros_like(x), np.zeros_like(b)
    for t in reversed(range(len(x))):
        dh = e[t] + U.T @ dr
        dr = (1 - h[t + 1] ** 2) * dh
        dU += np.outer(dr, h[t])
        dW += np.outer(dr, x[t])
        db += dr
        dx[t] = W.T @ dr
    return dU, dW, db, dx, U.T @ dr


def closed_form(U, W, b, x, h, e):
    """[ELMAN 1.2]: Σ_t Σ_k Λ_k [Π_{s=k+1}^{t} Uᵀ Λ_s] e_t times x_kᵀ, h_{k−1}ᵀ or 1; indices from 1."""
    lam = [None, *(np.diag(1 - h[t] ** 2) for t in range(1, len(h)))]
    dU, dW, db, dh_0 = np.zeros_like(U), np.zeros_like(W), np.zeros_like(b), np.zeros_like(b)
    for t in range(1, len(h)):
        for k in range(1, t + 1):
            product = np.eye(len(b))
            for s in range(k + 1, t + 1):
                product = product @ U.T @ lam[s]
            term = lam[k] @ product @ e[t - 1]
            dU += np.outer(term, h[k - 1])
            dW += np.outer(term, x[k - 1])
            db += term
        product = np.eye(len(b))
        for s in range(1, t + 1):
            product = product @ U.T @ lam[s]
        dh_0 += product @ e[t - 1]
    return dU, dW, db, None, dh_0


def kronecker(U, W, b, x, h, e):
    """[ELMAN 1.2], the vec form: ε_tᵀ V Σ_k Φ(t,k) Λ_{t−k} (sourceᵀ ⊗ I), columns stacked."""
    m = len(b)
    rows = {"U": np.zeros(m * m), "W": np.zeros(m * x.shape[1])}
    for t in range(1, len(h)):
        phi = np.eye(m)
        for k in range(t):
            lam = np.diag(1 - h[t - k] ** 2)
            direct = e[t - 1] @ phi @ lam
            rows["U"] += direct @ np.kron(h[t - k - 1][None], np.eye(m))
            rows["W"] += direct @ np.kron(x[t - k - 1][None], np.eye(m))
            phi = phi @ lam @ U
    return rows["U"].reshape(m, m, order="F"), rows["W"].reshape(m, -1, order="F"), None, None, None


@every_length
@pytest.mark.parametrize("method", [bptt, closed_form, kronecker])
def test_backward_of_pattern_one(T, method):
    layer, x, h_0, y, _, weights = run(T)
    head = Head(T, B, 4)
    ours = gradients(head.loss(y), layer, x, h_0, head.V, head.c_out)
    found = []
    for b, (x_b, h_b) in enumerate(sequences(x, h_0)):
        h = forward(*weights, x_b, h_b)
        found.append(method(*weights, x_b, h, head.dz(h[1:], b) @ head.V.detach().numpy()))
    dU, dW, db, dx, dh_0 = zip(*found)
    same(ours["weight_hh_l0"], sum(dU), "U")
    same(ours["weight_ih_l0"], sum(dW), "W")
    if method is not kronecker:
        same(ours["bias_ih_l0"], sum(db), "b_x")
        same(ours["bias_hh_l0"], sum(db), "b_h")
        same(ours["1"], np.stack(dh_0)[None], "h_0")
    if method is bptt:
        same(ours["0"], np.stack(dx, 1), "x")
    same([ours["2"], ours["3"]], list(head.gradients(hidden(weights, x, h_0))), "V, c_out")


@every_length
def test_backward_of_pattern_two(T):
    """One output after the last valid step: dh_L = Vᵀ(p−y), dh_t = Uᵀ dr_{t+1} before. [PAT-II]"""
    layer, x, h_0, _, _, weights = run(T)
    lengths = torch.tensor([T, (T + 1) // 2])
    y, final = layer(x, h_0, lengths=lengths)
    head = Head(1, B, 4)
    head.m[:] = 1.0
    ours = gradients(head.loss(final), layer, h_0)
    found = []
    for b, (x_b, h_b) in enumerate(sequences(x, h_0)):
        L = int(lengths[b])
        h = forward(*weights, x_b[:L], h_b)
        assert torch.equal(y[L - 1, b], final[0, b])
        e = np.zeros((L, 4))
        e[-1] = (head.dz(h[-1:], b) @ head.V.detach().numpy())[0]
        found.append(bptt(*weights, x_b[:L], h, e))
    dU, dW, db, _, dh_0 = zip(*found)
    wanted = {"weight_ih_l0": sum(dW), "weight_hh_l0": sum(dU), "bias_ih_l0": sum(db), "bias_hh_l0": sum(db)}
    same(ours, {**wanted, "0": np.stack(dh_0)[None]})


@pytest.mark.parametrize("batch", [1, 5])
def test_a_stack_of_static_layers_is_a_feed_forward_net(batch):
    """[MLP-BP 7] with a(z) = tanh(z/2): T = 1, no feedback, the un-updated W carries the error down."""
    layer = LAYERS["local_static"](num_layers=3)
    x = randn(1, batch, 3).requires_grad_()
    y, _ = layer(x)
    P = numpy_weights(layer)
    target = randn(1, batch, 4, seed=3)
    ours = gradients(0.5 * ((y - target) ** 2).sum(), layer, x)

    W, b = ([P[f"{kind}_ih_l{s}"] for s in range(3)] for kind in ("weight", "bias"))
    wanted = {name: np.zeros_like(value) for name, value in P.items()}
    dx = np.zeros((1, batch, 3))
    for i in range(batch):
        h = [x[0, i].detach().numpy()]
        for s in range(3):
            h.append(np.tanh((W[s] @ h[s] + b[s]) / 2))
        same(y[0, i], h[-1])
        delta = 0.5 * (1 - h[3] ** 2) * (h[3] - target[0, i].numpy())
        for s in reversed(range(3)):
            wanted[f"weight_ih_l{s}"] += np.outer(delta, h[s])
            wanted[f"bias_ih_l{s}"] += delta
            delta = W[s].T @ delta * (0.5 * (1 - h[s] ** 2) if s else 1)
        dx[0, i] = delta
    same(ours, {**wanted, "0": dx})
