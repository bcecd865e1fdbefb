"""Traces: one per sample, explicit, untouched by what the user does with inputs, states, padding and weights."""

import pytest
import torch
from helpers import DEFAULTS, batch_axis, parts, randn, same, whole
from learn.course import MAKERS, autograd, case, forward, make, serves
from torch import nn
from torch.nn.utils import parametrizations

import longlag as ll
from longlag.learn import BPTT, RFLO, RTRL, UORO, LocalForward, SnAp, TruncatedBPTT, TruncatedRTRL

RULES = [RTRL(), SnAp(1), RFLO(), BPTT(), TruncatedBPTT(3), TruncatedRTRL(), LocalForward(), LocalForward(cross=True)]
NAMES = ["lstm", "gru x2", "local_net", "user_oscillator x2", "local_network", "lstm97", "jordan_hidden", "echo"]
PAIRS = [(rule, name) for rule in RULES for name in NAMES if serves(rule, make(name))]
pairs = pytest.mark.parametrize(("rule", "name"), PAIRS, ids=lambda value: str(value))


@pairs
def test_a_batch_is_its_sequences_alone(rule, name):
    layer = make(name)
    c = case(layer)
    assert c.lengths is not None
    assert c.reset is not None
    together = forward(rule, layer, c)
    alone, axis = {}, batch_axis(layer)
    for b in range(3):
        one = slice(b, b + 1)
        state = whole(part.narrow(axis, b, 1) for part in parts(c.state))
        single = c._replace(x=c.x[:, one], state=state, dy=c.dy[:, one], lengths=c.lengths[one], reset=c.reset[:, one])
        for key, gradient in forward(rule, layer, single)[2].items():
            alone[key] = alone.get(key, 0) + gradient
    same(together[2], alone, f"{rule}", 1e-10)


@pairs
def test_padding_may_hold_anything(rule, name):
    layer = make(name)
    c = case(layer)
    assert c.lengths is not None
    padded = c.x.clone()
    for b, n in enumerate(c.lengths):
        padded[n:, b] = float("nan")
    same(forward(rule, layer, c._replace(x=padded))[2], forward(rule, layer, c)[2], f"{rule}", 0.0)


@pairs
def test_what_the_user_changes_afterwards_does_not_matter(rule, name):
    """x, state and masks handed in are copied where they are needed later; a trace's clone is left alone."""
    layer = make(name)
    c = case(layer, ragged=False)
    wanted = forward(rule, layer, c)[2]
    trace, state, total = rule.start(layer, 3), whole(part.clone() for part in parts(c.state)), {}
    for t in range(len(c.x)):
        x_t, active, reset = c.x[t].clone(), torch.tensor([True] * 3), torch.tensor([False] * 3)
        kept, before = trace.clone(), whole(part.clone() for part in parts(state))
        rule.step(layer, x_t, state, trace)
        y, new, trace = rule.step(layer, x_t, state, kept, active=active, reset=reset)
        x_t.fill_(99.0)
        active.fill_(False)
        reset.fill_(True)
        for part in parts(state):
            part.fill_(99.0)
        assert all(bool((part != 99).any()) for part in parts(before))
        state = new
        if bool(c.dy[t].any()):
            for key, gradient in rule.gradients(layer, trace, c.dy[t]).items():
                total[key] = total.get(key, 0) + gradient
        y.fill_(99.0)
    same(total, wanted, f"{rule}", 1e-10)


@pairs
def test_nothing_returned_is_attached_to_a_graph(rule, name):
    layer = make(name)
    c = case(layer, ragged=False)
    y, state, trace = rule.step(layer, c.x[0], c.state, rule.start(layer, 3))
    grads = rule.gradients(layer, trace, torch.ones_like(y))
    assert not any(t.requires_grad for t in (y, *parts(state), *grads.values()))
    assert {name: g.shape for name, g in grads.items()} == {
        name: p.shape for name, p in layer.named_parameters() if p.requires_grad
    }


@pairs
def test_float32(rule, name):
    layer = make(name)
    c = case(layer)
    wanted = forward(rule, layer, c)[2]
    single = c._replace(x=c.x.float(), state=whole(part.float() for part in parts(c.state)), dy=c.dy.float())
    ours = forward(rule, layer.float(), single)[2]
    assert all(g.dtype == torch.float32 for g in ours.values())
    same({k: g.double() for k, g in ours.items()}, wanted, f"{rule}", 2e-3)


@pytest.mark.parametrize("rule", [RTRL(), BPTT()], ids=str)
@pytest.mark.parametrize("name", ["lstm x2", "local_net", "skip", "jordan", "lstm97", "local_network", "echo"])
def test_batch_first_layers_take_steps_alike(rule, name):
    layer = make(name)
    c = case(layer)
    wanted = forward(rule, layer, c)[2]
    layer.batch_first = True
    same(forward(rule, layer, c)[2], wanted, name, 1e-12)
    c = case_without_masks(c)
    ours = forward(rule, layer, c)[2]
    layer.batch_first = False
    same(ours, autograd(layer, c)[2], name, 1e-9)


def case_without_masks(c):
    return c._replace(lengths=None, reset=None)


def test_any_parametrisation_of_any_weight():
    """Gradients of what the equations read are pulled back to what is trained."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

        def forward(self, value):
            return self.scale * value

    for name, weight in (
        ("lstm x2", "weight_hh_l1"),
        ("local_net", "weight_ih_l0"),
        ("lstm97", "weight_ig"),
        ("jordan", "weight_fb"),
    ):
        layer = make(name)
        nn.utils.parametrize.register_parametrization(layer, weight, Scaled())
        if name == "lstm x2":
            parametrizations.weight_norm(layer, "weight_ih_l0")
        c = case(layer)
        ours, wanted = forward(RTRL(), layer, c)[2], autograd(layer, c)[2]
        assert f"parametrizations.{weight}.0.scale" in ours
        same(ours, wanted, name, 1e-9)


def test_a_shared_weight_gets_the_sum():
    layer = make("lstm x2")
    layer.weight_hh_l1 = layer.weight_hh_l0
    c = case(layer)
    ours = forward(RTRL(), layer, c)[2]
    assert "weight_hh_l1" not in ours
    same(ours, autograd(layer, c)[2], "shared", 1e-9)


def test_gradients_may_be_asked_for_again_and_are_each_their_own():
    layer = ll.LSTM(2, 3, **DEFAULTS)
    for rule in (RTRL(), TruncatedRTRL(), BPTT()):
        y, _, trace = rule.step(layer, randn(2, 2), None, rule.start(layer, 2))
        first = rule.gradients(layer, trace, torch.ones_like(y))
        kept = {name: g.clone() for name, g in first.items()}
        for gradient in first.values():
            gradient.mul_(7)  # must not reach another parameter's
        same({name: g / 7 for name, g in first.items()}, kept, f"{rule}", 1e-12)
        same(rule.gradients(layer, trace, torch.ones_like(y)), kept, f"{rule}", 0.0)


EXACT = [pair for pair in PAIRS if not isinstance(pair[0], TruncatedBPTT)]  # whose window counts the pauses


@pytest.mark.parametrize(("rule", "name"), EXACT, ids=lambda value: str(value))
def test_a_sample_may_pause_and_go_on(rule, name):
    """Steps in which a sample is not active do not exist for it."""
    layer = make(name)
    c = case(layer, ragged=False)
    active = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0], [1, 1, 1]]).bool()
    trace, state, together = rule.start(layer, 3), c.state, {}
    for t, x_t in enumerate(c.x):
        _, state, trace = rule.step(layer, x_t, state, trace, active=active[t])
        for key, gradient in rule.gradients(layer, trace, c.dy[t]).items():
            together[key] = together.get(key, 0) + gradient
    alone, axis = {}, batch_axis(layer)
    for b in range(3):
        steps, one = active[:, b], slice(b, b + 1)
        state = whole(part.narrow(axis, b, 1) for part in parts(c.state))
        single = c._replace(x=c.x[steps, one], state=state, dy=c.dy[steps, one])
        for key, gradient in forward(rule, layer, single)[2].items():
            alone[key] = alone.get(key, 0) + gradient
    same(together, alone, f"{rule}", 1e-10)


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_made_on_another_device(name):
    """On the meta device every operation that mixes devices fails; numbers are not computed."""
    layer = MAKERS[name]().to("meta")
    x, active = torch.zeros(2, layer.input_size, dtype=torch.float64, device="meta"), torch.tensor([True, False])
    masks = {"active": active.to("meta"), "reset": active.to("meta")}
    for rule in (*RULES, UORO()):
        if serves(rule, layer):
            state, trace = None, rule.start(layer, 2)
            for given in ({}, masks, {}):
                y, state, trace = rule.step(layer, x, state, trace, **given)
                grads = rule.gradients(layer, trace, torch.zeros_like(y))
            assert {t.device.type for t in (y, *parts(state), *grads.values())} == {"meta"}
