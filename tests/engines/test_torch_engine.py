"""torch's own recurrent kernels as an engine: equal to the reference, refused by name where torch lacks something."""

import itertools

import helpers
import pytest
import torch
from contract import assert_same, leaves_of, problem, results

import longlag as ll
from longlag.engines.builtin import _private

SERVED = ["lstm", "gru", "elman", "elman_relu"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SERVED)
def test_outputs_and_gradients_equal_the_reference(name, dtype):
    for ragged, reverse in itertools.product((False, True), repeat=2):
        for T, B, inputs, H in ((7, 5, 3, 19), (1, 1, 1, 1)):
            drawn = problem(
                helpers.CELLS[name], dtype, T=T, B=B, inputs=inputs, H=H,
                norm=False, ragged=ragged, reset=False, mask=False,
            )  # fmt: skip
            ours, theirs = (results(engine, helpers.CELLS[name], *drawn, reverse) for engine in ("torch", "reference"))
            assert_same(ours, theirs, dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biases", [0, 1])
@pytest.mark.parametrize("name", SERVED)
def test_without_state_with_fewer_biases_and_lengths_outside_the_sequence(name, biases, reverse):
    cell = helpers.CELLS[name]
    given, options, _ = problem(
        cell, torch.float64, T=4, B=3, inputs=2, H=5, norm=False, ragged=True, reset=False, mask=False
    )
    given["b"] = (None, given["b"][0])[biases]
    leaves = leaves_of({**given, "state": []}, None)
    given["state"], options["lengths"] = [None] * len(given["state"]), torch.tensor([0, 9, -7])
    ours, theirs = (results(engine, cell, given, options, leaves, reverse) for engine in ("torch", "reference"))
    assert_same(ours, theirs, torch.float64)


@pytest.mark.parametrize("name", ["lstm_two_ways", "lstm_three_layers", "gru_two_ways", "elman_no_bias"])
def test_layers(name):
    x, lengths = helpers.randn(6, 3, 3), torch.tensor([6, 1, 4])
    gathered = []
    for engine in ("torch", "reference"):
        layer, inputs = helpers.LAYERS[name](engine=engine), x.clone().requires_grad_()
        y, state = layer(inputs, lengths=lengths)
        loss = helpers.weighted_sum(y, *(state if isinstance(state, tuple) else (state,)))
        gathered.append((y, state, helpers.gradients(loss, layer, inputs)))
    helpers.same(*gathered)


def test_outputs_under_autocast_keep_the_precision_of_the_weights():
    layer = ll.LSTM(3, 4, engine="torch")
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(torch.randn(5, 2, 3).bfloat16())
    assert y.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "given", "why"),
    [
        (lambda **o: ll.Leaky(3, 4, **o), {}, "torch has no kernel for the cell leaky"),
        (lambda **o: ll.LSTM(3, 4, norm="layer", **o), {}, "torch's kernels have no layer normalisation"),
        (lambda **o: ll.GRU(3, 4, recurrent_dropout=0.5, **o), {}, "torch's kernels have no recurrent dropout"),
        (lambda **o: ll.GRU(3, 4, **o), {"reset": torch.ones(5, 2) > 0}, "torch's kernels have no resets"),
    ],
)  # fmt: skip
def test_what_torch_lacks_is_refused_by_name(make, given, why):
    layer = make(engine="torch")
    with pytest.raises(ValueError, match=rf"^engine 'torch' cannot serve this call: {why}; engine='reference' can$"):
        layer(torch.randn(5, 2, 3), **given)


def test_transforms_compilation_and_empty_batches_are_refused():
    layer, x = ll.LSTM(3, 4, engine="torch"), torch.randn(5, 2, 3)
    with pytest.raises(ValueError, match=r"torch\.func transforms"):
        torch.func.vmap(lambda x: layer(x)[0])(x.expand(2, 5, 2, 3))
    with pytest.raises(ValueError, match="at least one sequence"):
        layer(x[:, :0])


def test_other_layers_do_not_take_it():
    with pytest.raises(ValueError, match=r"^LSTM97: engine must be one of 'auto', 'reference', 'cpu', got 'torch'$"):
        ll.LSTM97(3, blocks=2, engine="torch")


def test_the_choice_is_explained():
    layer, x = ll.LSTM(3, 4), torch.randn(5, 2, 3)
    assert layer.engine_for(x).startswith("cpu: ")
    there = layer.to("meta")  # any device that is not a CPU
    assert there.engine_for(x.to("meta")) == "torch: torch's own kernels compute this cell"
    norm = ll.LSTM(3, 4, norm="layer", device="meta").engine_for(x.to("meta"))
    assert norm.startswith("reference: engine 'torch': torch's kernels have no layer normalisation")


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_a_changed_kernel_of_torch_is_noticed(monkeypatch, name):
    true = getattr(torch._VF, name)
    monkeypatch.setattr(torch._VF, name, lambda *given: tuple(v + 1 for v in true(*given)))
    _private.recurrent_kernel.cache_clear()
    with pytest.raises(RuntimeError, match=rf"^longlag: _VF.{name} of torch \S+ is not as expected"):
        _private.recurrent_kernel(name)
    monkeypatch.delattr(torch._VF, name, raising=False)
    _private.recurrent_kernel.cache_clear()
    monkeypatch.undo()
    _private.recurrent_kernel(name)
