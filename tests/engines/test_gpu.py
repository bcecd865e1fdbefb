"""The GPU engine without a GPU: its contract under Triton's interpreter, its refusals, its builds ahead of time."""

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import longlag as ll
from longlag import cells
from longlag.engines.gpu import build, equations, graphs, obstacles, run
from longlag.engines.gpu.lines import names as pointers

HERE = Path(__file__).parent


@pytest.mark.parametrize("part", ["every_cell", "not every_cell"])
def test_contract_under_the_interpreter(part):
    """In a process of its own: Triton reads the variable when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "interpreted_gpu.py")]
    done = subprocess.run(
        [*command, "-k", part], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


# ------------------------------------------------------------------------------------------------------ refusals


def refused(layer, x, why):
    with pytest.raises(ValueError, match=rf"^engine 'gpu' cannot serve this call: {why}; engine='reference' can$"):
        layer(x)


def test_no_cuda():
    refused(ll.LSTM(3, 4, engine="gpu"), torch.zeros(5, 2, 3), "the input is on cpu, not on a CUDA device")


def test_no_triton(monkeypatch):
    monkeypatch.setattr(obstacles, "THERE", False)
    refused(ll.LSTM(3, 4, engine="gpu"), torch.zeros(5, 2, 3), "Triton is not installed")


@pytest.fixture
def pretended(monkeypatch):
    """As on a machine with a GPU, up to the launch of a kernel."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.usefixtures("pretended")
def test_what_the_kernels_do_not_serve(monkeypatch):
    x = torch.zeros(5, 2, 3)
    refused(ll.LSTM(3, 4, engine="gpu", dtype=torch.float64), x.double(), r"the input is torch\.float64, not one of .*")
    refused(ll.LSTM(3, 4, engine="gpu"), x[:, :0], "its kernels need at least one sequence")
    monkeypatch.setattr(obstacles, "WIDEST", 3)
    refused(ll.LSTM(3, 4, engine="gpu", norm="layer"), x, "one program normalises at most 3 units, got 4")
    layer = ll.LSTM(3, 4, engine="gpu")
    with pytest.raises(ValueError, match=r"torch\.func transforms"):
        torch.func.vmap(lambda x: layer(x)[0])(x.expand(2, 5, 2, 3))


@pytest.mark.usefixtures("pretended")
def test_a_function_that_the_printer_does_not_know(monkeypatch):
    mine = ll.cell(gates="a")(lambda a: cells.tanh(a) * 0.3125)
    known = {name: text for name, text in equations.FUNCTIONS.items() if name != "tanh"}
    monkeypatch.setattr(obstacles, "TRITON", equations.Printer("engine 'gpu'", known, hint="; …"))
    refused(ll.Recurrent(mine, 3, 4, engine="gpu"), torch.zeros(5, 2, 3), r"cannot print tanh\(…\) of cell <lambda>")


def test_an_old_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert (
        obstacles._too_old(torch.device("cuda", 99)) == "the GPU has compute capability 7.5, and the kernels need 8.0"
    )


@pytest.mark.parametrize(("known", "bytes_of_a_program"), [
    ({"shared_memory_per_block": 49152, "shared_memory_per_block_optin": 101376}, (101376,)),
    ({"shared_memory_per_block": 65536}, (65536,)),
    ({}, ()),
])  # fmt: skip
def test_the_shared_memory_of_a_device(monkeypatch, known, bytes_of_a_program):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**known))
    assert run.shared_memory.__wrapped__(torch.device("cuda", 0)) == bytes_of_a_program


def test_automatic_choice_says_why_on_another_device(monkeypatch):
    layer, x = ll.Leaky(3, 4, device="meta"), torch.zeros(5, 2, 3, device="meta")
    torchs = "engine 'torch': torch has no kernel for the cell leaky"
    assert layer.engine_for(x) == f"reference: {torchs}; engine 'gpu': the input is on meta, not on a CUDA device"
    monkeypatch.setattr(obstacles, "obstacle", lambda *_: None)  # as if this device were a GPU
    assert layer.engine_for(x) == f"gpu: Triton kernels printed from the cell's equations; {torchs}"


def test_nothing_imports_triton_on_a_cpu():
    code = (
        "import sys, torch, longlag as ll; layer = ll.LSTM(2, 3, engine='reference'); layer(torch.zeros(2, 1, 2)); "
        "layer.engine_for(torch.zeros(2, 1, 2)); assert not any('triton' in name for name in sys.modules if "
        "name.startswith(('triton', 'longlag')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_printed_kernels():
    text = cells.net_feedback.source("gpu")
    assert "tl.associative_scan" in text
    assert "n_new = a + n*u" in text or "n_new = a + u*n" in text or "n_new = u*n + a" in text
    with pytest.raises(ValueError, match=r"^engine 'gpu': the state of cell lstm does not move linearly$"):
        build.source(cells.lstm, "scan", False)


def test_a_graph_captured_in_inference_mode_serves_calls_outside_of_it(monkeypatch):
    for name in ("CUDAGraph", "graph", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    with torch.inference_mode():
        made = graphs._captured(lambda tensors: [tensors[0] + 1], [torch.ones(2)])
    made.inputs[0].copy_(torch.zeros(2))  # torch refuses this for a tensor that was made in inference mode
    assert torch.equal(made.results[0], torch.full((2,), 2.0))


# ---------------------------------------------------------------------------------------------- cost and benchmark


@pytest.mark.parametrize(
    "name", ["net_feedback", "min_gru", "min_lstm", "activation_feedback", "ind_rnn", "lstm", "gru", "mgu"]
)
def test_kernels_read_and_write_what_the_cost_model_counts(monkeypatch, name):
    """Every large array once in a pass; what a launch is given is recorded instead of launched."""
    cell, (T, B, H), passes = getattr(cells, name), (960, 2, 32), []

    def launch(self, which, own, *_):
        given, (_, texts) = {**self.tensors, **own}, self.kernels.source.split("def forward(")
        text = texts.split("def backward(")[which == "backward"]
        used = [one for one in pointers(self.plan.kind, self.equations, False, which) if f"({one} + " in text]
        arrays = [given[pointer] for pointer in used if pointer not in ("lengths", "reset", "mask")]
        passes.append({value.data_ptr(): value.nbytes for value in arrays if value.numel() > 5000})

    monkeypatch.setattr(run.Run, "launch", launch)
    given = {"net": torch.zeros(T, B, len(cell.input_gates) * H)}
    given |= {"U": torch.zeros(len(cell.recurrent_gates) * H, H)} if cell.dense else {}
    given |= {"bias": torch.zeros(1, H)} if name == "gru" else {}
    given |= {f"first_{v}": torch.zeros(B, H) for v in cell.fed_back}
    given |= {f"param_{p}": torch.ones(H) for p in cell.params}
    call, n = run.Call(cell, given, False, 0.0, 1, None, None, None), len(cell.fed_back)
    out, *rest = run.forward(call, True)
    run.backward(call, out, rest[n:], [torch.zeros_like(out), *(torch.zeros_like(end) for end in rest[:n])])
    _, both = script("benchmarks/gpu.py").kernel_bytes(cell, H, torch.float32)
    assert sum(sum(one.values()) for one in passes) == pytest.approx(T * B * H * both, rel=0.02)


def test_the_benchmark_says_why_it_cannot_run(monkeypatch):
    benchmark = script("benchmarks/gpu.py")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--jobs", "1"])
    with pytest.raises(SystemExit, match=r"^benchmarks/gpu\.py: torch sees no CUDA device$"):
        benchmark.main()
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--jobs", "0"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()


# -------------------------------------------------------------------------------------------------------- builds


def script(path):
    """A program of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, HERE.parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# one of each family; the whole table is in docs/engines.md
CHOSEN = [(0, "sm_90"), (2, "sm_90"), (6, "sm_90"), (10, "sm_90"), (13, "sm_90"), (0, "sm_80"), (2, "sm_80")]
CHOSEN += [(8, "sm_80"), (10, "sm_80"), (10, "sm_100"), (1, "sm_100"), (2, "gfx942")]


@pytest.mark.parametrize(("case", "target"), CHOSEN)
def test_kernels_build_without_spills_and_fit(case, target):
    builds = script("tools/gpu_builds.py")
    for which in ("forward", "backward"):
        built = builds.build(builds.CASES[case], which, target)
        assert built.spills == 0
        assert built.shared <= builds.SHARED[target] * 1024
        assert 0 < built.registers <= 512
