"""The GPU engine: correctness against the float64 reference, then times beside the peers and the limit of the chip.

    python benchmarks/gpu.py [--check] [--rows] [--table FILE] [--jobs N]

``--check``: correctness only; ``--rows``: append to benchmarks/results.csv; ``--table``: the Markdown table of all
times, to a file. Times are medians of CUDA events, forward and backward, in ms. "limit" is the larger of bytes over the
copy bandwidth and operations over the rate of matrix products, both measured here.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import longlag as ll
from longlag import cells, engines
from longlag.cells import sigmoid, tanh
from longlag.engines import Norm, Weights, reference
from longlag.engines.gpu import run as gpu
from longlag.engines.gpu.equations import equations
from longlag.engines.gpu.obstacles import obstacle
from longlag.engines.gpu.plan import plan

SIZES = [(100, 32, 64, 128), (1000, 8, 32, 64), (1024, 16, 256, 256), (200, 32, 256, 512)]
SCAN = (4096, 8, 1536)  # T, B, units: the size of accelerated-scan's figures
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
rows: list[tuple[str, float, float | None, float | None]] = []  # name, ms, the peer's ms, the limit


@ll.cell(gates="a z")
def user_cell(a, z, y):
    """A user's cell: one gate of its own."""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


@ll.cell(gates="a z", dense=False)
def user_local(a, z, y):
    """The same without U: linear in y, so it runs as a scan."""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


def milliseconds(run: Callable[[], Any], repeats: int = 10) -> float:
    """The median over CUDA events, after three warm-up runs (the second captures graphs)."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def in_turns(*runs: Callable[[], Any]) -> list[float]:
    """Medians of runs that alternate."""
    times = [[milliseconds(run, 1) for run in runs] for _ in range(20)]
    return [statistics.median(column) for column in zip(*times)]


# --------------------------------------------------------------------------------------------------- correctness


def draw(cell: cells.Cell, T: int, B: int, inputs: int, H: int, norm: bool, seed: int) -> list[Any]:
    """A problem in float64 on the GPU: x, W, b, U, state, params, γ and β, numbers of the steps."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def uniform(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.rand(shape, generator=generator, device="cuda", dtype=torch.float64) * 2 - 1) * scale

    gx, gy, G = len(cell.input_gates), len(cell.recurrent_gates), len(cell.gates)
    return [
        uniform(T, B, inputs), uniform(gx * H, inputs, scale=inputs**-0.5),
        (uniform(gx * H, scale=0.5), uniform(gy * H, scale=0.5)) if cell.dense else uniform(gx * H, scale=0.5),
        uniform(gy * H, H, scale=H**-0.5) if cell.dense else None,
        [uniform(B, H) for _ in cell.fed_back], [0.9 + uniform(H, scale=0.1) for _ in cell.params],
        (uniform(G, H), uniform(G, H)) if norm else None,
        [0.8 + uniform(T, B, H, scale=0.5) for _ in cell.per_step],
    ]  # fmt: skip


def results(
    engine: str, cell: cells.Cell, heads: int, problem: list[Any], dtype: torch.dtype, how: dict[str, Any]
) -> list[Tensor]:
    """Outputs, final states and gradients of everything."""
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple | list):
            return type(value)(leaf(each) for each in value)
        leaves.append(value.to(dtype).requires_grad_())
        return leaves[-1]

    x, W, b, U, state, params, norm, numbers = leaf(problem)
    if heads > 1:
        one = torch.eye(heads, device="cuda", dtype=dtype).repeat_interleave(U.shape[1] // heads, 0)
        U = U * one.repeat_interleave(U.shape[1] // heads, 1).repeat(len(cell.recurrent_gates), 1)
    w = Weights(W, b, U, None, tuple(params), Norm(norm[0], norm[1], 1e-5) if norm else None, heads=heads)
    how = {**how, "mask": None if how["mask"] is None else how["mask"].to(dtype), "numbers": numbers}
    y, ends = engines.run(engine, cell, x, w, state, **how)
    generator = torch.Generator("cuda").manual_seed(7)
    seen = [y, *ends]
    draws = [torch.randn(v.shape, generator=generator, device="cuda", dtype=torch.float64) for v in seen]
    loss = torch.stack([(v * d.to(v)).sum() for v, d in zip(seen, draws)]).sum()
    return [*seen, *torch.autograd.grad(loss, leaves)]


def largest(*values: float) -> float:
    """NaN if one of the values is NaN, which Python's max would overlook."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def worst(ours: list[Tensor], exact: list[Tensor]) -> float:
    """The largest error, relative to the largest entry of each tensor."""
    return largest(
        *(float(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).detach()) for a, b in zip(ours, exact))
    )


CASES = [
    (cells.lstm, 37), (cells.lstm, 64), (cells.lstm, 130), (cells.gru, 100), (cells.elman, 128), (cells.leaky, 45),
    (user_cell, 300), (cells.net_feedback, 70), (cells.activation_feedback, 70), (user_local, 33),
    (cells.gru_original, 40), (cells.gru_original, 150), (cells.lem, 24), (cells.gru_d, 140), (cells.min_lstm, 50),
    (cells.lru, 20), (cells.lstm, 96, 3), (cells.gru, 600, 2),
]  # fmt: skip
CHECKS = list(itertools.product(range(len(CASES)), TOLERANCE, (False, True)))


def check(jobs: int) -> int:
    """Every kind of loop and every option, in so many processes; returns the number of failures."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        failed = sum(pool.map(check_cell, range(len(CHECKS))))
    failed += check_layers()
    print(f"{failed} failed", flush=True)
    return failed


def check_cell(number: int) -> int:
    """One of CHECKS with and without mask, lengths and resets, in both directions; returns the number of failures."""
    try:
        return _check_cell(number)
    except Exception:
        print(f"FAILED {CHECKS[number]}\n{traceback.format_exc(limit=-3)}", flush=True)
        return 1


def _check_cell(number: int) -> int:
    which, dtype, norm = CHECKS[number]
    (cell, H, *rest), (T, B) = CASES[which], (19, 21)
    heads = rest[0] if rest else 1
    kind, found, failed = plan(cell, H, dtype.itemsize, norm and cell.dense, heads).kind, 0.0, 0
    for k, (given, reverse) in enumerate(itertools.product((False, True), repeat=2)):
        seed = 1 + 4 * number + k
        problem = draw(cell, T, B, 13, H, norm, seed)
        generator = torch.Generator("cuda").manual_seed(seed)
        how: dict[str, Any] = {"mask": None, "lengths": None, "reset": None, "reverse": reverse}
        if given:
            how["mask"] = (torch.rand(B, H, generator=generator, device="cuda") < 0.7).double()
            how["lengths"] = torch.randint(1, T + 1, (B,), generator=generator, device="cuda")
            how["reset"] = torch.rand(T, B, generator=generator, device="cuda") < 0.2
        narrow = [_rounded(part, dtype) for part in problem]
        exact = results("reference", cell, heads, narrow, torch.float64, how)
        for _ in range(3):  # directly, at the capture of a graph, by its replay
            ours = results("gpu", cell, heads, narrow, dtype, how)
            again = results("gpu", cell, heads, narrow, dtype, how)
            found = largest(found, worst(ours, exact))
            if not all(torch.equal(a, b) for a, b in zip(ours, again)):
                print(f"NOT DETERMINISTIC {cell.name} {kind}")
                failed += 1
    fine = found <= TOLERANCE[dtype]
    state = "ok    " if fine else "FAILED"
    print(
        f"{state} {cell.name:20} {kind:9} H={H:<4} heads={heads} {str(dtype)[6:]:9} norm={norm!s:5} error {found:.1e}",
        flush=True,
    )
    return failed + (not fine)


def check_layers() -> int:
    """Layers beside torch.nn, and under torch.compile; returns the number of failures."""
    failed = 0
    for kind, theirs in ((ll.LSTM, nn.LSTM), (ll.GRU, nn.GRU), (ll.Elman, nn.RNN)):
        ours, peer = kind(13, 37, device="cuda"), theirs(13, 37, device="cuda")
        ours.load_state_dict(peer.state_dict())
        x = torch.randn(19, 5, 13, device="cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # cuDNN warns when weights are not in one block
            error = worst([ours(x)[0]], [peer(x)[0]])
            lengths = torch.tensor([19, 3, 7, 1, 12], device="cuda")
            reference = kind(13, 37, device="cuda", engine="reference")
            reference.load_state_dict(peer.state_dict())
            error = largest(error, worst([ours(x, lengths=lengths)[0]], [reference(x, lengths=lengths)[0]]))
        print(f"{kind.__name__}: {ours.engine_for(x)}; difference from torch.nn and the reference {error:.1e}")
        failed += not error <= 2e-3  # cuDNN computes in tf32
    layer = ll.Recurrent(user_cell, 5, 20, device="cuda")
    x = torch.randn(7, 3, 5, device="cuda")
    y = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0]
    error = worst([y], [layer(x)[0]])
    print(f"torch.compile, one graph: {error:.1e}; {layer.engine_for(x)}")
    return failed + (not error <= 1e-5)


def _rounded(part: Any, dtype: torch.dtype) -> Any:
    if isinstance(part, tuple | list):
        return type(part)(_rounded(each, dtype) for each in part)
    return None if part is None else part.to(dtype).double()


# --------------------------------------------------------------------------------------------------------- times


def training(layer: Any, x: Tensor, **how: Any) -> Callable[[], None]:
    """Forward and backward from a given gradient of the outputs."""
    d = torch.randn(*x.shape[:2], layer.hidden_size, device=x.device, dtype=x.dtype)
    wanted = list(layer.parameters())

    def run() -> None:
        torch.autograd.grad(layer(x, **how)[0], wanted, d)

    return run


def chip() -> tuple[float, dict[torch.dtype, float]]:
    """Copy bandwidth in bytes per ms (read and written) and rates of matrix products in operations per ms."""
    big = torch.randn(2**28, device="cuda")
    other, rates = torch.empty_like(big), {}
    bandwidth = 2 * big.nbytes / milliseconds(partial(other.copy_, big))
    del big, other
    for dtype in TOLERANCE:
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        rates[dtype] = 2 * 8192**3 / milliseconds(lambda a=a: a @ a, 5)
    return bandwidth, rates


def kernel_bytes(cell: cells.Cell, H: int, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes that the kernels of a cell move per unit and step: forward for inference, forward and backward.

    Forward reads the net inputs and writes y; for a backward pass also the float32 states (those of a scan only at the
    beginning of a chunk) and, with a matrix U, the net inputs with U y in float32, and what U read. Backward reads all
    that and d y, and writes the gradients of the net inputs.
    """
    (kind, BM, *_), e, size = plan(cell, H, dtype.itemsize, False), equations(cell), dtype.itemsize
    gx, gy, G = len(cell.input_gates), len(cell.recurrent_gates), len(cell.gates)
    once = (gx + 1) * size
    if kind == "scan":
        states = 4 * len(cell.fed_back) / BM
        return once, once + states + (2 * G + 1) * size + states
    saved = 4 * G if cell.dense else G * size
    kept = 4 * len(cell.states) + (saved + len(cell.sources) * size if cell.dense else 0)
    read = 4 * len(cell.states) + saved + (1 + ("y" in e.values)) * size
    return once, once + kept + read + (gx + (0 if e.shared or not cell.dense else gy)) * size


def limit(cell: cells.Cell, size: tuple[int, int, int, int], dtype: torch.dtype, machine: Any) -> float:
    """The cost model of a layer with a matrix U, forward and backward in ms: the larger of two times.

    Bytes: those of the kernels and of the products over all steps for W, x and U, each array once, over the measured
    bandwidth. Operations: all products at the measured rate.
    """
    (T, B, inputs, H), (bandwidth, rates) = size, machine
    gx, gy = len(cell.input_gates), len(cell.recurrent_gates)
    products = (3 * gx + gy + len(cell.sources)) * dtype.itemsize  # net, twice d net; d (U y), what U read
    moved = T * B * (H * (kernel_bytes(cell, H, dtype)[1] + products) + 3 * inputs * dtype.itemsize)
    work = 2 * T * B * H * (3 * gx * inputs + 3 * gy * H)
    return max(moved / bandwidth, work / rates[dtype])


def note(name: str, ms: float, *, over: float | None = None, bound: float | None = None) -> None:
    """Print a time; ``over``: the peer's time."""
    ratio = (
        "" if over is None else f"   1/{over / ms:.1f} of the peer" if over > ms else f"   {ms / over:.2f} of the peer"
    )
    least = "" if bound is None else f"   limit {bound:.3f} ({ms / bound:.0f} times)"
    print(f"{name:58} {ms:9.3f} ms{ratio}{least}", flush=True)
    rows.append((name, ms, over, bound))


def loop_graph(layer: Any, x: Tensor) -> Callable[[], None]:
    """The reference loop, forward and backward, as one CUDA graph."""
    wanted, d = list(layer.parameters()), torch.randn(*x.shape[:2], layer.hidden_size, device=x.device, dtype=x.dtype)
    work, graph = training(layer, x), torch.cuda.CUDAGraph()
    work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.autograd.grad(layer(x)[0], wanted, d)
    return graph.replay


def compiled_step(layer: Any, x: Tensor) -> Callable[[], None]:
    """A loop over a step compiled by torch.compile."""
    cell, wanted = layer.cell, list(layer.parameters())
    d = torch.randn(*x.shape[:2], layer.hidden_size, device=x.device, dtype=x.dtype)
    w = layer.weights(0)
    step = torch.compile(lambda net, y: reference.step(cell, net, w.U, (y,), ())[0])

    def run() -> None:
        own = layer.weights(0)
        nets = reference.net_inputs(cell, x, own.W, own.b)
        y, outputs = x.new_zeros(x.shape[1], layer.hidden_size), []
        for net in nets.unbind(0):
            y = step(net, y)
            outputs.append(y)
        torch.autograd.grad(torch.stack(outputs), wanted, d, allow_unused=True)

    return run


def dense(machine: Any) -> None:
    """The four sizes."""
    for size in SIZES:
        T, B, inputs, H = size
        x = torch.randn(T, B, inputs, device="cuda")
        where = f"T={T} B={B} I={inputs} H={H}"
        for kind, theirs in ((ll.LSTM, nn.LSTM), (ll.GRU, nn.GRU)):
            peer, ours = theirs(inputs, H, device="cuda"), kind(inputs, H, device="cuda")
            mine, base = in_turns(training(ours, x), training(peer, x))
            note(f"{kind.__name__} auto / nn.{theirs.__name__} ({base:.3f} ms), {where}", mine, over=base)
            ours.engine = "gpu"
            bound = limit(ours.cell, size, torch.float32, machine)
            note(
                f"{kind.__name__} gpu / nn.{theirs.__name__}, {where}",
                milliseconds(training(ours, x)),
                over=base,
                bound=bound,
            )
        layer = ll.Recurrent(user_cell, inputs, H, device="cuda", engine="reference")
        loop = milliseconds(training(layer, x), 3)
        note(f"user's cell, python loop, {where}", loop)
        if T <= 200:
            for name, make in (("CUDA graph of the loop", loop_graph), ("compiled step", compiled_step)):
                try:
                    note(f"user's cell, {name}, {where}", milliseconds(make(layer, x), 5), over=loop)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        for dtype in TOLERANCE:
            layer = ll.Recurrent(user_cell, inputs, H, device="cuda", dtype=dtype, engine="gpu")
            kind, bound = plan(user_cell, H, dtype.itemsize, False).kind, limit(user_cell, size, dtype, machine)
            name = f"user's cell, gpu ({kind}), {str(dtype)[6:]}, {where}"
            note(name, milliseconds(training(layer, x.to(dtype))), over=loop, bound=bound)
        layer = ll.LSTM(inputs, H, norm="layer", device="cuda")
        loop_layer = ll.LSTM(inputs, H, norm="layer", device="cuda", engine="reference")
        loop = milliseconds(training(loop_layer, x), 2)
        note(f"LSTM with norm / its loop, {where}", milliseconds(training(layer, x)), over=loop)
        reset = torch.rand(T, B, device="cuda") < 0.05
        note(f"LSTM with resets, {where}", milliseconds(training(ll.LSTM(inputs, H, device="cuda"), x, reset=reset)))


def scans(machine: Any) -> None:
    """Local cells at the size of accelerated-scan's figures, the recurrence alone."""
    T, B, H = SCAN
    for cell, dtype in itertools.product((cells.net_feedback, user_local, cells.activation_feedback), TOLERANCE):
        net = torch.randn(T, B, len(cell.gates) * H, device="cuda", dtype=dtype, requires_grad=True)
        given = [net, *(torch.zeros(B, H, device="cuda", dtype=dtype) for _ in cell.fed_back)]
        given += [torch.full((H,), 0.9, device="cuda", dtype=dtype) for _ in cell.params]
        d = torch.randn(T, B, H, device="cuda", dtype=dtype)
        names = gpu.names(cell, False, False)
        words = f"{cell.name} {cell.key}", names, given, False, 0.0, 1, None, None, None

        def forward(save: bool = False, words: Any = words) -> Tensor:
            return torch.ops.longlag.recurrent_gpu(*words, save)[0]

        def both(net: Tensor = net, d: Tensor = d, forward: Callable[..., Tensor] = forward) -> None:
            torch.autograd.grad(forward(True), net, d)

        with torch.no_grad():
            once = milliseconds(forward)
        twice = milliseconds(both)
        name = f"{cell.name} ({plan(cell, H, dtype.itemsize, False).kind}), {str(dtype)[6:]}, T={T} B={B} D={H}"
        for what, time, moved in zip(("forward", "forward + backward"), (once, twice), kernel_bytes(cell, H, dtype)):
            note(f"{name}, {what}", time, bound=T * B * H * moved / machine[0])


def table() -> str:
    """All times as a table in Markdown."""
    lines = ["| work | ms | over the peer | over the limit |", "|---|---|---|---|"]
    for name, ms, over, bound in rows:
        parts = ["" if other is None else f"{ms / other:.3g}" for other in (over, bound)]
        lines.append(f"| {name} | {ms:.3f} | {' | '.join(parts)} |")
    return "\n".join(lines) + "\n"


def refusal() -> str | None:
    """Why nothing can be measured here; None if it can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return obstacle(cells.lstm, torch.zeros(1, 1, 1, device="cuda"), 1, False, ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="correctness only")
    parser.add_argument("--rows", action="store_true", help="append to benchmarks/results.csv")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table in Markdown")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes that compile")
    asked = parser.parse_args()
    if asked.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {asked.jobs}")
    if why := refusal():
        sys.exit(f"benchmarks/gpu.py: {why}")
    import triton

    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, Triton {triton.__version__}, cuDNN {torch.backends.cudnn.version()}")
    failed = check(asked.jobs)
    if asked.check or failed:
        sys.exit(failed)
    machine = chip()
    rates = ", ".join(f"{str(dtype)[6:]} {rate / 1e9:.0f} TFLOP/s" for dtype, rate in machine[1].items())
    print(f"copy {machine[0] / 1e9:.2f} TB/s; products {rates}")
    scans(machine)
    dense(machine)
    if asked.table:
        asked.table.write_text(f"{name}, torch {torch.__version__}, Triton {triton.__version__}\n\n{table()}")
    if asked.rows:
        sys.path.insert(0, str(Path(__file__).parent))
        import _rows

        for row, ms, over, _ in rows:
            _rows.append(f"gpu: {row}", ms, "ms", baseline=over, on=name)


if __name__ == "__main__":
    main()
