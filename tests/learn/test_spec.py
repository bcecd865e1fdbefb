"""The forward recursions of the papers, written out unit by unit in NumPy, against the rules."""

import numpy as np
import torch
from helpers import DEFAULTS, numpy_weights, randn, same
from learn.course import case as make_case
from learn.course import forward, make

import longlag as ll
from longlag import cells
from longlag.learn import RTRL, LocalForward, TruncatedRTRL


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def f(a):
    return np.tanh(a / 2)


def df(a):
    return (1 - f(a) ** 2) / 2


def one_by_one(layer, c):
    """The sequences of a case, each alone: x (T, I) and dy (T, O)."""
    return [(c.x[:, b].numpy(), c.dy[:, b].numpy()) for b in range(c.x.shape[1])]


def at_rest(layer):
    return make_case(layer, ragged=False)._replace(state=None)


def test_local_forward_is_section_2_1():
    """LF-92 2.1: one trace E per weight and one F per gain; δ goes back within the step."""
    n, (mS, mN, mA), (lS, lN, lA) = 3, (2, 3, 2), (2, 1, 2)
    net = ll.LocalFeedbackNetwork(n, (mS, mN, mA), (lS, lN, lA), constrain=None, **DEFAULTS)
    c = at_rest(net)
    w = {k.removeprefix("groups."): v for k, v in numpy_weights(net).items()}
    g = {k: np.zeros_like(v) for k, v in w.items()}
    dynamic = ["hidden_0_net", "hidden_0_activation", "output_net", "output_activation"]
    for x, dy in one_by_one(net, c):
        a = {k: np.zeros(len(w[f"{k}.weight_ih_l0"])) for k in dynamic}
        E = {k: np.zeros_like(w[f"{k}.weight_ih_l0"]) for k in dynamic}
        F = {k: np.zeros(len(a[k])) for k in dynamic}
        for t in range(len(x)):
            for k in dynamic:
                W = w[f"{k}.weight_ih_l0"]
                for j in range(len(W)):
                    if k.endswith("net"):
                        u = w[f"{k}.u_l0"][j]
                        gain, source, past = u, a[k][j], u * a[k][j]
                    else:
                        v, h = w[f"{k}.v_l0"][j], f(a[k][j]) if t else 0.0
                        gain, source, past = v * df(a[k][j]), h, v * h
                    E[k][j] = gain * E[k][j] + x[t]
                    F[k][j] = gain * F[k][j] + source
                    a[k][j] = past + W[j] @ x[t]
            a_static = w["hidden_0_static.weight_ih_l0"] @ x[t]
            h = np.concatenate([f(a_static), f(a["hidden_0_net"]), f(a["hidden_0_activation"])])
            w_out = w["output_static.weight_ih_l0"]
            delta_out = dy[t, :lS] * df(w_out @ h)
            e = w_out.T @ delta_out
            delta = {
                "hidden_0_static": e[:mS] * df(a_static),
                "hidden_0_net": e[mS : mS + mN] * df(a["hidden_0_net"]),
                "hidden_0_activation": e[mS + mN :] * df(a["hidden_0_activation"]),
                "output_net": dy[t, lS : lS + lN] * df(a["output_net"]),
                "output_activation": dy[t, lS + lN :] * df(a["output_activation"]),
            }
            g["output_static.weight_ih_l0"] += np.outer(delta_out, h)
            g["hidden_0_static.weight_ih_l0"] += np.outer(delta["hidden_0_static"], x[t])
            for k in dynamic:
                g[f"{k}.weight_ih_l0"] += delta[k][:, None] * E[k]
                g[f"{k}.{'u' if k.endswith('net') else 'v'}_l0"] += delta[k] * F[k]
    ours = forward(LocalForward(), net, c)[2]
    same({k.removeprefix("groups."): v.numpy() for k, v in ours.items()}, g, "gradient of", 1e-10)


def test_truncated_rtrl_is_section_3_1():
    """LSTM-97 3.1: traces A of the input gates' and B of the cells' weights, everything else of the present."""
    blocks, S, hid = 2, 2, 2
    net = ll.LSTM97(3, blocks, S, hid, 2, init_range=0.8, **DEFAULTS)
    c = at_rest(net)
    w = numpy_weights(net)
    one = lambda k: np.concatenate([w[f"weight_{k}"], w[f"bias_{k}"][:, None]], 1)  # noqa: E731  (bias: source 1)
    W = {k: one(k) for k in ("hid", "ig", "og", "cell", "out")}
    g = {k: np.zeros_like(v) for k, v in W.items()}
    for x, dy in one_by_one(net, c):
        y, s = np.zeros(hid + 2 * blocks + blocks * S), np.zeros((blocks, S))
        A, B = np.zeros((blocks, S, W["ig"].shape[1])), np.zeros((blocks, S, W["ig"].shape[1]))
        for t in range(len(x)):
            source = np.concatenate([x[t], y, [1.0]])
            y_hid, y_ig, y_og = (sigmoid(W[k] @ source) for k in ("hid", "ig", "og"))
            a = (W["cell"] @ source).reshape(blocks, S)
            gate, slope = 4 * sigmoid(a) - 2, 4 * sigmoid(a) * (1 - sigmoid(a))
            s = s + y_ig[:, None] * gate
            h, dh = 2 * sigmoid(s) - 1, 2 * sigmoid(s) * (1 - sigmoid(s))
            y_cell = y_og[:, None] * h
            seen = np.concatenate([y_hid, y_cell.ravel(), [1.0]])
            out = sigmoid(W["out"] @ seen)
            delta = dy[t] * out * (1 - out)
            e = W["out"].T @ delta
            e_hid, e_cell = e[:hid], e[hid:-1].reshape(blocks, S)
            g["out"] += np.outer(delta, seen)
            g["hid"] += np.outer(e_hid * y_hid * (1 - y_hid), source)
            for k in range(blocks):
                g["og"][k] += (e_cell[k] @ h[k]) * y_og[k] * (1 - y_og[k]) * source
                for j in range(S):
                    A[k, j] += gate[k, j] * y_ig[k] * (1 - y_ig[k]) * source
                    B[k, j] += y_ig[k] * slope[k, j] * source
                    epsilon = e_cell[k, j] * y_og[k] * dh[k, j]
                    g["ig"][k] += epsilon * A[k, j]
                    g["cell"][k * S + j] += epsilon * B[k, j]
            y = np.concatenate([y_hid, y_ig, y_og, y_cell.ravel()])
    ours = forward(TruncatedRTRL(), net, c)[2]
    for k, value in g.items():
        same(ours[f"weight_{k}"], value[:, :-1], f"w_{k}", 1e-10)
        same(ours[f"bias_{k}"], value[:, -1], f"bias {k}", 1e-10)


def test_truncated_rtrl_of_the_forget_gate_lstm_is_section_1_3():
    """LSTM-FG 1.3: traces E_i, E_f, E_c with source [h; x; 1]."""
    layer = make("lstm")
    c, H = at_rest(layer), layer.hidden_size
    w = numpy_weights(layer)
    V = np.concatenate([w["weight_hh_l0"], w["weight_ih_l0"], (w["bias_ih_l0"] + w["bias_hh_l0"])[:, None]], 1)
    g = np.zeros_like(V)
    for x, dy in one_by_one(layer, c):
        h, c_before = np.zeros(H), np.zeros(H)
        E = np.zeros((3, H, V.shape[1]))
        for t in range(len(x)):
            xi = np.concatenate([h, x[t], [1.0]])
            i, fg, a, o = (V @ xi).reshape(4, H)
            i, fg, a, o = sigmoid(i), sigmoid(fg), np.tanh(a), sigmoid(o)
            cell = fg * c_before + i * a
            E = fg[:, None] * E + np.stack([a * i * (1 - i), c_before * fg * (1 - fg), i * (1 - a**2)])[..., None] * xi
            epsilon = dy[t] * o * (1 - np.tanh(cell) ** 2)
            g[: 3 * H] += (epsilon[:, None] * E).reshape(3 * H, -1)
            g[3 * H :] += np.outer(dy[t] * np.tanh(cell) * o * (1 - o), xi)
            h, c_before = o * np.tanh(cell), cell
    ours = forward(TruncatedRTRL(), layer, c)[2]
    same(ours["weight_hh_l0"], g[:, :H], "U", 1e-10)
    same(ours["weight_ih_l0"], g[:, H:-1], "W", 1e-10)
    same(ours["bias_ih_l0"], g[:, -1], "b", 1e-10)


def test_rtrl_is_the_recursion_of_rnn97():
    """RNN-97 1: P_k,ij(t+1) = δ_ki [y; x]_j + Σ_j* w_kj* σ'(net_j*) P_j*,ij(t)."""
    layer = ll.Recurrent(cells.rnn97, 2, 3, bias=False, **DEFAULTS)
    c, d = at_rest(layer), 3
    w = np.concatenate([numpy_weights(layer)["weight_hh_l0"], numpy_weights(layer)["weight_ih_l0"]], 1)
    g = np.zeros_like(w)
    for x, dy in one_by_one(layer, c):
        y, slope, P = np.zeros(d), np.zeros(d), np.zeros((d, *w.shape))
        for t in range(len(x)):
            source, new = np.concatenate([y, x[t]]), np.zeros_like(P)
            for k in range(d):
                for i in range(d):
                    for j in range(w.shape[1]):
                        past = sum(w[k, m] * slope[m] * P[m, i, j] for m in range(d))
                        new[k, i, j] = (source[j] if k == i else 0.0) + past
            y, P = sigmoid(w @ source), new
            slope = y * (1 - y)
            g += np.einsum("k,kij->ij", dy[t] * slope, P)
    ours = forward(RTRL(), layer, c)[2]
    same(ours["weight_hh_l0"], g[:, :d], "recurrent", 1e-10)
    same(ours["weight_ih_l0"], g[:, d:], "input", 1e-10)


def test_rtrl_is_the_recursion_of_jordan():
    """JORDAN 2: Z = D_out + V Λ (D_rec + U S), S = (diag p − p pᵀ) Z, S = ∂p/∂vec θ."""
    layer = make("jordan")
    c, (m, l) = at_rest(layer), (layer.hidden_size, layer.output_size)
    w = numpy_weights(layer)
    U, W, V, b, c_out = (w[k] for k in ("weight_fb", "weight_ih", "weight_ho", "bias_h", "bias_o"))
    sizes = [U.size, W.size, b.size, V.size, c_out.size]
    total = np.zeros(sum(sizes))
    for x, dy in one_by_one(layer, c):
        p, S = np.full(l, 1 / l), np.zeros((l, len(total)))
        for t in range(len(x)):
            h = np.tanh(W @ x[t] + U @ p + b)
            # θ row by row: ∂(A v)/∂A = I ⊗ vᵀ
            D_rec = [np.kron(np.eye(m), p), np.kron(np.eye(m), x[t]), np.eye(m)]
            D_rec = np.concatenate([*D_rec, np.zeros((m, V.size + l))], 1)
            D_out = np.concatenate([np.zeros((l, U.size + W.size + m)), np.kron(np.eye(l), h), np.eye(l)], 1)
            Z = D_out + V @ ((1 - h**2)[:, None] * (D_rec + U @ S))
            z = V @ h + c_out
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            S = (np.diag(p) - np.outer(p, p)) @ Z
            total += dy[t] @ Z
    ours = forward(RTRL(), layer, c)[2]
    pieces = np.split(total, np.cumsum(sizes)[:-1])
    for name, piece in zip(("weight_fb", "weight_ih", "bias_h", "weight_ho", "bias_o"), pieces):
        same(ours[name], torch.from_numpy(piece).view(ours[name].shape), name, 1e-10)


def test_online_the_traces_keep_the_weights_of_their_step():
    """Weights that change between steps: E(t) is made with u(t) and x(t), not with later ones."""
    layer = make("local_net")
    rule, u = LocalForward(), layer.u_l0
    trace, state, x = rule.start(layer, 1), None, randn(6, 1, 3)
    E, n = np.zeros((4, 3)), np.zeros(4)
    for t in range(6):
        W, b = layer.weight_ih_l0.detach().numpy().copy(), layer.bias_ih_l0.detach().numpy().copy()
        gain = u.detach().numpy().copy()
        y, state, trace = rule.step(layer, x[t], state, trace)
        E = gain[:, None] * E + x[t, 0].numpy()
        n = gain * n + W @ x[t, 0].numpy() + b
        same(rule.gradients(layer, trace, torch.ones_like(y))["weight_ih_l0"], df(n)[:, None] * E, f"{t}", 1e-10)
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * randn(*p.shape, seed=t)
