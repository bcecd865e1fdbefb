"""What goes wrong inside a compiled chunk: the step is named, nothing of it is kept, and the stream goes on."""

from __future__ import annotations

import _thread
import signal
import threading
from typing import Any

import pytest
import torch
from helpers import parts, randn, same
from learn.test_realtime import equal, learners, make, stream
from torch import nn

from longlag.learn import Online, StreamError, TruncatedRTRL, cross_entropy, squared_error

NAME, RULE = "user_everything", TruncatedRTRL()  # one kernel for this module, compiled for others, too


def learner(loss: Any = squared_error) -> Any:
    """A learner on the compiled engine; all made alike."""
    torch.manual_seed(0)
    layer, readout = make(NAME), nn.Linear(4, 2, dtype=torch.float64)
    online = Online(layer, readout, loss, RULE, torch.optim.SGD([*layer.parameters(), *readout.parameters()], 0.05))
    online.plan("cpu")
    return online


def spoiled(what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A stream of 12 steps, of which step 5 cannot be learned from."""
    x, d, _, _ = stream(T=12)
    (x if what == "input" else d)[5, 1, 0] = torch.nan
    return x, d


@pytest.mark.parametrize("road", ["run", "step"])
@pytest.mark.parametrize("what", ["input", "target"])
def test_a_number_that_is_not_finite(what, road):
    """An error with the step; parameters, state and outputs are those of the steps before, and learning goes on."""
    (x, d), ours, wanted = spoiled(what), learner(), learner()
    outputs = wanted.run(x[:5], d[:5])
    text = "x_t at step 5 must be finite, got NaN" if what == "input" else "the loss at step 5 is nan; no parameter"
    if road == "run":
        with pytest.raises(StreamError, match=text) as caught:
            ours.run(x, d)
        assert caught.value.step == 5
        same(caught.value.outputs, outputs, "outputs", 0.0)
    else:
        for t in range(5):
            ours.step(x[t], d[t])
        with pytest.raises(ValueError, match=text):
            ours.step(x[5], d[5])
    if what == "target":  # the input was taken
        same(dict(ours.layer.named_parameters()), dict(wanted.layer.named_parameters()), "parameters", 0.0)
        wanted.run(x[5:6])
    equal(ours, wanted, 0.0)
    same(ours.run(x[6:], d[6:]), wanted.run(x[6:], d[6:]), "outputs", 0.0)
    equal(ours, wanted, 0.0)
    assert ours.updates == 11


def test_a_state_that_is_not_finite():
    x, d = spoiled("target")
    ours, wanted = learner(), learner()
    outputs = wanted.run(x[:3], d[:3])
    x[3, 2, :] = 1e200
    with pytest.raises(
        StreamError, match="the state c of Recurrent is not finite after step 3: the layer has diverged"
    ) as caught:
        ours.run(x, d)
    assert (caught.value.step, ours.steps, ours.updates) == (3, 3, 3)
    same(caught.value.outputs, outputs, "outputs", 0.0)
    same(dict(ours.layer.named_parameters()), dict(wanted.layer.named_parameters()), "parameters", 0.0)


@pytest.mark.parametrize(
    ("loss", "targets", "text"),
    [
        (
            squared_error,
            randn(12, 3, 5),
            r"squared_error: targets must be numbers \(…, 2\) or int64 classes, got .*5\)",
        ),
        (squared_error, randn(11, 3, 2), r"targets must begin with \(12, 3\), got \(11, 3, 2\)"),
        (cross_entropy, torch.full((12, 3), 2), r"cross_entropy: target must lie in 0\.\.1, got 2"),
        (squared_error, torch.full((12, 3), -1), r"squared_error: target must lie in 0\.\.1, got -1"),
    ],
)
def test_targets_that_do_not_fit(loss, targets, text):
    ours, (x, _, _, _) = learner(loss), stream(T=12)
    before = learner().layer.state_dict()
    with pytest.raises(ValueError, match=text):
        ours.run(x, targets)
    assert ours.steps == 0
    if len(targets) == 12:
        with pytest.raises(ValueError, match=f"{loss.__name__}: target must"):
            ours.step(x[0], targets[0])
    assert ours.updates == 0
    same(ours.layer.state_dict(), before, "parameters", 0.0)


def test_an_optimiser_over_other_parameters():
    layer, other = make(NAME), nn.Linear(3, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD([*layer.parameters(), *other.parameters()], 0.05)
    online = Online(layer, None, squared_error, RULE, optimizer)
    assert online.engine_for() == ("python", "optimizer holds parameters of other modules")
    with pytest.raises(ValueError, match="cannot run this learner: optimizer holds parameters of other modules"):
        online.plan("cpu")


@pytest.mark.parametrize("moments", [False, True])
def test_ctrl_c_ends_a_chunk_between_two_steps(moments):
    """The learner is as after the steps that it counts, and goes on from there."""
    optimizer: Any = torch.optim.Adam if moments else torch.optim.SGD
    ours, wanted = learners(NAME, RULE, optimizer)
    wanted.plan("cpu")
    x, d = randn(20, 3, 3).repeat(100_000, 1, 1), 0.1 * randn(20, 3, 2, seed=1).repeat(100_000, 1, 1)
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell do not hear it
    ours.run(x[:20], d[:20])
    try:
        while ours.steps == 20:  # a slow machine may hear it before the first step
            threading.Timer(0.1, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                ours.run(x, d)
    finally:
        signal.signal(signal.SIGINT, heard)
    assert ours.steps < len(x)
    wanted.run(x[:20], d[:20])
    wanted.run(x[: ours.steps - 20], d[: ours.steps - 20])
    equal(ours, wanted, 0.0)
    same(parts(ours.state), parts(wanted.state), "state", 0.0)
    same(ours.run(x[:20], d[:20]), wanted.run(x[:20], d[:20]), "outputs", 0.0)
    equal(ours, wanted, 0.0)


def test_the_same_bits_for_any_number_of_threads():
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            online, (x, d, active, reset) = learner(), stream(T=40, B=5)
            outputs = online.run(x, d, active=active, reset=reset)
            found.append((outputs, online.losses, *online.layer.parameters(), *parts(online.state)))
        finally:
            torch.set_num_threads(before)
    same(found[0], found[1], "outputs, losses, weights and state", 0.0)
