"""The contract of engines: every output and every gradient of the compiled one equals the reference's."""

import itertools
import os
import subprocess
import sys

import helpers
import pytest
import torch
from contract import TOLERANCE, assert_same, in_float64, leaves_of, problem, results

import longlag as ll

OPTIONS = list(itertools.product((False, True), repeat=4))


# The norm does not depend on equations but on the gates: one, four, some without W or U, all kinds, no U at all.
WITH_NORM = ("elman", "lstm", "gru", "user_apart", "user_everything", "net_feedback")
CASES = [
    case for case in itertools.product(helpers.CELLS, TOLERANCE, (False, True)) if case[0] in WITH_NORM or not case[2]
]


@pytest.mark.parametrize(("name", "dtype", "norm"), CASES)
def test_every_cell_equals_the_reference(name, dtype, norm):
    cell = helpers.CELLS[name]
    # after normalisation two units are ±1 whatever they were: their gradients are rounding errors
    sizes = itertools.cycle([(7, 5, 3, 19), (1, 1, 1, 5 if norm else 1), (4, 3, 2, 16), (3, 9, 5, 33), (4, 1, 2, 21)])
    for ragged, reset, mask, reverse in OPTIONS:
        T, B, inputs, H = next(sizes)
        drawn = problem(cell, dtype, T=T, B=B, inputs=inputs, H=H, norm=norm, ragged=ragged, reset=reset, mask=mask)
        ours, theirs = (results(engine, cell, *drawn, reverse) for engine in ("cpu", "reference"))
        exact = results("reference", cell, *in_float64(*drawn[:2]), reverse) if dtype == torch.float32 else None
        assert_same(ours, theirs, dtype, exact)


FUSED = [name for name in helpers.LAYERS if not name.startswith("skip") and name != "jordan_argmax"]


@pytest.mark.parametrize("name", FUSED)
def test_every_layer_equals_the_reference(name):
    x = torch.rand(5, 3, 3, dtype=torch.float64)
    lengths, reset = torch.tensor([5, 1, 3]), torch.rand(5, 3) < 0.3
    gathered = []
    for engine in ("cpu", "reference"):
        layer = helpers.LAYERS[name](engine=engine)
        inputs = x.clone().requires_grad_()
        y, state = layer(inputs, lengths=lengths, reset=reset)
        parts = [y, *(state if isinstance(state, tuple) else (state,))]
        slopes = [torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view_as(part) for part in parts]
        loss = torch.stack([(part * slope).sum() for part, slope in zip(parts, slopes)]).sum()
        wanted = [inputs, *(p for p in layer.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        gathered.append([*parts, *(torch.zeros_like(w) if g is None else g for g, w in zip(grads, wanted))])
    ours, theirs = gathered
    assert_same(ours, theirs, torch.float64)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biases", [0, 1, 2])
@pytest.mark.parametrize("name", ["lstm", "gru", "leaky", "user_everything", "net_feedback"])
def test_no_state_is_zeros_and_biases_may_be_missing(name, biases, reverse, steps):
    cell, gathered = helpers.CELLS[name], []
    given, options, _ = problem(
        cell, torch.float64, T=steps, B=3, inputs=2, H=5, norm=False, ragged=False, reset=False, mask=False
    )
    first = given["b"][0] if cell.dense else given["b"]
    given["b"] = (None, first, given["b"])[biases]
    leaves = leaves_of({**given, "state": []}, None)
    for engine in ("cpu", "reference"):
        bare = {**given, "state": [None] * len(given["state"])}
        gathered.append(results(engine, cell, bare, options, leaves, reverse))
    zeros = {**given, "state": [torch.zeros_like(part) for part in given["state"]]}
    gathered.append(results("cpu", cell, zeros, options, leaves, reverse))
    for ours in (gathered[0], gathered[2]):
        assert_same(ours, gathered[1], torch.float64)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru", "net_feedback"])
def test_lengths_outside_the_sequence_touch_nothing_else(name, reverse):
    """A layer refuses them, but cannot look at them inside torch.compile: 0 gives no step, more than T gives T."""
    cell, gathered = helpers.CELLS[name], []
    given, options, leaves = problem(
        cell, torch.float64, T=4, B=3, inputs=2, H=5, norm=False, ragged=True, reset=False, mask=False
    )
    options["lengths"] = torch.tensor([0, 9, -7])
    for engine in ("cpu", "reference"):
        gathered.append(results(engine, cell, given, options, leaves, reverse))
    ours, theirs = gathered
    assert_same(ours, theirs, torch.float64)


def test_an_empty_batch():
    layer = ll.LSTM(3, 4, dtype=torch.float64)
    y, (h, c) = layer(torch.zeros(5, 0, 3, dtype=torch.float64))
    assert (y.shape, h.shape, c.shape) == ((5, 0, 4), (1, 0, 4), (1, 0, 4))
    y.sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


@pytest.mark.parametrize("B", [1, 2, 7])  # fewer sequences than threads: the sums for W and U may still be shared
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_results_are_the_same_bits_for_any_number_of_threads(monkeypatch, name, pool, B):
    from longlag.engines.cpu.runtime import plan, program
    from longlag.engines.cpu.runtime import threads as pool_or_openmp

    assert pool_or_openmp._openmp_runner()  # that of torch
    if pool:
        monkeypatch.setattr(pool_or_openmp, "_openmp_runner", lambda: None)
    monkeypatch.setattr(program, "WORTH_A_THREAD", 1)
    plan.forget()  # it remembers how work was shared
    cell = helpers.CELLS[name]
    for plain in (False, True):  # the second time without a state, too
        how = dict.fromkeys(("ragged", "reset", "mask"), not plain)
        given, options, leaves = problem(cell, torch.float32, T=9, B=B, inputs=5, H=37, norm=False, **how)
        if plain:
            given["state"], leaves = (), leaves_of({**given, "state": []}, None)
        try:
            gathered = []
            for threads in (1, 2, 3, 7):
                torch.set_num_threads(threads)
                gathered.append(results("cpu", cell, given, options, leaves, False))
        finally:
            torch.set_num_threads(1)
        for other in gathered[1:]:
            assert all(torch.equal(a, b) for a, b in zip(gathered[0], other))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("name", "H"), [("lstm", 37), ("gru", 32)])
def test_threads_that_share_a_sequence_compute_the_same_bits(monkeypatch, name, H, pool):
    """One sequence: helpers compute columns of U y, or the first thread does where a helper is late."""
    from longlag.engines.cpu.runtime import plan, program
    from longlag.engines.cpu.runtime import threads as pool_or_openmp

    if pool:
        monkeypatch.setattr(pool_or_openmp, "_openmp_runner", lambda: None)
    monkeypatch.setattr(program, "SHARED_PRODUCT", 1)
    cell, gathered = helpers.CELLS[name], []
    given, options, leaves = problem(
        cell, torch.float32, T=40, B=1, inputs=5, H=H, norm=False, ragged=False, reset=False, mask=False
    )
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            plan.forget()
            gathered.append(results("cpu", cell, given, options, leaves, False))
    finally:
        torch.set_num_threads(1)
        plan.forget()
    for other in gathered[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gathered[0], other))


@pytest.mark.parametrize("name", ["lstm", "gru", "elman"])
@pytest.mark.parametrize("packed", [False, True])
def test_packed_and_stored_matrices_give_the_same_numbers(monkeypatch, name, packed):
    """T·B decides whether W and U are packed; both ways agree with the reference at any size."""
    from longlag.engines.cpu.runtime import plan, program

    monkeypatch.setattr(program, "UNPACKED_ROWS", dict.fromkeys(("forward", "backward"), 0 if packed else 10**6))
    plan.forget()
    cell = helpers.CELLS[name]
    for T, B, inputs, H in ((1, 1, 1, 1), (2, 3, 17, 5), (5, 9, 33, 40)):
        how = dict.fromkeys(("ragged", "reset", "mask"), B > 1)
        given, options, leaves = problem(cell, torch.float64, T=T, B=B, inputs=inputs, H=H, norm=False, **how)
        pairs = [results(engine, cell, given, options, leaves, False) for engine in ("cpu", "reference")]
        for ours, theirs in zip(*pairs):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    plan.forget()


def test_without_gradients_nothing_is_kept_for_a_backward_pass(monkeypatch):
    """Under no_grad parameters still require gradients; an inference call used to store all net inputs."""
    from longlag.engines.cpu.runtime import run

    asked, forward = [], run.forward

    def recorded(call, given, optional, save):
        asked.append(save)
        return forward(call, given, optional, save)

    monkeypatch.setattr(run, "forward", recorded)
    layer, x = ll.LSTM(3, 4), torch.randn(5, 2, 3)
    y = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], y)
    with torch.inference_mode():
        assert torch.equal(layer(x)[0], y)
    assert asked == [True, False, False]


def test_fewer_threads_than_asked_for_do_all_the_work():
    code = """
import torch, longlag as ll
torch.set_num_threads(3)
layer, slow = ll.LSTM(64, 200), ll.LSTM(64, 200, engine="reference")
slow.load_state_dict(layer.state_dict())
for x in (torch.randn(50, 6, 64), torch.randn(50, 1, 64)):
    for each in (layer, slow):
        each(x)[0].square().sum().backward()
for a, b in zip(layer.parameters(), slow.parameters()):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)
"""
    for limit in "12":
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"OMP_THREAD_LIMIT": limit}, check=True)


def test_second_derivatives():
    layer = ll.GRU(2, 3, dtype=torch.float64, engine="cpu")
    x = torch.rand(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x), x)  # outputs and final state


def test_opcheck_and_compile():
    from longlag.engines.cpu.runtime import run  # noqa: F401 (defines the operators)

    cell = helpers.CELLS["gru"]
    given, options, _ = problem(
        cell, torch.float64, T=3, B=2, inputs=2, H=5, norm=True, ragged=True, reset=True, mask=False
    )
    norm = options["norm"]
    names = ["x", "W", "b_x", "bias_hh", "U", "y_0", "gamma", "beta"]
    tensors = [given["x"], given["W"], *given["b"], given["U"], *given["state"], norm.weight, norm.bias]
    torch.library.opcheck(
        torch.ops.longlag.recurrent.default,
        (cell.key, names, tensors, False, norm.eps, None, options["lengths"], options["reset"]),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    mine = ll.cell(gates="a", states="c")(lambda a, c: (a * c, a + 0.5 * c))  # never run before it is compiled
    layer = ll.Recurrent(mine, 3, 4, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.rand(5, 2, 3, dtype=torch.float64, requires_grad=True)
    ours, theirs = compiled(x)[0], layer(x)[0]
    assert torch.allclose(ours, theirs, atol=1e-12)
    for a, b in zip(torch.autograd.grad(ours.sum(), [x, *layer.parameters()]),
                    torch.autograd.grad(theirs.sum(), [x, *layer.parameters()])):  # fmt: skip
        assert torch.allclose(a, b, atol=1e-12)


def test_choice_and_refusal():
    layer = ll.LSTM(2, 3)
    assert layer.engine_for(torch.zeros(1, 1, 2)) == "cpu: compiled kernels for float32 and float64 on the CPU"
    half = "cpu: compiled kernels, which compute half precision in float32"
    assert layer.engine_for(torch.zeros(1, 1, 2, dtype=torch.float16)) == half
    assert layer.engine_for(torch.zeros(1, 1, 2, dtype=torch.complex64)) == "reference: the input is torch.complex64"
    with pytest.raises(ValueError, match=r"engine 'cpu' cannot serve this call: the input is torch.complex64"):
        ll.LSTM(2, 3, engine="cpu").engine_for(torch.zeros(1, 1, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="Skip: engine 'cpu' does not know delays; engine='reference' does"):
        ll.Skip(2, 3, engine="cpu")
    with pytest.raises(ValueError, match="Jordan: engine 'cpu' does not serve feedback='argmax'"):
        ll.Jordan(2, 3, 2, feedback="argmax", engine="cpu")(torch.zeros(1, 1, 2))
