"""compare: its numbers against gradients by hand, its table, its picture, and what it refuses."""

import csv
import re

import pytest
import torch
from helpers import randn, same
from learn.course import Case, autograd, forward, make

import longlag as ll
from longlag.learn import BPTT, RTRL, LocalForward, SnAp, TruncatedBPTT, TruncatedRTRL, compare


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_numbers_are_those_of_the_rules(batch_first):
    layer, x, weights = make("lstm"), randn(9, 2, 3), randn(9, 2, 4, seed=1)
    weights[:3] = 0.0  # not scored
    given = x.transpose(0, 1) if batch_first else x

    def loss(y):
        return ((y.transpose(0, 1) if batch_first else y) * weights).sum()

    layer.batch_first = batch_first
    found = compare(layer, given, loss, {"full": RTRL(), "cut": TruncatedRTRL(), "BPTT": BPTT(), "own": SnAp()})
    layer.batch_first = False
    c = Case(x, None, weights)
    exact = torch.cat([g.flatten() for g in autograd(layer, c)[2].values()])
    assert found.rules == ("full", "cut", "BPTT", "own")
    for k, rule in enumerate((RTRL(), TruncatedRTRL(), BPTT(), SnAp())):
        ours = forward(rule, layer, c)[2] if not rule.deferred else autograd(layer, c)[2]
        g = torch.cat([ours[name].flatten() for name, _ in layer.named_parameters()])
        same(found.cosine[k], g @ exact / (g.norm() * exact.norm()), "cosine", 1e-9)
        same(found.norm[k], g.norm() / exact.norm(), "norm", 1e-9)
    same(found.cosine[[0, 2]], torch.ones(2).double(), "exact", 1e-12)
    assert float(found.cosine[1]) < 0.9999
    own = 2 * 8 * ((3 + 4 + 1) * 3 * 4)  # bytes: 2 samples, traces of 3 gates over [x; y; 1] per unit
    assert own < float(found.memory[1]) < 2 * own  # the traces, and the values of the last step
    assert float(found.memory[2]) == 8 * (9 * 2 * 3 + 2 * 2 * 4)  # inputs and the first state
    assert bool((found.time > 0).all())


def test_windows_are_run_in_chunks():
    """As `Online` with every=k does."""
    layer, x = make("gru"), randn(6, 2, 3)
    found = compare(layer, x, lambda y: y.square().sum(), [TruncatedBPTT(3), TruncatedBPTT(6), TruncatedBPTT(99)])
    same(found.cosine[1:], torch.ones(2).double(), "whole", 1e-12)
    state, total = None, 0
    for chunk in x.split(3):
        y, state = layer(chunk, None if state is None else state.detach())
        total = total + y.square().sum()
    assert isinstance(total, torch.Tensor)
    g = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(layer.parameters()))])
    exact = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    exact = torch.cat([g.flatten() for g in exact])
    same(found.cosine[0], g @ exact / (g.norm() * exact.norm()), "chunks", 1e-12)


def test_table_csv_and_picture(tmp_path):
    found = compare(ll.GRU(2, 3), torch.randn(5, 2, 2), lambda y: y[-1].sum(), [RTRL(), SnAp(1)])
    lines = repr(found).splitlines()
    assert lines[0].split() == ["rule", "cosine", "norm", "memory", "time", "per", "step"]
    assert re.fullmatch(r"RTRL\(\)\s+1\.000\s+1\.00\s+[\d.]+ KiB\s+[\d.]+ µs", lines[1])
    assert lines[2].startswith("SnAp(1)")
    rows = list(csv.DictReader(found.to_csv(tmp_path / "rules.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["rule"] for row in rows] == ["RTRL()", "SnAp(1)"]
    assert [float(row["cosine"]) for row in rows] == found.cosine.tolist()
    panels = found.plot().axes
    drawn = [torch.as_tensor(axes.lines[-1].get_xdata()) for axes in panels]
    same(tuple(drawn), (found.cosine, found.norm, found.memory / 1024, 1e6 * found.time), "drawn")
    assert found.save(tmp_path / "rules.png").stat().st_size > 5_000
    assert found.title == "GRU(2, 3), 5 steps"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"layer": torch.nn.GRU(3, 4)}, TypeError, "compare: layer must be a longlag layer, got GRU"),
        ({"rules": []}, ValueError, "compare: rules must name at least one rule, got none"),
        ({"rules": ["rtrl"]}, TypeError, "compare: rules must be rules of longlag.learn, got str for 'rtrl'"),
        ({"rules": [LocalForward()]}, ValueError, "LocalForward: GRU feeds units back to each other"),
        ({"x": randn(5, 3)}, ValueError, "compare: x must have 3 dimensions, got shape (5, 3)"),
        ({"x": torch.randn(5, 2, 3)}, TypeError, "compare: x must be torch.float64 like the weights"),
        ({"loss": lambda y: y}, ValueError, "compare: loss must return a scalar tensor, got shape (5, 2, 4)"),
        ({"loss": lambda y: 1.0}, ValueError, "compare: loss must return a scalar tensor, got float"),
        ({"loss": lambda y: 0 * y.sum()}, ValueError, "compare: the exact gradient must be finite and not zero"),
    ],
)
def test_refusals(change, error, text):
    given = {"layer": make("gru"), "x": randn(5, 2, 3), "loss": lambda y: y.sum(), "rules": [RTRL()], **change}
    with pytest.raises(error, match=re.escape(text)):
        compare(**given)
