"""LSTM-FG and GRU written out in NumPy, forward and backward, against `LSTM` and `GRU`."""

import numpy as np
import pytest
from helpers import LAYERS, Head, gradients, numpy_weights, parts, randn, same, some_state, whole

B, H = 2, 4
every_length = pytest.mark.parametrize("T", [1, 2, 7])


def sigma(z):
    return 1 / (1 + np.exp(-z))


def run(T, name):
    layer = LAYERS[name]()
    x = randn(T, B, 3).requires_grad_()
    state = [part.requires_grad_() for part in some_state(layer, B)]
    y, final = layer(x, whole(state))
    return layer, x, state, y, parts(final), numpy_weights(layer)


def rows(matrix, gates):
    """The rows of each gate by its letter."""
    return dict(zip(gates, np.split(matrix, len(gates))))


class OneSequence:
    """[LSTM-FG 1] for one sequence; attributes are the spec's letters, lists over t = 0..T."""

    def __init__(self, P, x, h_0, c_0):
        self.U, self.W = (rows(P[f"weight_{s}_l0"], "ifgo") for s in ("hh", "ih"))
        zero = np.zeros(4 * H)
        self.b = rows(P.get("bias_ih_l0", zero) + P.get("bias_hh_l0", zero), "ifgo")
        self.x = x
        self.h: list[np.ndarray] = [h_0]
        self.c: list[np.ndarray] = [c_0]
        self.i, self.f, self.g, self.o = ([np.zeros(0)] for _ in range(4))  # nothing at t = 0
        for x_t in x:
            net = {a: self.U[a] @ self.h[-1] + self.W[a] @ x_t + self.b[a] for a in "ifgo"}
            self.i.append(sigma(net["i"]))
            self.f.append(sigma(net["f"]))
            self.o.append(sigma(net["o"]))
            self.g.append(np.tanh(net["g"]))
            self.c.append(self.f[-1] * self.c[-1] + self.i[-1] * self.g[-1])
            self.h.append(self.o[-1] * np.tanh(self.c[-1]))

    def backward(self, e):
        """[LSTM-FG 1.1]; e_t = Vᵀ dz_t."""
        T, zero = len(self.x), np.zeros(H)
        dU, dW, db = ({a: np.zeros_like(v) for a, v in group.items()} for group in (self.U, self.W, self.b))
        later, dc, f_later = dict.fromkeys("ifgo", zero), zero, zero
        dx = np.zeros_like(self.x)
        for t in range(T, 0, -1):
            i, f, g, o, c = (seq[t] for seq in (self.i, self.f, self.g, self.o, self.c))
            dh = e[t - 1] + sum(self.U[a].T @ later[a] for a in "ofig")
            dc = dh * o * (1 - np.tanh(c) ** 2) + dc * f_later
            now = {
                "o": dh * np.tanh(c) * o * (1 - o),
                "i": dc * g * i * (1 - i),
                "f": dc * self.c[t - 1] * f * (1 - f),
                "g": dc * i * (1 - g**2),
            }
            for a in "ifgo":
                dU[a] += np.outer(now[a], self.h[t - 1])
                dW[a] += np.outer(now[a], self.x[t - 1])
                db[a] += now[a]
                dx[t - 1] += self.W[a].T @ now[a]
            later, f_later = now, f
        dh_0, dc_0 = sum(self.U[a].T @ later[a] for a in "ifgo"), dc * f_later
        return *(np.concatenate([group[a] for a in "ifgo"]) for group in (dU, dW, db)), dx, dh_0, dc_0


def lstm_sequences(P, x, state):
    h_0, c_0 = (part.detach().numpy()[0] for part in state)
    return [OneSequence(P, x[:, b].detach().numpy(), h_0[b], c_0[b]) for b in range(B)]


@every_length
@pytest.mark.parametrize("name", ["lstm", "lstm_no_bias", "lstm_forget_bias"])
def test_lstm_forward(T, name):
    _, x, state, y, final, P = run(T, name)
    for b, s in enumerate(lstm_sequences(P, x, state)):
        same(y[:, b], np.array(s.h[1:]), "outputs")
        same([part[0, b] for part in final], [s.h[-1], s.c[-1]], "final state")


@every_length
def test_lstm_backward(T):
    layer, x, state, y, _, P = run(T, "lstm")
    head = Head(T, B, H)
    ours = gradients(head.loss(y), layer, x, *state, head.V, head.c_out)
    all_b = lstm_sequences(P, x, state)
    h = np.stack([s.h[1:] for s in all_b], 1)
    found = [s.backward(head.dz(h[:, b], b) @ head.V.detach().numpy()) for b, s in enumerate(all_b)]
    dU, dW, db, dx, dh_0, dc_0 = zip(*found)
    wanted = {"weight_ih_l0": sum(dW), "weight_hh_l0": sum(dU), "bias_ih_l0": sum(db), "bias_hh_l0": sum(db)}
    wanted |= {"0": np.stack(dx, 1), "1": np.stack(dh_0)[None], "2": np.stack(dc_0)[None]}
    same(ours, {**wanted, "3": head.gradients(h)[0], "4": head.gradients(h)[1]})


def test_lstm_memory_is_a_weighted_sum_of_what_was_written():
    """[LSTM-FG 1.4]: c_t = Σ_k w_k^t ⊙ g_k + (Π f) ⊙ c_0, w_k^t = i_k ⊙ Π_{j>k} f_j."""
    T = 7
    _, x, state, _, final, P = run(T, "lstm")
    for b, s in enumerate(lstm_sequences(P, x, state)):
        f = np.array(s.f[1:])
        c = np.prod(f, 0) * s.c[0] + sum(s.i[k] * np.prod(f[k:], 0) * s.g[k] for k in range(1, T + 1))
        same(final[1][0, b], c)


def test_forget_bias_is_the_sum_of_both_biases_of_the_forget_gate():
    P = numpy_weights(LAYERS["lstm_forget_bias"]())
    b = rows(P["bias_ih_l0"] + P["bias_hh_l0"], "ifgo")
    assert (b["f"] == 1).all()
    assert all((abs(b[a]) < 1).all() for a in "igo")


@every_length
def test_gru_forward(T):
    """[GRU 1]: n = tanh(W_n x + b_in + r (U_n h + b_hn)), h = (1−z) n + z h."""
    _, x, (h_0,), y, (final,), P = run(T, "gru")
    W, U = rows(P["weight_ih_l0"], "rzn"), rows(P["weight_hh_l0"], "rzn")
    b_x, b_h = rows(P["bias_ih_l0"], "rzn"), rows(P["bias_hh_l0"], "rzn")
    for b in range(B):
        h = h_0[0, b].detach().numpy()
        for t, x_t in enumerate(x[:, b].detach().numpy()):
            r, z = (sigma(W[a] @ x_t + b_x[a] + U[a] @ h + b_h[a]) for a in "rz")
            n = np.tanh(W["n"] @ x_t + b_x["n"] + r * (U["n"] @ h + b_h["n"]))
            h = (1 - z) * n + z * h
            same(y[t, b], h, f"output {t}")
        same(final[0, b], h, "final state")
