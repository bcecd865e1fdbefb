"""What the theory says about the rules: locality, costs, and where exactness ends."""

from itertools import pairwise

import pytest
import torch
from helpers import DEFAULTS, error, randn, same
from learn.course import autograd, case, forward, make
from torch import Tensor

import longlag as ll
from longlag.learn import BPTT, RTRL, LocalForward, Rule, TruncatedRTRL
from longlag.learn._diagonal import Diagonal


class OwnTraceOnly(Rule):
    """LF-92-ML 5, first row of its table: local traces, whatever the network."""

    def _method(self, layer):
        return Diagonal(layer, layer.local_units(), cross=False)


def worst(ours, wanted):
    return max(error(ours[name], wanted[name]) for name in wanted)


def numbers(values) -> int:
    """How many numbers there are in nested values."""
    if isinstance(values, Tensor):
        return values.numel()
    nested = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    return sum(map(numbers, nested))


def test_locality_theorem():
    """Own traces are exact if and only if the units above have no feedback, or what is below is not trained."""
    static_above = ll.LocalFeedbackNetwork(3, [(1, 2, 1), (3, 0, 0)], (2, 1, 1), **DEFAULTS)
    c = case(static_above)
    same(forward(LocalForward(), static_above, c)[2], autograd(static_above, c)[2], "static above", 1e-9)

    dynamic_above = make("local_network_deep")
    c = case(dynamic_above)
    wanted = autograd(dynamic_above, c)[2]
    own = forward(OwnTraceOnly(), dynamic_above, c)[2]
    lower = {name: g for name, g in wanted.items() if "hidden_0" in name}
    assert all(error(own[name], g) > 0.01 for name, g in lower.items())
    same({k: own[k] for k in wanted if k not in lower}, {k: wanted[k] for k in wanted if k not in lower}, "upper", 1e-9)
    with pytest.raises(ValueError, match="hidden_1_net has feedback and reads trained units"):
        LocalForward().start(dynamic_above, 1)
    same(forward(LocalForward(cross=True), dynamic_above, c)[2], wanted, "cross", 1e-9)

    for name, p in dynamic_above.named_parameters():
        p.requires_grad_("hidden_0" not in name)
    same(forward(LocalForward(), dynamic_above, c)[2], autograd(dynamic_above, c)[2], "frozen below", 1e-9)


def test_exact_only_while_the_weights_are_constant():
    """An update within the sequence leaves traces of old weights: real-time and through-time gradients part."""
    layer = make("elman")
    x, dy = randn(6, 2, 3), randn(2, 4, seed=1)

    def last_gradient(rule, change):
        trace, state = rule.start(layer, 2), None
        for t in range(6):
            if change and t == 3:
                with torch.no_grad():
                    layer.weight_hh_l0 += 0.3
            _, state, trace = rule.step(layer, x[t], state, trace)
        return rule.gradients(layer, trace, dy)

    assert worst(last_gradient(RTRL(), False), last_gradient(BPTT(), False)) < 1e-12
    ours = last_gradient(RTRL(), True)
    with torch.no_grad():
        layer.weight_hh_l0 -= 0.3
    assert worst(ours, last_gradient(BPTT(), True)) > 1e-3


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (RTRL(), "lstm x2"),
        (RTRL(), "local_net x2"),
        (RTRL(), "jordan"),
        (RTRL(), "lstm97"),
        (TruncatedRTRL(), "lstm97"),
    ],
    ids=str,
)
def test_memory_does_not_grow_with_time(rule, name):
    layer = make(name)
    trace, state, found = rule.start(layer, 2), None, set()
    for t in range(30):
        _, state, trace = rule.step(layer, randn(2, 3, seed=t), state, trace)
        found.add(numbers(trace.values))
    assert len(found) == 1
    trace, state, grown = BPTT().start(layer, 2), None, []
    for t in range(5):
        _, state, trace = BPTT().step(layer, randn(2, 3, seed=t), state, trace)
        grown.append(numbers(trace.values))
    assert len({b - a for a, b in pairwise(grown)}) == 1
    assert grown[1] > grown[0]


def test_local_layers_never_hold_a_full_matrix():
    """One number per weight for one layer; H₂ w₁ across two. A full influence matrix would be H w."""
    I, H = 10, 20
    w = H * (I + 1) + H
    one = RTRL().start(ll.LocalFeedback(I, H, **DEFAULTS), 1).values
    assert (numbers(one["own"]), numbers(one["cross"])) == (w, 0)
    two = RTRL().start(ll.LocalFeedback(I, H, 2, **DEFAULTS), 1).values
    w2 = H * (H + 1) + H
    assert (numbers(two["own"]), numbers(two["cross"])) == (w + w2, H * w)


def test_truncated_traces_are_two_per_cell_and_source():
    """LSTM-97 3.1: stored traces 2·C·S·I, whatever the number of outputs, hidden units and steps."""
    net = ll.LSTM97(3, 3, 2, 4, 5, **DEFAULTS)
    D = 3 + 4 + 3 * (2 + 2) + 1  # x, hidden units, gates and cells, bias
    assert numbers(TruncatedRTRL().start(net, 1).values["own"]) == 2 * 3 * 2 * D


def test_frozen_parameters_cost_nothing():
    """An echo state network's reservoir is fixed, and its read-out does not touch the state: no influence at all."""
    assert numbers(RTRL().start(make("echo"), 4).values) == 0
    layer = make("lstm")
    for name, p in layer.named_parameters():
        p.requires_grad_(name == "bias_ih_l0")
    c = case(layer)
    ours = forward(RTRL(), layer, c)[2]
    assert list(ours) == ["bias_ih_l0"]
    same(ours, autograd(layer, c)[2], "", 1e-9)
