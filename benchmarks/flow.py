"""What looking costs: `error_flow` by probes on large layers, and `watch` beside the training step it watches.

    python benchmarks/flow.py            # rows for benchmarks/results.csv: both parts (about five minutes)
    python benchmarks/flow.py probes     # wall time and peak memory for H = 512, T = 1000: 60 s and 2 GB are the limits
    python benchmarks/flow.py watch      # default settings; 1.2 of the step alone is the limit

One thread throughout. Watching is measured in processor time, in turns with the plain loop, two seconds a turn: the
first look of a run, which is always taken, is part of it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch
from _rows import append
from torch import nn

import longlag as ll
from longlag import flow
from longlag.cli.bench import middle

TURNS = 5
SHAPES = {"H=16 B=8 T=50": (8, 16, 8, 50), "H=128 B=32 T=100": (32, 128, 32, 100), "H=64 B=16 T=500": (8, 64, 16, 500)}


def probes() -> None:
    """`error_flow` of a large layer; first a small one is compared with the exact value."""
    torch.set_num_threads(1)
    for kind in (ll.Elman, ll.LSTM):
        check(kind)
        layer, x = kind(32, 512), torch.randn(1000, 1, 32)
        start = time.perf_counter()
        flow.error_flow(layer, x, method="probe")
        append(f"error_flow probes {kind.__name__} H=512 T=1000: wall time", time.perf_counter() - start, "s")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        append(f"error_flow probes {kind.__name__} H=512 T=1000: peak memory of the process", peak, "GB")


def check(kind: type[ll.Elman | ll.LSTM]) -> None:
    """No speed without a right answer."""
    layer, x = kind(8, 64), torch.randn(100, 1, 8)
    found = flow.error_flow(layer, x, method="probe")
    exact = flow.error_flow(layer.double(), x.double(), lags=found.lags.tolist())
    ratio = (found.log_singular[..., 0] - exact.log_singular[..., 0]).exp()
    assert 1 - found.error <= float(ratio.min()) <= float(ratio.max()) < 1.01, ratio


def watch() -> None:
    """A training step watched, over the same step alone."""
    torch.set_num_threads(1)
    for shape, (I, H, B, T) in SHAPES.items():
        for kind in (nn.RNN, nn.GRU, nn.LSTM, ll.LSTM):
            model = nn.Sequential(kind(I, H), Last(H))
            step = trainer(model, torch.randn(T, B, I))
            with flow.watch(model):
                step()  # loads what a look needs, compiles what the layer needs
            times = max(20, round(2 / seconds(step, 10)))
            plain, watched = [], []
            for _ in range(TURNS):
                plain.append(seconds(step, times))
                with flow.watch(model):
                    watched.append(seconds(step, times))
            median, spread = middle([w / p for w, p in zip(watched, plain)])
            alone, _ = middle(plain)
            name = f"watch {kind.__module__.partition('.')[0]}.{kind.__name__} {shape}"
            append(name, 1e3 * alone * median, "ms", baseline=1e3 * alone, spread=spread)


class Last(nn.Module):
    """Reads the output of the last step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1)

    def forward(self, output: tuple[torch.Tensor, object]) -> torch.Tensor:
        return self.linear(output[0][-1])


def trainer(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """A training step as people write it: backward, clip, update."""
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def seconds(step: Callable[[], None], times: int) -> float:
    """Processor time of one step."""
    start = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - start) / times


if __name__ == "__main__":
    torch.manual_seed(0)
    parts = {"probes": probes, "watch": watch}
    for name in sys.argv[1:] or list(parts):
        parts[name]()
