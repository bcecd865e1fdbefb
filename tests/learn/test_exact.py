"""Every layer × every rule that claims exactness: the gradients are those of autograd through the whole sequence."""

import pytest
import torch
from helpers import error, parts, randn, same
from hypothesis import given, settings
from hypothesis import strategies as st
from learn.course import MAKERS, autograd, case, forward, make, serves

import longlag as ll
from longlag.learn import BPTT, RTRL, LocalForward, SnAp, TruncatedBPTT
from longlag.learn.bptt import Window

EXACT = {
    "RTRL": RTRL(),
    "BPTT": BPTT(),
    "TruncatedBPTT of all steps": TruncatedBPTT(7),
    "SnAp of all steps": SnAp(99),
    "LocalForward": LocalForward(),
    "LocalForward across layers": LocalForward(cross=True),
}
TOLERANCE = 1e-9
EVERYWHERE = ("RTRL", "BPTT", "TruncatedBPTT of all steps", "SnAp of all steps")


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("name", MAKERS)
def test_gradients_are_those_of_autograd(name, ragged):
    layer = make(name)
    c = case(layer, ragged=ragged)
    y, state, wanted = autograd(layer, c)
    assert any(bool(g.any()) for g in wanted.values())
    for rule_name, rule in EXACT.items():
        if not serves(rule, layer):
            assert rule_name not in EVERYWHERE
            continue
        ours = forward(rule, layer, c)
        same(ours[2], wanted, f"{rule_name}: gradient of", TOLERANCE)
        same(ours[0], y, f"{rule_name}: outputs")
        same(parts(ours[1]), parts(state), f"{rule_name}: state")


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith("jordan")])
def test_a_teacher_cuts_the_feedback(name):
    layer = make(name)
    taught = case(layer, taught=True)
    wanted = autograd(layer, taught)[2]
    assert error(wanted["weight_fb"], autograd(layer, case(layer))[2]["weight_fb"]) > 1e-3
    for rule in (RTRL(), BPTT(), TruncatedBPTT(7)):
        same(forward(rule, layer, taught)[2], wanted, f"{rule}", TOLERANCE)


def test_a_teacher_may_speak_at_some_steps_only_and_in_classes():
    layer, B = make("jordan_hidden"), 3
    x, dy, state = randn(5, B, 3), randn(5, B, 3, seed=1), None
    classes = torch.tensor([0, 2, 1])
    found = {}
    for rule in (RTRL(), BPTT()):
        trace, state, total = rule.start(layer, B), None, {}
        for t in range(5):
            teacher = classes if t % 2 else None
            _, state, trace = rule.step(layer, x[t], state, trace, teacher=teacher)
            for key, g in rule.gradients(layer, trace, dy[t]).items():
                total[key] = total.get(key, 0) + g
        found[type(rule).__name__] = total
    state, outputs = None, []
    for t in range(5):  # the oracle: the layer's own teacher forcing, a step at a time
        given = {"targets": classes.unsqueeze(0)} if t % 2 else {}
        y, state = layer(x[t : t + 1], state, **given)
        outputs.append(y[0])
    loss = (torch.stack(outputs) * dy).sum()
    wanted = dict(zip(found["RTRL"], torch.autograd.grad(loss, [layer.get_parameter(n) for n in found["RTRL"]])))
    same(found["RTRL"], wanted, "RTRL", TOLERANCE)
    same(found["BPTT"], wanted, "BPTT", TOLERANCE)


def test_sampled_feedback_is_a_constant_of_the_past():
    """BPTT runs the steps again: what was drawn must stay. RTRL draws once. Both see the same drawn symbols."""
    layer = ll.Jordan(3, 4, 5, hidden_feedback=True, feedback="sample", dtype=torch.float64)
    c = case(layer, ragged=False)
    rtrl, bptt = RTRL(), BPTT()
    traces, state, total = (rtrl.start(layer, 3), bptt.start(layer, 3)), c.state, ({}, {})
    for t, x_t in enumerate(c.x):
        torch.manual_seed(t)
        _, a, first = rtrl.step(layer, x_t, state, traces[0])
        drawn = a[0]  # one-hot: hand the same symbols to the other rule
        _, b, second = bptt.step(layer, x_t, state, traces[1], teacher=drawn)
        same(parts(a), parts(b))
        state, traces = a, (first, second)
        for rule, trace, sums in zip((rtrl, bptt), traces, total):
            for key, g in rule.gradients(layer, trace, c.dy[t]).items():
                sums[key] = sums.get(key, 0) + g
    same(total[0], total[1], "sample", TOLERANCE)
    torch.manual_seed(0)
    trace, state, outputs = bptt.start(layer, 3), c.state, []
    for x_t in c.x:
        y, state, trace = bptt.step(layer, x_t, state, trace)
        outputs.append(y)
    with torch.enable_grad():
        assert isinstance(trace.method, Window)
        again = trace.method._run(trace.values["steps"], trace.values["states"][0])
    same(tuple(y.detach() for y in again), tuple(outputs), "the drawn symbols")


@settings(max_examples=12)
@given(
    name=st.sampled_from(
        ["elman", "gru x2", "user_everything", "local_net x2", "user_oscillator x2", "local_network_deep"]
    ),
    T=st.integers(1, 6),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_lengths_resets_and_batch(name, T, lengths, data):
    layer = make(name)
    lengths = torch.tensor([min(n, T) for n in lengths])
    B = len(lengths)
    marks = data.draw(st.lists(st.booleans(), min_size=T * B, max_size=T * B))
    x, reset = randn(T, B, layer.input_size), torch.tensor(marks).view(T, B)
    y, _ = layer(x)
    c = case(layer)._replace(x=x, state=None, dy=randn(*y.shape, seed=1), lengths=lengths, reset=reset)
    same(forward(RTRL(), layer, c)[2], autograd(layer, c)[2], f"{name}", TOLERANCE)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("name", ["lstm x2", "local_network", "jordan", "skip"])
def test_truncated_bptt_goes_back_k_steps(name, k):
    """The oracle: the state before the last k steps, detached; the error of the last step through what follows."""
    layer = make(name)
    c = case(layer, ragged=False)
    rule, state, states = TruncatedBPTT(k), c.state, []
    trace = rule.start(layer, 3)
    for t, x_t in enumerate(c.x):
        states.append(state)
        _, state, trace = rule.step(layer, x_t, state, trace)
        first = max(0, t + 1 - k)
        y, _ = layer(c.x[first : t + 1], states[first])
        wanted = torch.autograd.grad((y[-1] * c.dy[t]).sum(), list(layer.parameters()), materialize_grads=True)
        same(tuple(rule.gradients(layer, trace, c.dy[t]).values()), wanted, f"step {t}", TOLERANCE)


def test_several_errors_at_once_are_the_sum_of_each_alone():
    layer = make("lstm x2")
    c = case(layer)
    assert c.lengths is not None
    assert c.reset is not None
    wanted = autograd(layer, c)[2]
    trace, state = BPTT().start(layer, 3), c.state
    for t, x_t in enumerate(c.x):
        _, state, trace = BPTT().step(layer, x_t, state, trace, active=t < c.lengths, reset=c.reset[t])
    errors = [dy if bool(dy.any()) else None for dy in c.dy]
    same(BPTT().gradients(layer, trace, errors), wanted, "all", TOLERANCE)
    last_two = torch.zeros_like(c.dy)
    last_two[-2:] = c.dy[-2:]
    same(BPTT().gradients(layer, trace, list(c.dy[-2:])), autograd(layer, c._replace(dy=last_two))[2], "2", TOLERANCE)
    assert not any(bool(g.any()) for g in BPTT().gradients(layer, trace, [None, None]).values())
