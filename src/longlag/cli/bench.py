"""``longlag bench``: our layers over torch's, forward and backward, in the same run; correctness first."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

SIZES = [(100, 1, 8, 16), (100, 32, 64, 128), (1000, 8, 32, 64), (200, 32, 256, 512)]  # T, B, I, H
LARGE = SIZES[1], SIZES[3]  # where a second thread has enough to do


@dataclass(frozen=True)
class Case:
    """Two calls that do the same work; ``same`` says that they compute the same numbers, too."""

    name: str
    size: tuple[int, int, int, int]
    ours: Any
    theirs: Any
    same: bool
    loss: bool = False  # whether zero_grad, a loss and its backward pass are timed, too


def cpu_cases(sizes: Sequence[tuple[int, int, int, int]] = SIZES) -> Iterator[Case]:
    """Every row of the CPU benchmark."""
    import torch

    import longlag as ll
    from longlag.cells import sigmoid, tanh

    @ll.cell(gates="a z")
    def users(a, z, y):  # the README's
        return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)

    for size in sizes:
        _, _, inputs, H = size
        for name, ours, theirs in (
            ("LSTM", ll.LSTM, torch.nn.LSTM),
            ("GRU", ll.GRU, torch.nn.GRU),
            ("Elman", ll.Elman, torch.nn.RNN),
        ):
            yield Case(f"{name} / nn.{theirs.__name__}", size, ours(inputs, H), theirs(inputs, H), same=True)
        norm = ll.LSTM(inputs, H, norm="layer")
        yield Case("LSTM(norm='layer') / nn.LSTM", size, norm, torch.nn.LSTM(inputs, H), same=False)
        # two gates of H units cost what nn.RNN costs with H·√2 units
        wide = torch.nn.RNN(inputs, round(H * 2**0.5))
        yield Case(
            "a user's cell of 2 gates / nn.RNN of equal work", size, ll.Recurrent(users, inputs, H), wide, same=False
        )
    small = sizes[0]
    pair = ll.LSTM(small[2], small[3]), torch.nn.LSTM(small[2], small[3])
    yield Case("LSTM / nn.LSTM, zero_grad() and sum() included", small, *pair, same=True, loss=True)
    size = SIZES[2]
    for kind in ("net", "activation"):
        pair = [ll.LocalFeedback(size[2], size[3], feedback=kind, engine=engine) for engine in ("cpu", "reference")]
        yield Case(f"LocalFeedback('{kind}') cpu / reference", size, *pair, same=True)


def check(case: Case) -> None:
    """Refuse to time what is wrong."""
    import torch

    T, B, inputs, _ = case.size
    x = torch.randn(T, B, inputs)
    if case.same:
        case.ours.load_state_dict(case.theirs.state_dict())
        with torch.no_grad():
            ours, theirs = case.ours(x)[0], case.theirs(x)[0]
        error = float((ours - theirs).abs().max())
        if not error < 1e-4:
            raise SystemExit(f"bench: {case.name} at {case.size} differs by {error:.1e}: not timed")


def step(layer: Any, x: Any, loss: bool = False) -> Callable[[], Any]:
    """One forward and backward pass: from x to the gradients of all parameters, given that of the outputs.

    With ``loss`` the gradient of the outputs comes from their sum, and those of the parameters are cleared before.
    """
    import torch

    parameters, d_y = list(layer.parameters()), torch.randn_like(layer(x)[0])

    def whole() -> None:
        layer.zero_grad()
        layer(x)[0].sum().backward()

    return whole if loss else lambda: torch.autograd.grad(layer(x)[0], parameters, d_y)


def times(case: Case, seconds: float, clock: Callable[[], float] = time.process_time) -> list[tuple[float, float]]:
    """`middle` of our time and of the peer's."""
    import torch

    x = torch.randn(*case.size[:3])
    calls = {"ours": step(case.ours, x, case.loss), "theirs": step(case.theirs, x, case.loss)}
    return [middle(values) for values in measure(calls, seconds, clock).values()]


def measure(
    calls: Mapping[str, Callable[[], Any]], seconds: float = 2.0, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds per call, in blocks of 20 ms or a call that take turns: a busy machine then treats all alike."""
    counts, found = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()
        start, counts[name] = clock(), 0
        while clock() < start + 0.02:
            call()
            counts[name] += 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, found.values())) < 5:
        for name, call in calls.items():
            start = clock()
            for _ in range(counts[name]):
                call()
            found[name].append((clock() - start) / counts[name])
    return found


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Median, and the distance between the quartiles as a share of it."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, (high - low) / median


def two_threads(case: Case, seconds: float) -> list[tuple[float, float]]:
    """`middle` of our wall time on two threads and on one, taking turns."""
    import torch

    once, before = step(case.ours, torch.randn(*case.size[:3])), torch.get_num_threads()

    def on(threads: int) -> Callable[[], Any]:
        def call() -> None:
            torch.set_num_threads(threads)
            once()

        return call

    measured = measure({"two": on(2), "one": on(1)}, seconds, time.perf_counter)
    torch.set_num_threads(before)
    return [middle(values) for values in measured.values()]


FIRST_CALL = """
import sys, time, pathlib, torch, longlag
from longlag.engines.cpu.cache import machine
machine.folder, machine.PATIENCE = lambda: pathlib.Path(sys.argv[1]), 1e9
layer, x = longlag.LSTM(8, 16), torch.zeros(100, 1, 8)
begun = time.perf_counter()
layer(x)[0].sum().backward()
print(time.perf_counter() - begun)
"""


def first_calls() -> tuple[float, float]:
    """Seconds of the first forward and backward call of ll.LSTM in a process: compiling, then from the cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FIRST_CALL, folder]
        cold, warm = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    return float(cold), float(warm)


def bench(
    what: Annotated[str, typer.Argument(help="What to measure: cpu (layers against torch.nn).")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch and of our kernels.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="Time spent on each row.")] = 4.0,
) -> None:
    """Time our layers against torch's: forward + backward, float32, a ratio below 1 means we are faster.

    From the input to the gradients of all parameters, given that of the outputs; one row has zero_grad() and a loss in
    it as well. Both take turns in blocks of 20 ms. With one thread processor time is taken, with more the wall clock.
    Numbers are checked before they are timed; the spread is the distance between the quartiles of our times.
    """
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    if what != "cpu":
        raise typer.BadParameter(f"must be 'cpu', got {what!r}", param_hint="WHAT")
    torch.set_num_threads(threads)
    table = Table("layer / peer", "T, B, I, H", "ours ms", "peer ms", "ratio", "spread", title=f"{threads} thread(s)")
    clock = time.process_time if threads == 1 else time.perf_counter
    cases = list(cpu_cases())
    try:
        # a bar that moves by itself would take part in what is measured
        with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
            task = progress.add_task("", total=len(cases))
            for case in cases:
                progress.update(task, description=f"{case.name} {case.size}", refresh=True)
                check(case)
                (ours, spread), (theirs, _) = times(case, seconds, clock)
                figures = f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{ours / theirs:.2f}", f"{spread:.0%}"
                table.add_row(case.name, ", ".join(map(str, case.size)), *figures)
                progress.advance(task)
    finally:  # stopped half-way, it shows what it has
        Console().print(table)
    for case in cases if (os.cpu_count() or 1) > 1 else []:
        if case.name == "LSTM / nn.LSTM" and case.size in LARGE:
            (two, _), (one, _) = two_threads(case, seconds)
            typer.echo(f"two threads are {one / two:.2f} times as fast as one: LSTM {case.size}")
    cold, warm = first_calls()
    typer.echo(f"first call of ll.LSTM in a process: {cold:.2f} s compiling, {warm:.3f} s from the cache")
