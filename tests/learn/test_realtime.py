"""Online on the compiled engine: the numbers of the Python rules, chunk by chunk and road by road."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import LAYERS, parts, randn, same
from learn.course import make
from torch import nn

import longlag as ll
from longlag.learn import RTRL, LocalForward, Online, Rule, SnAp, TruncatedRTRL, squared_error

PAIRS: list[tuple[str, Rule]] = [
    ("lstm97_linear", TruncatedRTRL()),
    ("local_network_forget", LocalForward()),
    ("user_everything", TruncatedRTRL()),
    ("elman_no_bias", RTRL()),
    ("lstm", RTRL()),
    ("user_apart", RTRL()),
    ("user_everything", RTRL()),
    ("lstm97_hidden_only", RTRL()),
    ("lstm", SnAp(1)),
    ("user_everything", SnAp(1)),
]


def learners(name: str, rule: Rule, optimizer=torch.optim.SGD, layer: Any = None, **options) -> tuple[Any, Any]:
    """Two equal learners: on the compiled engine and in Python; ``layer``: instead of the one with this name."""
    layer = layer or make(name)
    output = layer(torch.zeros(1, 1, layer.input_size, dtype=torch.float64))[0].shape[-1]
    readout = nn.Linear(output, 2, dtype=torch.float64)
    found = []
    for _ in range(2):
        modules = copy.deepcopy(layer), copy.deepcopy(readout)
        parameters = [p for module in modules for p in module.parameters()]
        found.append(Online(*modules, squared_error, rule, optimizer(parameters, lr=0.05), **options))
    found[1].plan("python")
    assert [each.engine_for()[0] for each in found] == ["cpu", "python"]
    return found[0], found[1]


def stream(T=20, B=3, seed=0):
    reset = randn(T, B, seed=seed + 2) > 1
    active = randn(T, B, seed=seed + 3) > -1
    return randn(T, B, 3, seed=seed), randn(T, B, 2, seed=seed + 1), active, reset & active


def equal(ours, wanted, tolerance=1e-9):
    for name in ("layer", "readout"):
        found = [dict(getattr(each, name).named_parameters()) for each in (ours, wanted)]
        same(found[0], found[1], name, tolerance)
    same(parts(ours.state), parts(wanted.state), "state", tolerance)
    for name in ("steps", "updates", "skipped"):
        assert getattr(ours, name) == getattr(wanted, name)
    same(ours.running_loss, wanted.running_loss, "running loss", tolerance)
    same(ours.gradient_norm, wanted.gradient_norm, "norm", tolerance)


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_a_chunk_is_a_loop_of_steps_in_python(name, rule):
    ours, wanted = learners(name, rule)
    x, d, active, reset = stream()
    outputs = ours.run(x, d, active=active, reset=reset)
    same(outputs, wanted.run(x, d, active=active, reset=reset), "outputs", 1e-9)
    same(ours.losses, wanted.losses, "losses", 1e-9)
    equal(ours, wanted)
    x, d, active, reset = stream(seed=7)  # and on, with the roads exchanged
    ours.plan("python")
    wanted.plan("cpu")
    same(ours.run(x, d), wanted.run(x, d), "outputs", 1e-9)
    equal(ours, wanted)


def test_rtrl_of_a_single_unit_needs_one_trace_per_weight():
    ours, wanted = learners("", RTRL(), layer=LAYERS["lstm97_hidden_only"](size=1))
    x, d, active, reset = stream()
    same(ours.run(x, d, active=active, reset=reset), wanted.run(x, d, active=active, reset=reset), "outputs", 1e-9)
    equal(ours, wanted)
    ours.plan("python")
    wanted.plan("cpu")
    same(ours.run(x, d), wanted.run(x, d), "outputs", 1e-9)
    equal(ours, wanted)


def test_rtrl_of_symbols_updates_all_that_were_met():
    """A symbol met earlier has influence on later errors: its weights are updated, too."""
    ours, wanted = learners("elman_no_bias", RTRL())
    symbols = torch.randint(3, (20, 3), generator=torch.Generator().manual_seed(0))
    _, d, active, reset = stream()
    x = nn.functional.one_hot(symbols, 3).double()
    given = {"active": active, "reset": reset}
    same(ours.run(symbols, d, **given), wanted.run(x, d, **given), "outputs", 1e-9)
    equal(ours, wanted)


def test_blocks_of_steps_end_anywhere():
    """RTRL keeps the last steps and advances the influence at the end of a block: within a chunk, between updates."""
    ours, wanted = learners("elman_no_bias", RTRL(), every=7)
    x, d, active, reset = stream(T=90, seed=3)
    reset[9:] = False  # the influence grows old
    for first, last in ((0, 33), (33, 34), (34, 90)):
        given = {"active": active[first:last], "reset": reset[first:last]}
        same(
            ours.run(x[first:last], d[first:last], **given), wanted.run(x[first:last], d[first:last], **given), "", 1e-9
        )
    equal(ours, wanted)
    assert ours.steps % 7  # gradients wait for the next update
    found = [[p.grad for p in each.layer.parameters()] for each in (ours, wanted) if each.trace]
    same(tuple(found[0]), tuple(found[1]), "gradients", 1e-9)


class Half(ll.LSTM97):
    """Fed-back activations of 0.5 before a sequence."""

    def initial_state(self, batch):
        y, s = self.state_spec.zeros(batch, self.any_weight)
        return y + 0.5, s


def ragged(N=40, B=1):
    """Symbols of one stream; updates at ends of sequences and elsewhere, some without a reset before the next one."""
    x = torch.randint(0, 4, (N,), generator=torch.Generator().manual_seed(1))
    scored = randn(N, seed=2) > -0.5
    return x, randn(int(scored.sum()), 2, seed=3), scored, randn(N, seed=4) > 1, randn(N, seed=5) > 0.8


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}], ids=["in the time loop", "by the optimiser's kernel"])
def test_symbols_gates_of_blocks_and_gates_without_bias(options):
    """Gradients that wait across a reset are of symbols which the stream has forgotten."""
    found = []
    for road in ("cpu", "python"):
        torch.manual_seed(0)
        net = Half(4, 2, 2, 1, 2, bias=("gates", "output"), init_range=0.7, dtype=torch.float64)
        learner = Online(net, None, squared_error, TruncatedRTRL(), torch.optim.SGD(net.parameters(), 0.3, **options))
        learner.plan(road)
        x, d, scored, update, reset = ragged()
        outputs = [learner.run(x, d, scored=scored, update=update, reset=reset) for _ in range(2)]
        found.append((torch.cat(outputs), *net.parameters(), torch.tensor(learner.gradient_norm)))
        assert learner.updates > 10
    same(found[0], found[1], "outputs and weights", 1e-9)


def test_a_symbol_may_be_all_that_units_read():
    """No weight of another unit or symbol matters, though it be infinite and lie behind these."""
    net = ll.LSTM97(3, 0, output_size=9, input_to_output=True, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("weight_out")[8, 0] = torch.inf
    learner = Online(net, None, squared_error, TruncatedRTRL(), torch.optim.SGD(net.parameters(), 0.1))
    learner.plan("cpu")
    symbols = torch.tensor([1, 2, 1])
    same(learner.predict(symbols), torch.sigmoid(net.get_parameter("weight_out").t()[symbols]), "outputs", 1e-12)


@pytest.mark.parametrize("road", ["cpu", "python"])
def test_predict_changes_nothing(road):
    ours, other = learners("lstm", TruncatedRTRL())
    ours.plan(road)
    x, d, _, reset = stream()
    for each in (ours, other):
        each.run(x, d)
    wanted = randn(20) > 0
    predicted = ours.predict(x, reset=reset, wanted=wanted)
    y, _ = ours.layer(x, reset=reset)
    same(predicted, ours.readout(y)[wanted], "outputs", 1e-9)
    ours.run(x, d)
    other.run(x, d)
    equal(ours, other)
    x[7, 1, 0] = torch.nan
    assert ours.predict(x)[:, 1].isfinite().all(-1).tolist() == [t < 7 for t in range(20)]


def test_a_logistic_read_out():
    layer = make("gru")
    found = []
    for road in ("cpu", "python"):
        torch.manual_seed(0)
        readout = nn.Sequential(nn.Linear(layer.hidden_size, 2, dtype=torch.float64), nn.Sigmoid())
        modules = copy.deepcopy(layer), readout
        optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], 0.3)
        learner = Online(*modules, squared_error, TruncatedRTRL(), optimizer)
        learner.plan(road)
        assert learner.engine_for()[0] == road
        x, d, active, reset = stream()
        found.append((learner.run(x, d, active=active, reset=reset), *modules[0].parameters(), *readout.parameters()))
    same(found[0], found[1], "outputs and weights", 1e-9)
