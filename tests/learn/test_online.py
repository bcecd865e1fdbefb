"""Online: what it hands to rule and optimiser, when, and what it refuses."""

import math
import re
import warnings
from typing import Any

import pytest
import torch
from helpers import DEFAULTS, randn, same
from torch import nn
from torch.nn.functional import mse_loss

import longlag as ll
from longlag.learn import BPTT, RTRL, LocalForward, Online, TruncatedBPTT, TruncatedRTRL, cross_entropy, squared_error


def refuses(text: str, error: type[Exception] = ValueError):
    return pytest.raises(error, match=re.escape(text))


def learner(
    rule=None, layer=None, readout=True, optimizer: Any = torch.optim.SGD, loss=squared_error, lr=0.1, **options
) -> Any:
    torch.manual_seed(0)
    layer = layer or ll.LSTM(3, 4, **DEFAULTS)
    head = nn.Linear(4, 2, dtype=torch.float64) if readout else None
    parameters = [*layer.parameters(), *(head.parameters() if head else [])]
    return Online(layer, head, loss, rule or RTRL(), optimizer(parameters, lr=lr), **options)


def weights(online):
    modules = [online.layer, *([online.readout] if online.readout else [])]
    return {f"{i}.{name}": p.detach().clone() for i, m in enumerate(modules) for name, p in m.named_parameters()}


def stream(T=12, B=2, seed=0):
    return randn(T, B, 3, seed=seed), randn(T, B, 2, seed=seed + 1)


def test_an_update_at_the_end_of_a_sequence_is_gradient_descent_through_time():
    """every=T: weights constant within the sequence, so the sum of the real-time gradients is exact. [LSTM-97 3.2]"""
    x, d = stream()
    online = learner(every=12)
    before = weights(online)
    y, _ = online.layer(x)
    loss = ((online.readout(y) - d) ** 2).sum() / 2
    modules = [online.layer, online.readout]
    grads = torch.autograd.grad(loss, [p for m in modules for p in m.parameters()])
    for x_t, d_t in zip(x, d):
        online.step(x_t, d_t)
    wanted = {name: p - 0.1 * g for (name, p), g in zip(before.items(), grads)}
    same(weights(online), wanted, "weights", 1e-12)
    assert (online.steps, online.updates) == (12, 1)
    same(online.gradient_norm, math.sqrt(sum(float((g**2).sum()) for g in grads)))


def test_every_step_is_the_papers_online_rule():
    """RTRL with weights that change at every step: E(t) = J(t) E(t−1) + …, with W and U of that step."""
    x, d = stream(5, 1)
    layer = ll.Elman(3, 4, bias=False, **DEFAULTS)
    online = learner(layer=layer)
    W, U, V, b = (p.detach().clone() for p in (*layer.parameters(), *online.readout.parameters()))
    h, E_w, E_u = torch.zeros(4).double(), torch.zeros(4, 4, 3).double(), torch.zeros(4, 4, 4).double()
    eye = torch.eye(4, dtype=torch.float64)
    for x_t, d_t in zip(x, d):
        output = online.step(x_t, d_t)
        new = torch.tanh(W @ x_t[0] + U @ h)
        slope = (1 - new**2)[:, None, None]
        E_w = slope * (torch.einsum("kj,jab->kab", U, E_w) + eye[:, :, None] * x_t[0])
        E_u = slope * (torch.einsum("kj,jab->kab", U, E_u) + eye[:, :, None] * h)
        h = new
        out = V @ h + b
        same(output[0], out, "output")
        e = out - d_t[0]
        dh = V.t() @ e
        V, b = V - 0.1 * torch.outer(e, h), b - 0.1 * e
        W, U = W - 0.1 * torch.einsum("k,kab->ab", dh, E_w), U - 0.1 * torch.einsum("k,kab->ab", dh, E_u)
    same(layer.weight_hh_l0, U, "U", 1e-10)
    same(layer.weight_ih_l0, W, "W", 1e-10)
    same(online.readout.weight, V, "V", 1e-10)


@pytest.mark.parametrize(("every", "k"), [(4, 4), (2, 4), (8, 4)])
def test_truncated_bptt_learns_in_chunks(every, k):
    """State carried over chunks of k steps; every=2·k: two chunks' gradients make one update."""
    x, d = stream(16)
    online, twin = learner(TruncatedBPTT(k), every=every), learner()
    for x_t, d_t in zip(x, d):
        online.step(x_t, d_t)
    state, states, errors = None, [], []
    modules = [twin.layer, twin.readout]
    for t in range(16):  # by hand: errors as they occur; every k-th step (or update) back through the last k
        states.append(state)
        with torch.no_grad():
            y, state = twin.layer.step(x[t], state)
        y.requires_grad_()
        squared_error(twin.readout(y), d[t]).backward()
        errors.append(y.grad)
        if (t + 1) % min(every, k) == 0:
            first = max(0, t + 1 - k)
            outputs, _ = twin.layer(x[first : t + 1], states[first])
            outputs[-len(errors) :].backward(torch.stack(errors))
            errors = []
        if (t + 1) % every == 0:
            twin.optimizer.step()
            for module in modules:
                module.zero_grad()
    same(weights(online), weights(twin), "weights", 1e-10)


def test_the_tail_of_a_stream_is_learned_by_update():
    for rule in (RTRL(), TruncatedBPTT(4), BPTT()):
        x, d = stream(6)
        online = learner(rule, every=4)
        for x_t, d_t in zip(x, d):
            online.step(x_t, d_t)
        before = weights(online)
        online.update()
        assert online.updates == 2
        assert all(bool((before[name] != p).any()) for name, p in weights(online).items())
        after = weights(online)
        online.update()  # nothing is left
        assert online.updates == 2
        same(weights(online), after, "", 0.0)


def test_steps_without_target_teach_nothing_but_move_the_state():
    x, d = stream()
    online = learner()
    before = weights(online)
    outputs = [online.step(x_t) for x_t in x]
    same(weights(online), before, "", 0.0)
    same(torch.stack(outputs), online.readout(online.layer(x)[0]), "outputs")
    assert (online.updates, online.steps) == (0, 12)
    online.step(x[0], d[0])
    assert online.updates == 1


def test_clipping_by_global_norm():
    """CLIP 5: dθ · θ_max/ν if ν > θ_max, over all parameters together."""
    x, d = stream(1)
    free, clipped, loose = learner(), learner(clip=0.01), learner(clip=1e6)
    before = weights(free)
    for online in (free, clipped, loose):
        online.step(x[0], d[0])
    step = {name: p - before[name] for name, p in weights(free).items()}
    wanted = {name: before[name] + s * 0.01 / free.gradient_norm for name, s in step.items()}
    same(weights(clipped), wanted, "clipped", 1e-12)
    same(weights(loose), weights(free), "loose", 0.0)
    assert clipped.gradient_norm == free.gradient_norm > 0.01


class Burst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, d):  # pyright: ignore[reportIncompatibleMethodOverride]
        return d * float("inf")


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    x, d = stream(2)
    online = learner(loss=lambda out, target: squared_error(Burst.apply(out), target))
    before = weights(online)
    online.step(x[0], d[0])
    same(weights(online), before, "", 0.0)
    assert (online.skipped, online.updates) == (1, 0)
    assert all(p.grad is None for p in online.layer.parameters())


@pytest.mark.parametrize("rule", [RTRL(), TruncatedBPTT(3)], ids=str)
def test_a_loss_that_is_not_finite_changes_nothing_and_says_when(rule):
    x, d = stream(8)
    online, twin = learner(rule, every=2), learner(rule, every=2)
    for t in range(3):
        online.step(x[t], d[t])
        twin.step(x[t], d[t])
    before = weights(online)
    with refuses("Online: the loss at step 3 is nan; no parameter was changed"):
        online.step(x[3], d[3] * float("nan"))
    same(weights(online), before, "", 0.0)
    with refuses("Online: x_t at step 4 must be finite, got NaN or infinity"):
        online.step(x[4] / 0, d[4])
    same(weights(online), before, "", 0.0)
    # it goes on as if the step had had no target
    twin.step(x[3])
    online.update()
    for t in range(4, 8):
        same(online.step(x[t], d[t]), twin.step(x[t], d[t]), f"step {t}", 0.0)
    same(weights(online), weights(twin), "", 0.0)


def test_large_finite_inputs_are_not_refused():
    online = learner(layer=ll.LSTM(3, 4))
    online.readout.float()
    output = online.step(torch.full((1, 3), 3e38))  # their sum overflows
    assert bool(torch.isfinite(output).all())


def test_single_streams_without_batch_dimension():
    x, d = stream(6, 1)
    batched, single = learner(), learner()
    for x_t, d_t in zip(x, d):
        reset = torch.tensor([bool(x_t[0, 0] > 0)])
        wanted = batched.step(x_t, d_t, torch.tensor([True]), reset=reset)
        same(single.step(x_t[0], d_t[0], torch.tensor(True), reset=reset[0]), wanted[0], "", 0.0)
    same(weights(single), weights(batched), "", 0.0)


def test_masks_ragged_streams_and_resets():
    """A batch of streams, some silent, some starting anew, some not scored: each learns as if alone."""
    x, d = stream(6, 3)
    active = torch.rand(6, 3) < 0.7
    reset, mask = torch.rand(6, 3) < 0.2, torch.rand(6, 3) < 0.7
    together = learner(every=6)
    for t in range(6):
        together.step(x[t], d[t], mask[t] & active[t], active=active[t], reset=reset[t])
    before = weights(learner())
    change = dict.fromkeys(before, 0)
    for b in range(3):
        alone, one = learner(every=6), slice(b, b + 1)
        for t in range(6):
            if active[t, b]:
                alone.step(x[t, one], d[t, one], mask[t, one], reset=reset[t, one])
        alone.update()
        change = {name: change[name] + p - before[name] for name, p in weights(alone).items()}
    same({name: p - before[name] for name, p in weights(together).items()}, change, "", 1e-9)


def test_running_loss():
    x, d = stream(150)
    online = learner(lr=0.0)
    losses = []
    for x_t, d_t in zip(x, d):
        online.step(x_t, d_t)
        losses.append(online.loss_now)
        if len(losses) <= 100:
            same(online.running_loss, sum(losses) / len(losses))  # a plain mean until there are 100
    mean = sum(losses[:100]) / 100
    for value in losses[100:]:
        mean += (value - mean) / 100
    same(online.running_loss, mean)


COPIERS = {
    "LocalForward": (LocalForward(), lambda: ll.LocalFeedbackNetwork(1, (1, 3, 2), (1, 0, 0), bias=True, **DEFAULTS)),
    "TruncatedRTRL": (TruncatedRTRL(), lambda: ll.LSTM97(1, 2, 2, 2, 1, output="linear", init_range=0.5, **DEFAULTS)),
    "RTRL": (RTRL(), lambda: ll.Elman(1, 4, **DEFAULTS)),
}


@pytest.mark.parametrize("name", COPIERS)
def test_a_delayed_copy_is_learned(name):
    """The target is the input before the last: nothing can be learned without the past."""
    torch.manual_seed(0)
    rule, make = COPIERS[name]
    layer, readout = make(), nn.Linear(4, 1, dtype=torch.float64) if name == "RTRL" else None
    parameters = [*layer.parameters(), *(readout.parameters() if readout else [])]
    with torch.no_grad():
        for p in parameters:
            p += 0.2 * torch.randn_like(p)
    online = Online(layer, readout, squared_error, rule, torch.optim.Adam(parameters, lr=0.02), clip=1.0)
    x = 0.5 * torch.sign(torch.randn(1000, 8, 1, dtype=torch.float64))
    online.step(x[0])
    first = math.nan
    for t in range(1, 1000):
        online.step(x[t], x[t - 1])
        first = online.running_loss if t == 100 else first
    assert online.running_loss < 0.25 * first


def test_any_readout_and_any_loss():
    torch.manual_seed(0)
    layer = ll.GRU(3, 4, **DEFAULTS)
    readout = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    parameters = [*layer.parameters(), *readout.parameters()]
    for loss, target in ((mse_loss, randn(2, 2)), (cross_entropy, torch.tensor([0, 1]))):
        online = Online(layer, readout, loss, RTRL(), torch.optim.AdamW(parameters))
        before = weights(online)
        online.step(randn(2, 3), target)
        assert all(bool((p != before[name]).any()) for name, p in weights(online).items() if "weight_hh" not in name)


def test_refusals():
    layer, parameters = ll.LSTM(3, 4), list(ll.LSTM(3, 4).parameters())
    own = torch.optim.SGD(layer.parameters(), lr=0.1)
    with refuses("Online: rule must be a rule of longlag.learn, got str", TypeError):
        Online(layer, None, squared_error, "rtrl", own)  # pyright: ignore[reportArgumentType]
    with refuses("LocalForward: LSTM feeds units back to each other"):
        Online(layer, None, squared_error, LocalForward(), own)
    with refuses("Online: every must be a positive int, got 0"):
        Online(layer, None, squared_error, RTRL(), own, every=0)
    with refuses("Online: clip must be positive, got 0"):
        Online(layer, None, squared_error, RTRL(), own, clip=0)
    with refuses("Online: optimizer must hold parameters of layer or readout, got none of them"):
        Online(layer, None, squared_error, RTRL(), torch.optim.SGD(parameters, lr=0.1))
    with refuses("Online: optimizer must not need the loss again, as LBFGS does"):
        Online(layer, None, squared_error, RTRL(), torch.optim.LBFGS(layer.parameters()))
    online = Online(layer, None, squared_error, RTRL(), own)
    with refuses("Online: x_t at step 0 must be a tensor or array, got list", TypeError):
        online.step([1.0])  # pyright: ignore[reportArgumentType]
    online.step(torch.randn(2, 3))
    with refuses("RTRL: x_t must have shape (2, 3) (B, I), got (3, 3)"):
        online.step(torch.randn(3, 3))
    with refuses("squared_error: target must have shape (2, 4), got (2, 3)"):
        online.step(torch.randn(2, 3), torch.randn(2, 3))


# ------------------------------------------------------------------------------------------- streams that survive (D8)
def sine(layer, steps, lr) -> Any:
    """The stream of docs/learning.md: the next value of a sine, in compiled code."""
    readout = torch.nn.Linear(layer.hidden_size, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=lr)
    online = Online(layer, readout, squared_error, LocalForward(), optimizer, clip=1.0)
    x = torch.sin(torch.arange(steps + 1.0) / 7).view(-1, 1, 1)
    online.run(x[:-1], x[1:])
    return online


def test_local_feedback_is_stable_by_default():
    """No learning step can make the units diverge: |u| < 1 by construction."""
    torch.manual_seed(0)
    online = sine(ll.LocalFeedback(1, 16), 10_000, lr=0.01)
    assert online.engine_for()[0] == "cpu"
    assert (online.skipped, online.updates) == (0, 10_000)
    assert bool((online.layer.u_l0.abs() < 1).all())
    assert online.running_loss < 0.15  # half of what predicting 0 costs


def test_a_layer_that_diverges_is_an_error_and_not_a_silence():
    torch.manual_seed(0)
    layer = ll.LocalFeedback(1, 4, constrain=None)
    torch.nn.init.constant_(layer.get_parameter("u_l0"), 3.0)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    text = "Online: the state n of LocalFeedback is not finite after step"
    with pytest.raises(ValueError, match=text):
        sine(layer, 1000, lr=0.0)
    same(dict(layer.named_parameters()), before, "parameters", 0.0)


def test_a_layer_that_diverges_in_a_single_step_names_the_state():
    online = learner(layer=ll.LocalFeedback(3, 4, constrain=None, **DEFAULTS), rule=LocalForward())
    online.state = torch.full((1, 1, 4), float("inf"), dtype=torch.float64)
    with refuses("Online: the state n of LocalFeedback is not finite after step 0: the layer has diverged"):
        online.step(randn(1, 3))


def test_updates_skipped_in_a_row_are_reported_once():
    x, d = stream(12)
    online = learner(loss=lambda out, target: squared_error(Burst.apply(out), target))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(9):
            online.step(x[t], d[t])
    with pytest.warns(RuntimeWarning, match="the last 10 updates were skipped because their gradients were not finite"):
        online.step(x[9], d[9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        online.step(x[10], d[10])
    assert (online.skipped, online.updates) == (11, 0)
