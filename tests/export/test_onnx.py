"""Exports through onnxruntime and torch.export give the numbers of the reference engine."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers import LAYERS, parts, randn, some_state
from torch import nn

import longlag as ll

FLOAT = torch.float32
# one of every kind; benchmarks/export.py does the same for the whole registry
TELLING = [
    *("lstm_norm", "lstm_two_ways", "leaky_two_ways", "local_static", "skip_several", "user_everything", "lstm97"),
    *("lstm97_hidden_only", "jordan_argmax", "local_network_forget"),
]
NATIVE = {"elman_relu": "RNN", "rnn97": "RNN", "gru": "GRU"}
STEPS = ["lstm", "user_gated"]


def layer_of(name, **options):
    return (LAYERS.get(name) or (lambda **o: ll.Recurrent(LAYERS["user_gated_two_ways"]().cell, 3, 4, **o)))(
        dtype=FLOAT, **options
    )


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(path, *given) -> list[Any]:
    model = session(path)
    names = [value.name for value in model.get_inputs()]
    assert len(names) == len(given)
    return list(model.run(None, {name: value.detach().numpy() for name, value in zip(names, given)}))


def operators(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def close(ours: Any, wanted: Any) -> None:
    assert len(ours) == len(wanted)
    for a, b in zip(ours, wanted):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TELLING)
def test_whole_sequences(name, tmp_path):
    """Other sizes than those of the export; lengths and a given state."""
    layer, path = layer_of(name), tmp_path / "net.onnx"
    assert ll.export.to_onnx(layer, path) <= 1e-5
    reference: Any = ll.export.portable(layer)
    for T, B in ((11, 4), (1, 1)):
        x, lengths = randn(T, B, 3, dtype=FLOAT), torch.arange(T, T - B, -1)
        state = some_state(ll.export.portable(layer_of(name)).double(), B)
        state = tuple(part.to(FLOAT) for part in state)
        y, new = reference(x, layer.state_spec.whole(state) if state else None, lengths=lengths)
        close(run(path, x, lengths, *state), (y, *parts(new)))
    assert all(
        part.dim_param in ("time", "batch") for part in onnx.load(path).graph.input[0].type.tensor_type.shape.dim[:2]
    )


@pytest.mark.parametrize("name", NATIVE)
def test_the_operators_of_onnx_are_used_where_the_cell_is_the_same(name, tmp_path):
    path = tmp_path / "net.onnx"
    ll.export.to_onnx(layer_of(name), path)
    assert operators(path) & {"LSTM", "GRU", "RNN", "Scan"} == {NATIVE[name]}


def test_another_cell_becomes_a_loop(tmp_path):
    path = tmp_path / "net.onnx"
    ll.export.to_onnx(layer_of("leaky"), path)
    assert operators(path) & {"LSTM", "GRU", "RNN", "Scan"} == {"Scan"}


@pytest.mark.parametrize("name", STEPS)
def test_one_step(name, tmp_path):
    layer, path = layer_of(name), tmp_path / "step.onnx"
    ll.export.to_onnx(layer, path, step=True)
    reference: Any = ll.export.portable(layer)
    assert "Scan" not in operators(path)
    x, state = (
        randn(6, 2, 3, dtype=FLOAT),
        tuple(part.to(FLOAT) for part in some_state(ll.export.portable(layer_of(name)).double(), 2)),
    )
    for x_t in x:
        ours = run(path, x_t, *state)
        y, new = reference.step(x_t, layer.state_spec.whole(state))
        close(ours, (y, *parts(new)))
        state = parts(new)


@pytest.mark.parametrize("batch_first", [True, False])
def test_decoding_of_a_crf(batch_first, tmp_path):
    constraints = ll.CRF.constraints_from(["O", "B-X", "I-X"], "BIO")
    crf, path = ll.CRF(3, constraints=constraints, batch_first=batch_first), tmp_path / "crf.onnx"
    nn.init.normal_(crf.transitions)
    ll.export.to_onnx(crf, path)
    emissions, mask = randn(7, 5, 3, dtype=FLOAT), randn(7, 5, seed=3) > -0.5
    mask[:, 2] = False
    crf.engine = "reference"
    paths, scores = crf.viterbi(emissions, mask)
    ours = run(path, emissions, mask)
    np.testing.assert_array_equal(ours[0], paths.numpy())
    np.testing.assert_allclose(ours[1], scores.numpy(), rtol=1e-5)


def test_a_larger_model_through_torch(tmp_path):
    """What contains our layers, exported by torch.onnx itself, whatever engine they use."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList(
                [ll.LSTM(3, 4, bidirectional=True, batch_first=True), ll.Leaky(8, 5, batch_first=True)]
            )
            self.head = nn.Linear(5, 2)

        def forward(self, x, lengths):
            for layer in self.inner:
                x, _ = layer(x, lengths=lengths)
            return self.head(x)

    model, free = Model().eval(), torch.export.Dim.DYNAMIC
    given = randn(2, 5, 3, dtype=FLOAT), torch.tensor([5, 3])
    program = torch.onnx.export(model, given, dynamic_shapes=({0: free, 1: free}, {0: free}), verbose=False)
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    assert {"LSTM", "Scan"} <= operators(tmp_path / "model.onnx")
    x, lengths = randn(4, 8, 3, dtype=FLOAT), torch.tensor([8, 1, 3, 7])
    close(run(tmp_path / "model.onnx", x, lengths), [ll.export.portable(model)(x, lengths)])


def test_a_program_of_torch_runs_where_longlag_is_not_installed(tmp_path):
    layer = layer_of("user_everything")
    assert ll.export.to_torch(layer, tmp_path / "net.pt2") <= 1e-5
    x, lengths, state = randn(9, 4, 3, dtype=FLOAT), torch.tensor([9, 1, 4, 8]), layer.initial_state(4)
    wanted = ll.export.portable(layer)(x, state, lengths=lengths)
    torch.save([x, lengths, *parts(state)], tmp_path / "given.pt")
    code = """
import sys
sys.modules["longlag"] = None
import torch
y, *new = torch.export.load("net.pt2").module()(*torch.load("given.pt"))
torch.save([y, *new], "found.pt")
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    close([v.detach().numpy() for v in torch.load(tmp_path / "found.pt")], (wanted[0], *parts(wanted[1])))


# --------------------------------------------------------------------------------------------------- refusals
def test_a_file_is_not_overwritten(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(ll.export.ExportError, match=r"net\.onnx exists already; --force"):
        ll.export.to_onnx(layer_of("elman"), path)
    assert path.read_bytes() == b"mine"
    ll.export.to_onnx(layer_of("elman"), path, force=True)
    assert operators(path) >= {"RNN"}


@pytest.mark.parametrize(
    ("model", "step", "complaint"),
    [
        (nn.LSTM(3, 4), False, "must be a layer of longlag, a learn.Online or a CRF, got LSTM; .* torch.onnx.export"),
        (ll.Jordan(3, 4, 2, feedback="sample"), False, "Jordan must not draw random numbers; use feedback="),
        (ll.LSTM(3, 4, bidirectional=True), True, "LSTM is bidirectional, and no step can read the future"),
        (
            ll.LSTM(3, 4, dtype=torch.float16, engine="reference"),
            False,
            r"LSTM must be float32 or float64, got .*float\(\)",
        ),
    ],
)
def test_what_cannot_be_exported_is_named(model, step, complaint, tmp_path):
    with pytest.raises(ll.export.ExportError, match=complaint):
        ll.export.to_onnx(model, tmp_path / "net.onnx", step=step)
    assert list(tmp_path.iterdir()) == []


def decides(x, state, p):
    state = state + x @ p["W"]
    return (state, state) if (state > 0).all() else (-state, -state)


def transforms(x, state, p):
    state = torch.fft.fft(state).real + x @ p["W"]
    return state, state


@pytest.mark.parametrize(
    ("write", "step", "complaint"),
    [
        (ll.export.to_onnx, decides, r"StepFunction cannot become an ONNX model; .* torch.where instead of if \(Could"),
        (ll.export.to_onnx, transforms, r"StepFunction cannot become an ONNX model; .*DFT"),
        (ll.export.to_torch, decides, r"StepFunction cannot become a program of torch; .* \(Could not guard on"),
    ],
)
def test_a_step_that_cannot_be_translated_is_named(write, step, complaint, tmp_path):
    layer = ll.Recurrent.from_step(step, 3, {"h": 4}, {"W": torch.randn(3, 4)})
    with pytest.raises(ll.export.ExportError, match=complaint):
        write(layer, tmp_path / "net.model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_computes_otherwise_is_not_written(tmp_path, monkeypatch):
    """If the reference engine says otherwise, there is no file."""
    layer = layer_of("elman")
    monkeypatch.setattr("longlag.export._onnx.compare_runtime", lambda *_: 2e-5)
    with pytest.raises(ll.export.ExportError, match=r"differs from the reference engine by 2\.0e-05, more than 1e-05"):
        ll.export.to_onnx(layer, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ll.export.ExportError, match=r'ONNX needs onnxscript: pip install "longlag\[onnx\]"'):
        ll.export.to_onnx(layer_of("elman"), tmp_path / "net.onnx")


def test_engine_cpu_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("longlag.engines._exporting.to_onnx", lambda: True)
    with pytest.raises(ValueError, match="engine 'cpu' cannot serve this call: ONNX has no operator of longlag's"):
        ll.LSTM(3, 4, engine="cpu").engine_for(torch.zeros(5, 2, 3))
