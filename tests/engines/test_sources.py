"""Cells whose U reads more than y: states, expressions, products of the same step; the CPU engine and the reference."""

import itertools

import pytest
import torch
from contract import assert_same, leaves_of, problem, results
from helpers import error

import longlag as ll
from longlag import cells, engines
from longlag.cells import sigmoid, tanh
from longlag.engines import Weights


@ll.cell(gates=["f:x+v*p", "m:v*v*dt", "a:x+f*y*p+m*dt+w", "w:x"], states="v", params="p", inputs="dt")
def products(f, m, a, w, v, p, dt):
    """Expressions, and products with gates of each kind; y is read through U only."""
    v = 0.5 * v + tanh(a) * dt
    return sigmoid(f) * tanh(m) * p + 0.1 * v * w, v


OPTIONS = list(itertools.product((False, True), repeat=4))
SIZES = [(7, 5, 3, 19), (1, 1, 1, 5), (4, 3, 2, 16), (3, 9, 5, 33), (4, 1, 2, 21)]


@pytest.mark.parametrize(("cell", "norm"), [(products, False), (cells.mgu, True)], ids=lambda v: str(v))
def test_every_source_equals_the_reference(cell, norm):
    sizes = itertools.cycle(SIZES)
    for ragged, reset, mask, reverse in OPTIONS:
        T, B, inputs, H = next(sizes)
        how = {"norm": norm, "ragged": ragged, "reset": reset, "mask": mask}
        drawn = problem(cell, torch.float64, T=T, B=B, inputs=inputs, H=H, **how)
        ours, theirs = (results(engine, cell, *drawn, reverse) for engine in ("cpu", "reference"))
        assert_same(ours, theirs, torch.float64)


def test_threads_share_rows_and_sums(monkeypatch):
    from longlag.engines.cpu.runtime import plan, program

    monkeypatch.setattr(program, "WORTH_A_THREAD", 1)
    plan.forget()  # it remembers how work was shared
    how = {"norm": False, "ragged": True, "reset": True, "mask": True}
    drawn, gathered = problem(products, torch.float64, T=9, B=3, inputs=5, H=37, **how), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            gathered.append(results("cpu", products, *drawn, False))
    finally:
        torch.set_num_threads(1)
        plan.forget()
    assert all(torch.equal(a, b) for a, b in zip(*gathered))


def test_inference_keeps_nothing_and_gives_the_same_numbers():
    layer = ll.Recurrent(products, 3, 19, dtype=torch.float64)
    assert layer.engine_for(torch.zeros(40, 2, 3, dtype=torch.float64)).startswith("cpu: ")
    x, dt = torch.rand(40, 2, 3, dtype=torch.float64), torch.rand(40, 2, dtype=torch.float64)
    y, end = layer(x, dt=dt)
    with torch.no_grad():
        again, end_again = layer(x, dt=dt)
    assert torch.equal(y, again)
    assert all(map(torch.equal, end, end_again))


def test_half_precision_reads_the_numbers_of_each_step():
    layer = ll.Recurrent(cells.cfc, 3, 4)
    x, dt = torch.rand(6, 2, 3), torch.rand(6, 2)
    wanted = layer(x, dt=dt)[0]
    found = layer.bfloat16()(x.bfloat16(), dt=dt.bfloat16())[0]
    assert found.dtype is torch.bfloat16
    assert error(found.float(), wanted) < 0.03


def test_source_shows_what_u_reads():
    text = cells.gru_original.source("cpu")
    assert "def reads_1(" in text
    assert "def reads_back_1(" in text


@pytest.mark.parametrize(("cell", "heads", "H"), [(cells.elman, 3, 24), (cells.gru, 2, 38), (products, 2, 16)], ids=str)
def test_of_a_matrix_of_heads_the_blocks_are_read(cell, heads, H):
    """Values off the blocks change nothing on the CPU engine; the reference gets zeros there."""
    for mask, B in ((False, 5), (True, 3), (False, 1)):
        how = {"norm": False, "ragged": mask, "reset": mask, "mask": mask}
        given, options, _ = problem(cell, torch.float64, T=40, B=B, inputs=3, H=H, **how)
        size = H // heads
        blocks = torch.block_diag(*[torch.ones(size, size)] * heads).repeat(len(cell.recurrent_gates), 1).bool()
        gathered = []
        for engine, elsewhere in (("cpu", 1e3), ("reference", 0.0)):
            U = torch.where(blocks, given["U"].detach(), elsewhere).requires_grad_()
            here = {**given, "U": U}
            w = Weights(here["W"], here["b"], U, None, tuple(here["params"]), heads=heads)
            called = {name: options[name] for name in ("mask", "lengths", "reset")}
            y, ends = engines.run(engine, cell, here["x"], w, here["state"], **called, numbers=here["numbers"])
            leaves = leaves_of(here, None)
            *d, dU = torch.autograd.grad((y**2).sum() + sum(end.sum() for end in ends), [*leaves, U])
            gathered.append(
                [y, *ends, *(g for g, leaf in zip(d, leaves) if leaf is not U), torch.where(blocks, dU, 0.0)]
            )
        assert_same(gathered[0], gathered[1], torch.float64)
