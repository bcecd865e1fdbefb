"""``longlag bench``: what it times is right, and wrong numbers are not timed."""

import itertools

import pytest
import torch
from typer.testing import CliRunner

import longlag as ll
from longlag.cli import app, bench

SIZE = (4, 2, 3, 5)


def test_a_row_for_every_layer_and_no_row_for_wrong_numbers(monkeypatch):
    make = bench.cpu_cases
    cases = [case for case in make([SIZE]) if case.size == SIZE]
    assert len(cases) == 6  # three layers, a training step, layer norm, a user's cell
    monkeypatch.setattr(bench, "cpu_cases", lambda: cases)
    monkeypatch.setattr(bench, "first_calls", lambda: (7.5, 0.05))
    run = CliRunner().invoke(app, ["bench", "cpu", "--seconds", "0"], env={"COLUMNS": "140"})
    assert run.exit_code == 0, run.output
    for case in cases:
        assert case.title in run.output
    assert "7.50 s compiling, 0.050 s from the cache" in run.output

    def until_the_second(case, *_):
        if case is cases[1]:
            raise KeyboardInterrupt
        return [(1.0, 0.0)] * 2

    with monkeypatch.context() as patched:
        patched.setattr(bench, "times", until_the_second)
        stopped = CliRunner().invoke(app, ["bench", "cpu"], env={"COLUMNS": "140"})
    assert stopped.exit_code != 0
    assert cases[0].title in stopped.output
    assert "1000.000" in stopped.output
    cases[:] = itertools.islice(make([SIZE]), 6)
    monkeypatch.setattr(ll.LSTM, "load_state_dict", lambda *_: None)  # the peer keeps other weights
    wrong = CliRunner().invoke(app, ["bench", "cpu", "--seconds", "0"])
    assert wrong.exit_code == 1
    assert "LSTM / nn.LSTM at (4, 2, 3, 5) differs by" in wrong.output
    assert CliRunner().invoke(app, ["bench", "gpu"]).exit_code == 2


def gradients_of(layer):
    found = [p.grad for p in layer.parameters() if p.grad is not None]
    assert len(found) == len(list(layer.parameters()))
    return found


def test_calls_do_the_work_they_are_named_after():
    layer, x = ll.GRU(3, 5), torch.randn(4, 2, 3)
    gradients = bench.call_of(layer, x)()
    assert [g.shape for g in gradients] == [p.shape for p in layer.parameters()]
    assert all(g.abs().sum() > 0 for g in gradients)
    assert torch.equal(bench.call_of(layer, x, bench.INFERENCE)()[0], layer(x)[0])
    assert not bench.call_of(layer, x, bench.INFERENCE)()[0].requires_grad
    state = layer.step(x[0])[1]
    assert torch.equal(bench.call_of(layer, x, bench.STEP)()[0], layer.step(x[0], state)[0])
    before = [p.detach().clone() for p in layer.parameters()]
    train = bench.call_of(layer, x, bench.TRAINING)
    train()
    first = [g.clone() for g in gradients_of(layer)]
    train()  # gradients are cleared, not added up
    assert all(torch.allclose(now, g) and g.abs().sum() > 0 for now, g in zip(gradients_of(layer), first))
    assert all(torch.allclose(p, old, atol=1e-6) for p, old in zip(layer.parameters(), before))


def test_steps_are_compared_with_torchs_cells(monkeypatch):
    cases = [case for case in bench.cpu_cases([]) if case.work == bench.STEP]
    assert {type(case.theirs) for case in cases} == {torch.nn.LSTMCell, torch.nn.GRUCell}
    for case in cases:
        bench.check(case)
    with torch.no_grad():
        cases[0].theirs.bias_hh.add_(1.0)
    monkeypatch.setattr(ll.LSTM, "load_state_dict", lambda *_: None)  # the peer keeps other weights
    with pytest.raises(SystemExit, match=r"LSTM.step / nn.LSTMCell at \(1, 1, 16, 16\) differs by"):
        bench.check(cases[0])


def test_blocks_take_turns_and_are_divided_by_their_calls():
    now, seen = [0.0], []

    def tick(name, cost):
        def call():
            seen.append(name)
            now[0] += cost

        return call

    calls = {"fast": tick("fast", 0.005), "slow": tick("slow", 0.1)}
    times = bench.measure(calls, 0.0, lambda: now[0])
    assert {name: len(values) for name, values in times.items()} == {"fast": 5, "slow": 5}
    assert times["fast"] == pytest.approx([0.005] * 5)
    assert times["slow"] == pytest.approx([0.1] * 5)
    rounds = [name for name, _ in itertools.groupby(seen)]
    assert rounds == ["fast", "slow"] * 6  # one to count the calls in 20 ms, five that are kept
    assert bench.middle([1.0, 2.0, 3.0]) == (2.0, 1.0)
