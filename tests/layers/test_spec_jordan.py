"""JORDAN, PAT-III, PAT-IV and TF-MIX written out in NumPy, forward and backward, against `Jordan`."""

import numpy as np
import pytest
import torch
from helpers import LAYERS, gradients, numpy_weights, parts, randn, rest, same, some_state, whole
from torch.nn.functional import one_hot

from longlag import schedules

B, L = 3, 3  # sequences, classes
every_length = pytest.mark.parametrize("T", [1, 2, 7])
NAMES = ["jordan", "jordan_zero", "jordan_logits", "jordan_argmax", "jordan_hidden"]


def softmax(z):
    p = np.exp(z - z.max())
    return p / p.sum()


def fed_back(kind, z):
    """q_t: what a network running freely hears of its own output. [TF-MIX 4]"""
    return {"soft": softmax(z), "logits": z, "argmax": np.eye(len(z))[np.argmax(z)]}[kind]


class OneSequence:
    """[JORDAN 2] and [PAT-IV] for one sequence; tau: (T,), y: teacher's vectors (T, l). Lists over t = 0..T."""

    def __init__(self, layer, x, fb_0, h_0=None, tau=None, y=None):
        P = numpy_weights(layer)
        self.U, self.W, self.V = P["weight_fb"], P["weight_ih"], P["weight_ho"]
        m = len(self.W)
        self.R = P.get("weight_hh", np.zeros((m, m)))
        self.b, self.c_out = P.get("bias_h", np.zeros(m)), P.get("bias_o", np.zeros(len(fb_0)))
        self.kind, self.x, self.tau = layer.feedback, x, np.zeros(len(x)) if tau is None else tau
        self.h, self.fb, self.z = [np.zeros(m) if h_0 is None else h_0], [fb_0], [np.zeros(0)]
        for t in range(len(x)):
            r = self.R @ self.h[-1] + self.U @ self.fb[-1] + self.W @ x[t] + self.b
            self.h.append(np.tanh(r))
            self.z.append(self.V @ self.h[-1] + self.c_out)
            q = fed_back(self.kind, self.z[-1])
            self.fb.append(q if y is None else self.tau[t] * y[t] + (1 - self.tau[t]) * q)

    def backward(self, dz_of_loss):
        """[TF-MIX 4], of which [JORDAN 2] is τ = 0, R = 0; dz_of_loss (T, l) = m_t (p_t − y_t)."""
        dU, dW, dR, dV = (np.zeros_like(M) for M in (self.U, self.W, self.R, self.V))
        db, dc, dx, dr = np.zeros_like(self.b), np.zeros_like(self.c_out), np.zeros_like(self.x), np.zeros_like(self.b)
        for t in range(len(self.x), 0, -1):
            p, dq = softmax(self.z[t]), (1 - self.tau[t - 1]) * self.U.T @ dr
            through = {"soft": p * (dq - p @ dq), "logits": dq, "argmax": 0}[self.kind]
            dz = dz_of_loss[t - 1] + through
            dV += np.outer(dz, self.h[t])
            dc += dz
            dr = (1 - self.h[t] ** 2) * (self.V.T @ dz + self.R.T @ dr)
            dU += np.outer(dr, self.fb[t - 1])
            dR += np.outer(dr, self.h[t - 1])
            dW += np.outer(dr, self.x[t - 1])
            db += dr
            dx[t - 1] = self.W.T @ dr
        names = {"weight_ih": dW, "weight_fb": dU, "weight_hh": dR, "weight_ho": dV, "bias_h": db, "bias_o": dc}
        return names, dx, self.U.T @ dr, self.R.T @ dr


def setting(T, name, **options):
    layer = LAYERS[name](**options)
    x = randn(T, B, 3).requires_grad_()
    state = [part.requires_grad_() for part in some_state(layer, B)]
    labels = torch.randint(L, (T, B), generator=torch.Generator().manual_seed(3))
    scored = (torch.rand(T, B, generator=torch.Generator().manual_seed(4)) < 0.7).double()
    return layer, x, state, labels, scored


def spelled_out(layer, x, state, labels=None, tau=None):
    values = [part.detach().numpy() for part in state]
    y = None if labels is None else one_hot(labels, L).double().numpy()
    return [
        OneSequence(
            layer,
            x[:, b].detach().numpy(),
            *(part[b] for part in values),
            tau=None if tau is None else tau[:, b],
            y=None if y is None else y[:, b],
        )
        for b in range(B)
    ]


def check(layer, x, state, labels, scored, z, final, sequences):
    """Outputs, final state and all gradients of Σ m_t CE."""
    for b, s in enumerate(sequences):
        same(z[:, b], np.array(s.z[1:]), "logits")
        same([part[b] for part in parts(final)], [s.fb[-1], s.h[-1]][: len(parts(final))], "final state")
    losses = torch.nn.functional.cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none")
    ours = gradients((losses * scored.flatten()).sum(), layer, x, *state)
    y, found = one_hot(labels, L).double().numpy(), []
    for b, s in enumerate(sequences):
        p = np.array([softmax(z_t) for z_t in s.z[1:]])
        found.append(s.backward(scored[:, b, None].numpy() * (p - y[:, b])))
    by_name, dx, dfb_0, dh_0 = zip(*found)
    wanted = {name: sum(d[name] for d in by_name) for name in by_name[0]}
    wanted |= {"0": np.stack(dx, 1), "1": np.stack(dfb_0), "2": np.stack(dh_0)}
    same(ours, {name: wanted[name] for name in ours})


@every_length
@pytest.mark.parametrize("name", NAMES)
def test_free_running(T, name):
    layer, x, state, labels, scored = setting(T, name)
    z, final = layer(x, whole(state))
    check(layer, x, state, labels, scored, z, final, spelled_out(layer, x, state))


@every_length
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("teacher", [0.0, 0.3, 1.0])
def test_a_constant_mixture_of_teacher_and_own_output(T, name, teacher):
    layer, x, state, labels, scored = setting(T, name)
    z, final = layer(x, whole(state), targets=labels, teacher=teacher, draw="mix")
    tau = np.full((T, B), teacher)
    check(layer, x, state, labels, scored, z, final, spelled_out(layer, x, state, labels, tau))


def coins(layer, x, labels, z):
    """τ (T−1, B) that explains the logits z, found step by step: the teacher's answer or the network's own."""
    tau = np.zeros((len(x), x.shape[1]))
    y = one_hot(labels, L).double().numpy()
    start = np.full(L, 1 / L)
    for b in range(x.shape[1]):
        for t in range(1, len(x)):
            explains = []
            for coin in (0.0, 1.0):
                tau[t - 1, b] = coin
                s = OneSequence(layer, x[: t + 1, b].numpy(), start, None, tau[: t + 1, b], y[: t + 1, b])
                explains.append(abs(s.z[-1] - z[t, b].detach().numpy()).max() < 1e-9)
            assert sum(explains) == 1
            tau[t - 1, b] = float(explains[1])
    return tau


@pytest.mark.parametrize("name", ["jordan", "jordan_hidden"])
@pytest.mark.parametrize("draw", ["token", "sequence"])
def test_coins_are_thrown_per_token_or_per_sequence(name, draw):
    layer, batch, T = LAYERS[name](), 60, 4
    x, labels = randn(T, batch, 3), torch.randint(L, (T, batch))
    z, final = layer(x, targets=labels, teacher=0.3, draw=draw)
    tau = coins(layer, x, labels, z)[:-1]
    if draw == "sequence":
        assert (tau == tau[:1]).all()
    else:
        assert (tau != tau[:1]).any()
    drawn = tau.size if draw == "token" else batch
    assert abs(tau.mean() - 0.3) < 4 * (0.3 * 0.7 / drawn) ** 0.5
    own, last = torch.softmax(z[-1], -1), one_hot(labels[-1], L).double()
    fb = parts(final)[0]
    assert all(torch.equal(fb[b], last[b]) or torch.equal(fb[b], own[b]) for b in range(batch))


@every_length
@pytest.mark.parametrize("name", ["jordan", "jordan_hidden"])
def test_gradients_under_thrown_coins(T, name):
    layer, x, _, labels, scored = setting(T, name)
    z, final = layer(x, targets=labels, teacher=0.5, generator=torch.Generator().manual_seed(1))
    again, _ = layer(x, targets=labels, teacher=0.5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(z, again)
    tau = coins(layer, x.detach(), labels, z)
    y = one_hot(labels[-1], L).double()
    tau[-1] = [float(torch.equal(parts(final)[0][b], y[b])) for b in range(B)]
    check(layer, x, [], labels, scored, z, final, spelled_out(layer, x, rest(layer, B), labels, tau))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draw", ["token", "sequence", "mix"])
def test_the_ends_of_the_mixture_are_exact(name, draw):
    """ε = 1 is teacher forcing and ε = 0 free running, bit for bit. [TF-MIX 4]"""
    layer, x, state, labels, _ = setting(7, name)
    forced = layer(x, whole(state), targets=labels)
    free = layer(x, whole(state))
    for wanted, teacher in ((forced, 1.0), (free, 0.0)):
        z, final = layer(x, whole(state), targets=labels, teacher=teacher, draw=draw)
        assert torch.equal(z, wanted[0])
        assert all(map(torch.equal, parts(final), parts(wanted[1])))
    assert not torch.equal(forced[0], free[0])


@pytest.mark.parametrize("lengths", [None, [7, 3, 1]])
@pytest.mark.parametrize("cut", [False, True])
def test_all_steps_at_once_is_the_loop(lengths, cut):
    """Teacher forcing decouples the steps of pattern III; with R = 0 pattern IV must say the same."""
    layer, x, state, labels, _ = setting(7, "jordan")
    looped = LAYERS["jordan_hidden"]()
    looped.load_state_dict({**layer.state_dict(), "weight_hh": torch.zeros(4, 4)})
    options = {"targets": labels, "lengths": lengths}
    options["reset"] = (torch.arange(21).view(7, 3) % 4 == 0) if cut else None
    z, fb = layer(x, *state, **options)
    z_loop, (fb_loop, _) = looped(x, (*state, torch.zeros(B, 4).double()), **options)
    same(z, z_loop)
    assert torch.equal(fb, fb_loop)
    ours, wanted = (gradients((out**2).sum(), net, x, *state) for out, net in ((z, layer), (z_loop, looped)))
    same(ours, {name: wanted[name] for name in ours})


@pytest.mark.parametrize("name", ["jordan", "jordan_hidden"])
def test_the_teacher_is_laid_out_like_the_input(name):
    layer, x, _, labels, _ = setting(5, name)
    z, _ = layer(x, targets=labels)
    turned, _ = LAYERS[name](batch_first=True)(x.transpose(0, 1), targets=labels.t())
    same(turned.transpose(0, 1), z)
    for batch_first in (False, True):
        alone, _ = LAYERS[name](batch_first=batch_first)(x[:, 1], targets=labels[:, 1])
        same(alone, z[:, 1])


def test_vectors_teach_like_classes():
    layer, x, state, labels, _ = setting(7, "jordan")
    vectors = one_hot(labels, L).double()
    for teacher in (1.0, 0.5):
        by_class, by_vector = (layer(x, *state, targets=t, teacher=teacher, draw="mix")[0] for t in (labels, vectors))
        assert torch.equal(by_class, by_vector)


def test_without_own_memory_hidden_feedback_changes_nothing():
    plain, x, state, _, _ = setting(7, "jordan")
    hidden = LAYERS["jordan_hidden"]()
    hidden.load_state_dict({**plain.state_dict(), "weight_hh": torch.zeros(4, 4)})
    same(hidden(x, (*state, randn(B, 4)))[0], plain(x, *state)[0])


def test_sampled_feedback_follows_the_softmax():
    layer, batch = LAYERS["jordan"](feedback="sample"), 4000
    x = randn(2, 1, 3).expand(2, batch, 3)
    z, fb = layer(x[:1])
    assert ((fb == 0) | (fb == 1)).all()
    assert (fb.sum(-1) == 1).all()
    p = torch.softmax(z[0, 0], -1)
    assert ((fb.mean(0) - p).abs() < 4 * (p * (1 - p) / batch).sqrt()).all()
    both, _ = layer(x)  # the second step hears a sample, and there are three
    assert len(both[1].detach().unique(dim=0)) == L


def test_a_network_that_only_listens_to_itself():
    layer = LAYERS["jordan_hidden"](0)
    z, _ = layer(torch.empty(5, B, 0, dtype=torch.float64))
    s = OneSequence(layer, np.zeros((5, 0)), np.full(L, 1 / L))
    same(z[:, 0], np.array(s.z[1:]))


def test_schedules():
    """[TF-MIX 4]: constant, max(ε_min, 1 − ck), cᵏ, c/(c + e^(k/c))."""
    for k in (0, 1, 7, 50):
        assert schedules.constant(0.3)(k) == 0.3
        assert schedules.linear(0.1, 0.2)(k) == max(0.2, 1 - 0.1 * k)
        assert schedules.exponential(0.9)(k) == 0.9**k
        assert schedules.inverse_sigmoid(5.0)(k) == pytest.approx(5 / (5 + np.exp(k / 5)), rel=1e-12)
    assert schedules.inverse_sigmoid(5.0)(10**9) == 0  # and no overflow
