"""``longlag export``."""

from typing import Any

import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import longlag as ll
from longlag.cli import app

MINE = """
import torch, longlag as ll
net = ll.Leaky(3, 4)
def make():
    torch.manual_seed(5)
    return ll.Elman(3, 4)
def learner():
    layer, readout = ll.LSTM97(3, 2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*layer.parameters(), *readout.parameters()], lr=0.1)
    return ll.learn.Online(layer, readout, ll.learn.squared_error, ll.learn.TruncatedRTRL(), optimizer)
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_of_export.py").write_text(MINE)
    yield
    import sys

    sys.modules.pop("mine_of_export", None)


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_onnx_with_weights_from_a_file(tmp_path):
    other = ll.Elman(3, 4)
    save_file(other.state_dict(), tmp_path / "weights.safetensors")
    done = export("mine_of_export:make", "net.onnx", "--weights", "weights.safetensors", "--step")
    assert done.exit_code == 0, done.output
    assert "largest difference from the reference engine" in done.output
    x, h = torch.randn(2, 3), torch.randn(1, 2, 4)
    found = onnxruntime.InferenceSession("net.onnx").run(None, {"x": x.numpy(), "y_in": h.numpy()})
    reference: Any = ll.export.portable(other)
    assert torch.allclose(torch.as_tensor(found[0]), reference.step(x, h)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mine_of_export:net", "net.txt"], "net.txt must end in .onnx, .c, .pt2"),
        (["mine_of_export:net", "net.onnx", "--learn"], "--learn is for C, got net.onnx"),
        (["mine_of_export:net", "net.c", "--step"], "--step is for ONNX and pt2, got net.c"),
        (["mine_of_export:net", "net.c", "--learn"], "--learn needs a learn.Online, got Leaky"),
        (
            ["mine_of_export.py", "net.onnx"],
            "MODEL must be module:object, or a file written by Online.save, got mine_of_export.py",
        ),
        (["no_such:net", "net.onnx"], "MODEL no_such:net cannot be imported: No module named 'no_such'"),
        (["mine_of_export:nothing", "net.onnx"], "MODEL mine_of_export:nothing does not exist: no nothing in mine"),
        (["torch:zeros", "net.onnx"], "zeros() missing"),
        (["longlag:__version__", "net.onnx"], "model must be a layer of longlag, a learn.Online or a CRF, got str"),
        (["weights.bin", "net.onnx"], "weights.bin is truncated or not a safetensors file"),
        (["mine_of_export:net", "no/net.onnx"], "no must be a folder"),
        (["mine_of_export:net", "net.pt2", "--weights", "mine_of_export.py"], "must be a safetensors file"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"nothing")
    done = export(*arguments)
    assert done.exit_code == 2, done.output
    assert complaint in done.stderr
    assert done.stderr.startswith("longlag: ")


def test_an_existing_file_needs_force(tmp_path):
    (tmp_path / "net.pt2").write_text("mine")
    assert "exists already; --force" in export("mine_of_export:net", "net.pt2").stderr
    assert (tmp_path / "net.pt2").read_text() == "mine"
    assert export("mine_of_export:net", "net.pt2", "--force").exit_code == 0
    assert torch.export.load("net.pt2") is not None


def test_c_that_learns_on_from_a_saved_learner(tmp_path):
    scope: dict = {}
    exec(MINE, scope)
    learner = scope["learner"]()
    learner.plan("python")
    learner.step(torch.ones(1, 3), torch.ones(1, 1))
    learner.save(tmp_path / "learner.safetensors")
    done = export("learner.safetensors", "net.c", "--learn")
    assert done.exit_code == 0, done.output
    again = export("mine_of_export:learner", "again.c", "--weights", "learner.safetensors", "--learn")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.c").read_text().replace("again", "net") == (tmp_path / "net.c").read_text()
    text = (tmp_path / "net.c").read_text()
    assert "int net_learn(net *s, const float *x, const float *target, float *y)" in text
    assert f"{float(learner.readout.weight.detach().flatten()[0]):.6f}"[:7].strip("-") in text
