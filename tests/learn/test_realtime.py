"""Online on the compiled engine: the numbers of the Python rules, chunk by chunk and road by road."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import parts, randn, same
from learn.course import make
from torch import nn

from longlag.learn import RTRL, LocalForward, Online, Rule, SnAp, TruncatedRTRL, squared_error

PAIRS: list[tuple[str, Rule]] = [
    ("lstm97_linear", TruncatedRTRL()),
    ("local_network_forget", LocalForward()),
    ("user_everything", TruncatedRTRL()),
    ("elman_no_bias", RTRL()),
    ("lstm", RTRL()),
    ("user_apart", RTRL()),
    ("user_everything", RTRL()),
    ("lstm", SnAp(1)),
    ("user_everything", SnAp(1)),
]


def learners(name: str, rule: Rule, optimizer=torch.optim.SGD, **options) -> tuple[Any, Any]:
    """Two equal learners: on the compiled engine and in Python."""
    layer = make(name)
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
