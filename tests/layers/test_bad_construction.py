"""Layers that cannot be built are refused with owner, argument, expected and got."""

import math
import re

import pytest
import torch

import longlag as ll
from longlag import cells

STACKED = {
    "Elman": ll.Elman,
    "LSTM": ll.LSTM,
    "GRU": ll.GRU,
    "Leaky": ll.Leaky,
    "LocalFeedback": ll.LocalFeedback,
    "Skip": ll.Skip,
    "Recurrent": lambda *sizes, **options: ll.Recurrent(cells.elman, *sizes, **options),
}


def refuses(error, text):
    return pytest.raises(error, match=f"^{re.escape(text)}$")


@pytest.mark.parametrize(("owner", "make"), STACKED.items(), ids=STACKED)
def test_stacked_layers(owner, make):
    for sizes, options, text in [
        ((0, 4), {}, "input_size must be a positive int, got 0"),
        ((-3, 4), {}, "input_size must be a positive int, got -3"),
        ((3, 0), {}, "hidden_size must be a positive int, got 0"),
        ((3, -4), {}, "hidden_size must be a positive int, got -4"),
        ((3, 2.5), {}, "hidden_size must be a positive int, got 2.5"),
        ((3, True), {}, "hidden_size must be a positive int, got True"),
        (("3", 4), {}, "input_size must be a positive int, got '3'"),
        ((3, 4), {"num_layers": 0}, "num_layers must be a positive int, got 0"),
        ((3, 4), {"dropout": 1.0, "num_layers": 2}, "dropout must be a number in [0, 1), got 1.0"),
        ((3, 4), {"dropout": -0.1}, "dropout must be a number in [0, 1), got -0.1"),
        ((3, 4), {"recurrent_dropout": 1}, "recurrent_dropout must be a number in [0, 1), got 1"),
        ((3, 4), {"recurrent_dropout": "half"}, "recurrent_dropout must be a number in [0, 1), got 'half'"),
    ]:
        with refuses(ValueError, f"{owner}: {text}"):
            make(*sizes, **options)
    with pytest.raises(ValueError, match=rf"^{owner}: engine must be one of 'auto', 'reference'.*, got 'abacus'$"):
        make(3, 4, engine="abacus")
    with pytest.raises(TypeError, match="'colour'"):
        make(3, 4, colour="red")


@pytest.mark.parametrize(("owner", "make"), [item for item in STACKED.items() if item[0] != "Skip"])
def test_norms(owner, make):
    with refuses(ValueError, f"{owner}: norm must be one of 'layer', 'layer_torch', got 'batch'"):
        make(3, 4, norm="batch")
    with refuses(ValueError, f"{owner}: norm='layer' divides by H−1 and needs hidden_size >= 2, got 1"):
        make(3, 1, norm="layer")


NET, NET97 = ll.LocalFeedbackNetwork, ll.LSTM97
KINDS = "must be three numbers of units (static, net, activation), got"
SQUASH = "must be one of '4s-2', '2s-1', 'logistic', 'tanh', 'identity', got"
BIASED = "output_gate_bias needs gates with biases, got bias=('hidden', 'gates', 'cells', 'output'), output_gates=False"


@pytest.mark.parametrize(
    ("make", "sizes", "options", "text"),
    [
        (ll.Elman, (3, 4), {"nonlinearity": "sine"}, "nonlinearity must be one of 'tanh', 'relu', got 'sine'"),
        (ll.LSTM, (3, 4), {"bias": False, "forget_bias": 1.0}, "forget_bias needs bias=True"),
        (ll.Leaky, (3, 4), {"alpha": 0.5}, "alpha must be at least 1, got 0.5"),
        (ll.Leaky, (3, 4), {"alpha": float("nan")}, "alpha must be at least 1, got nan"),
        (ll.Leaky, (3, 4), {"alpha": 1.0, "learn_alpha": True}, "alpha must be above 1, got 1"),
        (ll.Leaky, (3, 2), {"alpha": torch.tensor([2.0, 0.0])}, "alpha must be at least 1, got 0"),
        (ll.Leaky, (3, 4), {"alpha": torch.ones(5)}, "alpha must be one number or 4, got shape (5,)"),
        (
            ll.LocalFeedback,
            (3, 4),
            {"feedback": "far"},
            "feedback must be one of 'net', 'activation', 'static', got 'far'",
        ),
        (ll.LocalFeedback, (3, 4), {"constrain": "much"}, "constrain must be one of None, 'forget', got 'much'"),
        (ll.LocalFeedback, (3, 4), {"time_constant": 0.5}, "time_constant must be at least 1 step, got 0.5"),
        (ll.Skip, (3, 4), {"delays": (1,)}, "delays must be an int of at least 2, got 1"),
        (ll.Skip, (3, 4), {"delays": (3, 3)}, "delays must differ from each other, got (3, 3)"),
        (ll.Skip, (3, 4), {"norm": "layer"}, "norm must be None, got 'layer'"),
        (NET, (0, (1, 1, 1), (1, 0, 0)), {}, "input_size must be a positive int, got 0"),
        (NET, (3, (1, 1), (1, 0, 0)), {}, f"hidden {KINDS} (1, 1)"),
        (NET, (3, (0, 0, 0), (1, 0, 0)), {}, f"hidden {KINDS} (0, 0, 0)"),
        (NET, (3, [(1, 1, 1), (1, -1, 1)], (1, 0, 0)), {}, f"hidden {KINDS} (1, -1, 1)"),
        (NET, (3, (1, 1, 1), 4), {}, f"output {KINDS} 4"),
        (NET, (3, [], (1, 0, 0)), {}, "hidden must name a layer for the static outputs to read, got none"),
        (
            NET,
            (3, (1, 1, 1), (1, 0, 0)),
            {"recurrent_dropout": 2},
            "recurrent_dropout must be a number in [0, 1), got 2",
        ),
        (ll.Jordan, (-1, 4, 2), {}, "input_size must be a non-negative int, got -1"),
        (ll.Jordan, (3, 0, 2), {}, "hidden_size must be a positive int, got 0"),
        (ll.Jordan, (3, 4, 0), {}, "output_size must be a positive int, got 0"),
        (
            ll.Jordan,
            (3, 4, 2),
            {"feedback": "x"},
            "feedback must be one of 'soft', 'logits', 'argmax', 'sample', got 'x'",
        ),
        (ll.Jordan, (3, 4, 2), {"start": "late"}, "start must be one of 'uniform', 'zero', got 'late'"),
        (ll.Jordan, (3, 4, 2), {"recurrent_dropout": 2}, "recurrent_dropout must be a number in [0, 1), got 2"),
        (ll.EchoState, (3, 0, 2), {}, "hidden_size must be a positive int, got 0"),
        (ll.EchoState, (3, 9, 0), {}, "output_size must be a positive int, got 0"),
        (ll.EchoState, (3, 9, 2), {"leak": 0.0}, "leak must be in (0, 1], got 0.0"),
        (ll.EchoState, (3, 9, 2), {"density": 1.5}, "density must be in (0, 1], got 1.5"),
        (
            ll.EchoState,
            (3, 9, 2),
            {"spectral_radius": -1.0},
            "spectral_radius must be a finite number, not negative, got -1.0",
        ),
        (ll.EchoState, (3, 9, 2), {"ridge": -1.0}, "ridge must be a finite number, not negative, got -1.0"),
        (ll.EchoState, (3, 9, 2), {"leak": "x"}, "leak must be a finite number, not negative, got 'x'"),
        (
            ll.EchoState,
            (3, 9, 2),
            {"input_scale": math.nan},
            "input_scale must be a finite number, not negative, got nan",
        ),
        (ll.EchoState, (3, 9, 2), {"ridge": math.inf}, "ridge must be a finite number, not negative, got inf"),
        (
            ll.EchoState,
            (3, 9, 2),
            {"jacobian_radius": -1},
            "jacobian_radius must be a finite number, not negative, got -1",
        ),
        (ll.EchoState, (3, 9, 2), {"warmup": -1}, "warmup must be a non-negative int, got -1"),
        (ll.EchoState, (3, 2, 2), {"density": 1e-9}, "density 1e-09 leaves no loop in a reservoir of 2 units"),
        (NET97, (0, 1), {}, "input_size must be a positive int, got 0"),
        (NET97, (3, -1), {}, "blocks must be a non-negative int, got -1"),
        (NET97, (3, 1, 0), {}, "block_size must be a positive int, got 0"),
        (NET97, (3, 1, 1, -1), {}, "hidden_units must be a non-negative int, got -1"),
        (NET97, (3, 1, 1, 0, 0), {}, "output_size must be a positive int, got 0"),
        (NET97, (3, 0), {}, "blocks, hidden_units and output_size give a network without units"),
        (NET97, (3, 1), {"g": "sine"}, f"g {SQUASH} 'sine'"),
        (NET97, (3, 1), {"h": None}, f"h {SQUASH} None"),
        (NET97, (3, 1), {"output": "softmax"}, "output must be one of 'logistic', 'linear', got 'softmax'"),
        (NET97, (3, 1), {"bias": ["x"]}, "bias must be one of 'hidden', 'gates', 'cells', 'output', got 'x'"),
        (NET97, (3, 1), {"init_range": 0.0}, "init_range must be positive, got 0.0"),
        (NET97, (3, 1), {"recurrent_dropout": 1.0}, "recurrent_dropout must be a number in [0, 1), got 1.0"),
        (NET97, (3, 2), {"input_gate_bias": [-1]}, "input_gate_bias must give one value per block (2), got 1"),
        (
            NET97,
            (3, 2),
            {"bias": False, "input_gate_bias": -1},
            "input_gate_bias needs gates with biases, got bias=(), output_gates=True",
        ),
        (NET97, (3, 2), {"output_gates": False, "output_gate_bias": -1}, BIASED),
    ],
)
def test_other_layers(make, sizes, options, text):
    with refuses(ValueError, f"{make.__name__}: {text}"):
        make(*sizes, **options)


def test_a_cell_and_options_must_be_what_they_are():
    with refuses(TypeError, "Recurrent: cell must be made by @longlag.cell, got builtin_function_or_method"):
        ll.Recurrent(torch.tanh, 3, 4)  # pyright: ignore[reportArgumentType]
    with refuses(TypeError, "Skip: unknown option 'colour'"):
        ll.Skip(3, 4, colour="red")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("make", [ll.LSTM97, ll.Jordan, ll.EchoState, ll.LocalFeedbackNetwork])
def test_networks_refuse_unknown_engines_and_options(make):
    sizes = {ll.LSTM97: (3, 1), ll.LocalFeedbackNetwork: (3, (1, 1, 1), (1, 0, 0))}.get(make, (3, 20, 2))
    text = "engine must be one of 'auto', 'reference'.*, got 'abacus'"
    with pytest.raises(ValueError, match=rf"^{make.__name__}: {text}$"):
        make(*sizes, engine="abacus")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make(*sizes, colour="red")


def test_a_block_that_cannot_be_added_changes_nothing():
    net = ll.LSTM97(3, 2, output_gates=False)
    before = {name: p.clone() for name, p in net.named_parameters()}
    with refuses(ValueError, f"LSTM97: {BIASED}"):
        net.add_block(output_gate_bias=1.0)
    assert net.blocks == 2
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
