"""Learning in real time against JAX, and single steps and short sequences against torch.nn, in the same run.

    python benchmarks/online.py            # all rows for benchmarks/results.csv (some 3 minutes; needs the group bench)
    python benchmarks/online.py learning   # one part: learning, step, inference, large or memory

One thread, float32. `learning`: 8 inputs, 32 units, batch 1, a linear read-out, squared error, an SGD update after
every step; ours is `Online.run`, theirs a jitted ``lax.scan`` (`_online_jax`), the faster of the ways in which that is
written there. Nothing is timed before the losses of both agree. JAX advances the influence of RTRL at every step, as is
usual; ours once in 32 steps, with the same gradients.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import _online_jax  # first: it sets the number of XLA's threads
import numpy as np
import torch
from _rows import append
from torch import nn

import longlag as ll
from longlag.cli.bench import INFERENCE, STEP, Case, check, measure, middle, times
from longlag.learn import RTRL, LocalForward, Online, Rule, TruncatedRTRL, squared_error

I, H, STEPS, LR = 8, 32, 2000, 1e-3
SECONDS = 3.0  # per row
LAYERS: dict[str, Callable[[], Any]] = {
    "local": lambda: ll.LocalFeedback(I, H, feedback="activation", constrain=None),
    "elman": lambda: ll.Elman(I, H),
    "lstm": lambda: ll.LSTM(I, H),
    "gru": lambda: ll.GRU(I, H),
}
ROWS: list[tuple[str, str, Rule]] = [
    ("LocalFeedback, LocalForward", "local", LocalForward()),
    ("Elman, RTRL", "elman", RTRL()),
    ("LSTM, RTRL", "lstm", RTRL()),
    ("GRU, RTRL", "gru", RTRL()),
    ("LSTM, TruncatedRTRL", "lstm", TruncatedRTRL()),
]


def learner(layer: Any, rule: Rule, readout: nn.Module | None) -> Online:
    """A learner as in the docstring above."""
    modules = [layer] if readout is None else [layer, readout]
    optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=LR)
    return Online(layer, readout, squared_error, rule, optimizer)


def stream(inputs: int = I) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of `STEPS` steps."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(STEPS, inputs, generator=generator), torch.randn(STEPS, 1, generator=generator)


# --------------------------------------------------------------------------------------------------------- learning
def learning() -> None:
    """Microseconds per step of `Online.run`, and of `Online.step`."""
    xs, ts = stream()
    for title, kind, rule in ROWS:
        torch.manual_seed(0)
        layer, readout = LAYERS[kind](), nn.Linear(H, 1)
        theirs = _online_jax.runs(kind, type(rule).__name__, layer, readout, LR)
        online = learner(layer, rule, readout)
        online.run(xs, ts)
        for way, run in theirs.items():
            np.testing.assert_allclose(online.losses, run(xs.numpy(), ts.numpy()), rtol=1e-3, atol=1e-5, err_msg=way)
        calls: dict[str, Callable[[], Any]] = {"ours": lambda online=online: online.run(xs, ts)}
        calls |= {way: lambda run=run: run(xs.numpy(), ts.numpy()) for way, run in theirs.items()}
        found = {name: middle(values) for name, values in measure(calls, SECONDS).items()}
        ours, spread = found.pop("ours")
        way = min(found, key=lambda name: found[name][0])
        scale = 1e6 / STEPS
        append(f"online: {title} / JAX ({way})", ours * scale, "µs", baseline=found[way][0] * scale, spread=spread)
        if kind in ("local", "lstm") and not isinstance(rule, RTRL):
            latency(title, online)
    torch.manual_seed(0)
    net = ll.LSTM97(I, blocks=4, block_size=2, output_size=1, output="linear")
    online = learner(net, TruncatedRTRL(), None)
    values = measure({"run": lambda: online.run(xs, ts)}, SECONDS)["run"]
    median, spread = middle(values)
    append("online: LSTM97 4x2, TruncatedRTRL", median * 1e6 / STEPS, "µs", spread=spread)
    latency("LSTM97 4x2, TruncatedRTRL", online)


def latency(title: str, online: Online) -> None:
    """Median and 99th percentile of `Online.step`, wall time."""
    xs, ts = stream()
    took = []
    for x, t in zip(xs, ts):
        begin = time.perf_counter()
        online.step(x, t)
        took.append((time.perf_counter() - begin) * 1e6)
    cuts = statistics.quantiles(took[200:], n=100)
    engine, _ = online.engine_for()
    append(f"online: step, {title} ({engine}), median", cuts[49], "µs")
    append(f"online: step, {title} ({engine}), 99th percentile", cuts[98], "µs")


# -------------------------------------------------------------------------------------------------------- inference
def step() -> None:
    """`layer.step` over torch's cells."""
    for name, peer, sizes in (("LSTM", nn.LSTMCell, (16, 64, 256)), ("GRU", nn.GRUCell, (512,))):
        for units in sizes:
            ours, theirs = getattr(ll, name)(units, units), peer(units, units)
            compare(Case(f"{name}.step / nn.{peer.__name__}", (1, 1, units, units), ours, theirs, work=STEP))


def inference() -> None:
    """A layer's forward pass over short sequences."""
    for name, peer in (("LSTM", nn.LSTM), ("GRU", nn.GRU)):
        for T in (1, 4, 16):
            for B in (1, 8):
                for units in (64, 256):
                    ours, theirs = getattr(ll, name)(units, units), peer(units, units)
                    compare(Case(f"{name} / nn.{name}", (T, B, units, units), ours, theirs, work=INFERENCE))


def compare(case: Case) -> None:
    """A row; only after both compute the same."""
    check(case)
    (ours, spread), (theirs, _) = times(case, SECONDS)
    append(f"online: {case.title} {case.size}", ours * 1e6, "µs", baseline=theirs * 1e6, spread=spread)


# ------------------------------------------------------------------------------------------------------------ large
def large() -> None:
    """RTRL of 1,024 local units, 16 streams at once."""
    layer, readout = ll.LocalFeedback(I, 1024), nn.Linear(1024, 1)
    online, steps = learner(layer, RTRL(), readout), 200
    xs, ts = torch.randn(steps, 16, I), torch.randn(steps, 16, 1)
    median, spread = middle(measure({"run": lambda: online.run(xs, ts)}, SECONDS)["run"])
    append("online: RTRL, 1,024 local units, B = 16", steps / median, "steps/s", spread=spread)


# ----------------------------------------------------------------------------------------------------------- memory
def memory() -> None:
    """How much the process has grown at its peak from 1,000 to 10,000,000 steps of a stream."""
    xs, ts = stream()
    for title, kind, rule in ROWS:
        if kind == "lstm" and isinstance(rule, RTRL):
            continue  # minutes for the same trace as Elman's and GRU's
        online = learner(LAYERS[kind](), rule, nn.Linear(H, 1))
        online.run(xs[:1000], ts[:1000])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10_000_000 // STEPS):
            online.run(xs, ts)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        append(f"online: memory grown over 10 million steps, {title}", grown, "KiB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {"learning": learning, "step": step, "inference": inference, "large": large, "memory": memory}
    for name in sys.argv[1:] or parts:
        parts[name]()
