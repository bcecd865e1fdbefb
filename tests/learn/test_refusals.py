"""What rules refuse, in which words, and that a refusal changes nothing."""

import re

import pytest
import torch
from helpers import LAYERS, randn, same
from learn.course import make
from torch import nn

import longlag as ll
from longlag.learn import BPTT, RFLO, RTRL, UORO, LocalForward, SnAp, TruncatedBPTT, TruncatedRTRL


def refuses(text: str, error: type[Exception] = ValueError):
    return pytest.raises(error, match=re.escape(text))


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (
            LocalForward(),
            "lstm",
            "LocalForward: LSTM feeds units back to each other; RTRL, BPTT and TruncatedBPTT serve it",
        ),
        (LocalForward(), "skip", "LocalForward: Skip has no local feedback; RTRL, BPTT and TruncatedBPTT serve it"),
        (LocalForward(), "local_net_norm", "LocalForward: LocalFeedback couples units by its norm; RTRL, BPTT"),
        (LocalForward(cross=True), "lstm97", "LocalForward: LSTM97 feeds units back to each other; RTRL, BPTT"),
        (
            LocalForward(),
            "local_net x2",
            "LocalForward: LocalFeedback's layer 1 has feedback and reads trained units (layer 0), so local traces are "
            "not exact (locality theorem); LocalForward(cross=True), RTRL, BPTT and TruncatedBPTT serve it",
        ),
        (TruncatedRTRL(), "lstm x2", "TruncatedRTRL: LSTM has 2 layers, and the cuts are defined for one; RTRL, BPTT"),
        (TruncatedRTRL(), "lstm_norm", "TruncatedRTRL: LSTM has norm='layer', through which units read each other"),
        (TruncatedRTRL(), "local_net", "TruncatedRTRL: LocalFeedback feeds back nothing through a matrix"),
        (RFLO(), "gru x2", "RFLO: GRU has 2 layers, and the cuts are defined for one; RTRL, SnAp and UORO serve it"),
        (RFLO(), "skip", "RFLO: Skip has no cuts of 1997; RTRL, SnAp and UORO serve it, RFLO serves dense layers"),
        (RFLO(), "lstm97", "RFLO: LSTM97 has several kinds of units; TruncatedRTRL and RTRL, SnAp and UORO serve it"),
        (TruncatedRTRL(), "jordan", "TruncatedRTRL: Jordan has no cuts of 1997; RTRL, BPTT and TruncatedBPTT serve it"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_rule_names_the_layer_it_cannot_serve_and_what_can(rule, name, text):
    layer = make(name)
    with refuses(text):
        rule.start(layer, 2)
    for named in (RTRL(), SnAp(), UORO(), BPTT()):  # what the message says can serve, can
        y, _, trace = named.step(layer, randn(2, 3), None, named.start(layer, 2))
        assert named.gradients(layer, trace, torch.ones_like(y))


@pytest.mark.parametrize(
    "rule", [RTRL(), SnAp(1), UORO(), RFLO(), BPTT(), TruncatedBPTT(2), TruncatedRTRL(), LocalForward()], ids=str
)
def test_layers_that_cannot_go_step_by_step(rule):
    name = type(rule).__name__
    with refuses(f"{name}: LSTM is bidirectional and reads the future"):
        rule.start(LAYERS["lstm_two_ways"](), 2)
    with refuses(f"{name}: GRU must be in eval() or have dropout=0, got dropout=0.5"):
        rule.start(ll.GRU(3, 4, 2, dropout=0.5), 2)
    with refuses(f"{name}: GRU must be in eval() or have recurrent_dropout=0, got recurrent_dropout=0.5"):
        rule.start(ll.GRU(3, 4, recurrent_dropout=0.5), 2)
    with refuses(f"{name}: layer must be a longlag layer, got LSTM", TypeError):
        rule.start(nn.LSTM(3, 4), 2)


def test_dropout_is_no_obstacle_in_eval():
    layer = ll.GRU(3, 4, 2, dropout=0.5).eval()
    assert RTRL().start(layer, 2).batch_size == 2


def test_bad_arguments_are_refused_and_change_nothing():
    layer, rule = make("local_net"), RTRL()
    x = randn(5, 2, 3)
    y, state, trace = rule.step(layer, x[0], None, rule.start(layer, 2))
    twin = trace.clone()
    meta = torch.zeros(2, 3, dtype=torch.float64, device="meta")
    with refuses("RTRL: batch_size must be a positive int, got 0"):
        rule.start(layer, 0)
    with refuses("RTRL: x_t must have shape (2, 3) (B, I), got (3, 3)"):
        rule.step(layer, randn(3, 3), state, trace)
    with refuses("RTRL: x_t must have shape (2, 3) (B, I), got (1, 2, 3)"):
        rule.step(layer, x[:1], state, trace)
    with refuses("RTRL: x_t must be torch.float64 like the weights, got torch.float32", TypeError):
        rule.step(layer, x[1].float(), state, trace)
    with refuses("RTRL: x_t must be on cpu like the weights, got meta"):
        rule.step(layer, meta, state, trace)
    with refuses("RTRL: x_t must be a tensor, got list", TypeError):
        rule.step(layer, [1.0], state, trace)  # pyright: ignore[reportArgumentType]
    with refuses("LocalFeedback: state n must have shape (1, 2, 4), got (1, 3, 4)"):
        rule.step(layer, x[1], randn(1, 3, 4), trace)
    with refuses("RTRL: active must be a bool tensor of shape (2,), got torch.int64 of shape (2,)"):
        rule.step(layer, x[1], state, trace, active=torch.tensor([1, 0]))
    with refuses("RTRL: reset must be a bool tensor of shape (2,), got True"):
        rule.step(layer, x[1], state, trace, reset=True)  # pyright: ignore[reportArgumentType]
    with refuses("RTRL: teacher is for Jordan, which feeds its output back; got LocalFeedback"):
        rule.step(layer, x[1], state, trace, teacher=torch.tensor([0, 1]))
    with refuses("RTRL: trace must come from start() with this LocalFeedback"):
        rule.step(make("local_net"), x[1], state, trace)
    with refuses("RTRL: gradients needs a step first, and the trace has none"):
        rule.gradients(layer, rule.start(layer, 2), y)
    with refuses("RTRL: dy_t must have shape (2, 4), got (2, 3)"):
        rule.gradients(layer, trace, randn(2, 3))
    with refuses("RTRL: dy_t must be torch.float64 like the weights, got torch.float32", TypeError):
        rule.gradients(layer, trace, y.float())
    with refuses("RTRL: dy_t must be a tensor, got list", TypeError):
        rule.gradients(layer, trace, [y, y])
    first, second = (rule.step(layer, x[1], state, t) for t in (trace, twin))
    same(rule.gradients(layer, first[2], y), rule.gradients(layer, second[2], y), "after the refusals", 0.0)


def test_teachers_and_windows():
    layer, rule = make("jordan"), RTRL()
    trace = rule.start(layer, 2)
    with refuses("RTRL: teacher must lie in 0..2, got 3"):
        rule.step(layer, randn(2, 3), None, trace, teacher=torch.tensor([0, 3]))
    with refuses("RTRL: teacher must be classes (2,) or (2, 3), got (2, 4)"):
        rule.step(layer, randn(2, 3), None, trace, teacher=randn(2, 4))
    with refuses("TruncatedBPTT: k must be a positive int, got 0"):
        TruncatedBPTT(0)
    bptt = TruncatedBPTT(2)
    y, _, trace = bptt.step(layer, randn(2, 3), None, bptt.start(layer, 2))
    with refuses("TruncatedBPTT: dy_t must hold at most the 1 steps of the trace, got 2"):
        bptt.gradients(layer, trace, [y, y])


def test_a_layer_bound_to_the_compiled_engine_cannot_be_differentiated_by_torch_func():
    with refuses("RTRL: Jordan must have engine='auto' or 'reference', got 'cpu'"):
        RTRL().start(LAYERS["jordan"](engine="cpu"), 2)
    assert BPTT().start(LAYERS["jordan"](engine="cpu"), 2).batch_size == 2
