"""Exports: differences from the reference engine, and microseconds per step beside ours. ``--learn``: 10,000 steps.

python benchmarks/export.py            every layer of the registry as ONNX and C; then as --speed
python benchmarks/export.py --speed    one step of one stream at sizes 16, 64, 256, appended to results.csv
python benchmarks/export.py --learn    the learners of tests/c_learners.py beside `Online`, 10,000 steps
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _rows import append

import longlag as ll
from longlag.export import _c

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
SIZES = (16, 64, 256)


def microseconds(work: Callable[[], object], seconds: float = 0.5) -> float:
    """The least of several means."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start, n = time.perf_counter(), 20
        for _ in range(n):
            work()
        best = min(best, (time.perf_counter() - start) / n)
    return best * 1e6


def microseconds_in_c(text: str, size: int, folder: str) -> float:
    """The time of `net_step` in a C program, compiled with -O2."""
    main = f"""
#include <stdio.h>
#include <time.h>
int main(void)
{{
    static net n;
    static float x[{size}], y[{size}];
    double best = 1e9;
    net_reset(&n);
    for (int r = 0; r < 20; ++r) {{
        clock_t start = clock();
        for (int k = 0; k < 500; ++k) {{ x[k % {size}] += 0.01f; if (net_step(&n, x, y)) return 1; }}
        double t = (double)(clock() - start) / CLOCKS_PER_SEC / 500 * 1e6;
        if (t < best) best = t;
    }}
    printf("%g\\n", best);
    return 0;
}}
"""
    file = Path(folder, "time.c")
    file.write_text(text + main, encoding="utf-8")
    subprocess.run(["cc", "-std=c99", "-O2", str(file), "-o", f"{folder}/time", "-lm"], check=True)
    return float(subprocess.run([f"{folder}/time"], capture_output=True, text=True, check=True).stdout)


def differences() -> None:
    """Every layer of the registry."""
    from helpers import LAYERS

    for name, make in LAYERS.items():
        layer = make(dtype=torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            found = {"ONNX": ll.export.to_onnx(layer, f"{folder}/net.onnx")}
            if not layer.bidirectional:
                found["ONNX step"] = ll.export.to_onnx(layer, f"{folder}/step.onnx", step=True)
                found["C"] = ll.export.to_c(layer, f"{folder}/net.c")
        print(f"{name:28}", ", ".join(f"{target} {value:.1e}" for target, value in found.items()), flush=True)


def speed() -> None:
    """One step of one stream."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for kind in (ll.LSTM, ll.GRU, ll.Leaky):
        for size in SIZES:
            layer = kind(size, size).eval()
            x, state = torch.randn(1, size), layer.initial_state(1)
            parts = layer.state_spec.parts(state)
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                ll.export.to_onnx(layer, f"{folder}/step.onnx", step=True)
                session = onnxruntime.InferenceSession(f"{folder}/step.onnx", options)
                given = {f"{n}_in": p.numpy() for n, p in zip(layer.state_spec.names, parts)} | {"x": x.numpy()}
                times = {
                    "layer.step": microseconds(lambda layer=layer, x=x, state=state: layer.step(x, state)),
                    "onnxruntime": microseconds(lambda session=session, given=given: session.run(None, given)),
                    "C": microseconds_in_c(_c.source(layer, "net"), size, folder),
                }
            for target in ("onnxruntime", "C"):
                name = f"export: a step of {kind.__name__} {size} by {target} / layer.step"
                append(name, times[target], "µs", baseline=times["layer.step"])


def learning(steps: int = 10_000) -> None:
    """The learning C code beside `Online`."""
    from c_learners import LEARNERS

    for name, make in LEARNERS.items():
        online = make()
        online.plan()  # the tests ask for the plain road
        x = torch.randn(steps, 1, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        size = make().step(x[0]).numel()
        target = torch.sin(x.cumsum(0) / 3)[..., :1].expand(-1, -1, size) / 2
        with tempfile.TemporaryDirectory() as folder:
            c = _c.Compiled("net", _c.source(online, "net", learn=True), torch.float64, folder)
            c.call("init")
            largest, ours, theirs = 0.0, 0.0, 0.0
            for x_t, d in zip(x, target):
                start = time.perf_counter()
                wanted = online.step(x_t, d).flatten()
                middle = time.perf_counter()
                _, y = c.call("learn", x_t, d, outputs=size)
                ours, theirs = ours + time.perf_counter() - middle, theirs + middle - start
                largest = max(largest, float((y - wanted).abs().max()))
        print(
            f"{name:14} {steps} steps: largest difference {largest:.1e}; "
            f"Online {theirs / steps * 1e6:.0f} us, C called from Python {ours / steps * 1e6:.0f} us",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    if asked.learn:
        learning()
    else:
        if not asked.speed:
            differences()
        speed()
