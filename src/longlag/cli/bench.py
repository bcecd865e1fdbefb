"""``longlag bench``: times of our layers divided by torch's in the same run, after a check of the results."""

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

Size = tuple[int, int, int, int]  # T, B, I, H
SIZES: list[Size] = [(100, 1, 8, 16), (100, 32, 64, 128), (1000, 8, 32, 64), (200, 32, 256, 512)]
LARGE = SIZES[1], SIZES[3]  # large enough for a second thread
LARGE_INFERENCE: list[Size] = [(200, 32, 256, 512), (50, 256, 128, 256)]
SHORT: list[Size] = [(1, 1, 256, 256), (1, 1, 512, 512), (4, 8, 256, 256), (16, 1, 512, 512)]
LONG: Size = (2000, 1, 64, 256)  # one sequence: threads can share only the matrix products
CELLS = {"LSTM": (16, 64, 256), "GRU": (512,)}  # units of `layer.step` against nn.LSTMCell and nn.GRUCell

GRADIENTS, TRAINING, INFERENCE, STEP = "forward + backward", "training step", "inference", "step"


@dataclass(frozen=True)
class Case:
    """Two modules that do the same work; ``same``: they compute the same numbers, too."""

    name: str
    size: Size
    ours: Any
    theirs: Any
    same: bool = True
    work: str = GRADIENTS
    threads: int | None = None  # None: the number asked for

    @property
    def title(self) -> str:
        work = "" if self.work == GRADIENTS else f", {self.work}"
        return self.name + work + (f", {self.threads} threads" if self.threads else "")


def cpu_cases(sizes: Sequence[Size] = SIZES) -> Iterator[Case]:
    """Every row of the CPU benchmark: all layers at ``sizes``, then the other kinds of work."""
    import torch

    import longlag as ll
    from longlag.cells import sigmoid, tanh

    @ll.cell(gates="a z")
    def users(a, z, y):  # the README's
        return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)

    peers = {"LSTM": (ll.LSTM, torch.nn.LSTM), "GRU": (ll.GRU, torch.nn.GRU), "Elman": (ll.Elman, torch.nn.RNN)}

    def pair(name: str, size: Size, work: str = GRADIENTS, threads: int | None = None) -> Case:
        ours, theirs = peers[name]
        title = f"{name} / nn.{theirs.__name__}"
        return Case(title, size, ours(*size[2:]), theirs(*size[2:]), work=work, threads=threads)

    for size in sizes:
        _, _, inputs, H = size
        yield from (pair(name, size) for name in peers)
        yield pair("LSTM", size, TRAINING)
        norm = ll.LSTM(inputs, H, norm="layer")
        yield Case("LSTM(norm='layer') / nn.LSTM", size, norm, torch.nn.LSTM(inputs, H), same=False)
        # two gates of H units cost what nn.RNN costs with H·√2 units
        wide, name = torch.nn.RNN(inputs, round(H * 2**0.5)), "a user's cell of 2 gates / nn.RNN of equal work"
        yield Case(name, size, ll.Recurrent(users, inputs, H), wide, same=False)
    for kind in ("net", "activation"):
        size = SIZES[2]
        ours, theirs = (ll.LocalFeedback(*size[2:], feedback=kind, engine=engine) for engine in ("cpu", "reference"))
        yield Case(f"LocalFeedback('{kind}') cpu / reference", size, ours, theirs)
    yield from (pair("LSTM", size, INFERENCE) for size in LARGE_INFERENCE)
    if (os.cpu_count() or 1) > 1:
        yield from (pair("LSTM", LONG, work, threads=2) for work in (GRADIENTS, INFERENCE))
    yield from (pair(name, size, work) for size in SHORT for name in CELLS for work in (GRADIENTS, INFERENCE))
    for name, units in CELLS.items():
        for H in units:
            cell = getattr(torch.nn, f"{name}Cell")(H, H)
            yield Case(f"{name}.step / nn.{name}Cell", (1, 1, H, H), peers[name][0](H, H), cell, work=STEP)


def check(case: Case) -> None:
    """Raise if a layer and its peer compute different numbers."""
    import torch

    if not case.same:
        return
    values = case.theirs.state_dict()
    case.ours.load_state_dict({key + "_l0": value for key, value in values.items()} if case.work == STEP else values)
    x = torch.randn(*case.size[:3])
    with torch.no_grad():
        if case.work == STEP:
            ours, theirs = case.ours.step(x[0])[0], case.theirs(x[0])
            theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        else:
            ours, theirs = case.ours(x)[0], case.theirs(x)[0]
    error = float((ours - theirs).abs().max())
    if not error < 1e-4:
        raise SystemExit(f"bench: {case.name} at {case.size} differs by {error:.1e}: not timed")


def call_of(layer: Any, x: Any, work: str = GRADIENTS) -> Callable[[], Any]:
    """The call that is timed.

    Forward + backward is from x to the gradients of all parameters, given the gradient of the outputs. A training step
    is ``zero_grad``, forward, a loss, backward and the optimiser's step. Inference and step are under ``no_grad``.
    """
    import torch

    if work == STEP:
        advance = getattr(layer, "step", layer)
        first = torch.no_grad()(advance)(x[0])
        state = first[1] if hasattr(layer, "step") else first
        return torch.no_grad()(lambda: advance(x[0], state))
    if work == INFERENCE:
        return torch.no_grad()(lambda: layer(x))
    parameters, d_y = list(layer.parameters()), torch.randn_like(layer(x)[0])
    if work == GRADIENTS:
        return lambda: torch.autograd.grad(layer(x)[0], parameters, d_y)
    optimizer, target = torch.optim.SGD(parameters, 1e-9), d_y  # the weights stay unchanged

    def training_step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(x)[0], target).backward()
        optimizer.step()

    return training_step


def times(case: Case, seconds: float) -> list[tuple[float, float]]:
    """`middle` of our time and of the peer's: processor time on one thread, wall time on several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(case.threads or before)
    x, clock = torch.randn(*case.size[:3]), time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    calls = {"ours": call_of(case.ours, x, case.work), "theirs": call_of(case.theirs, x, case.work)}
    try:
        return [middle(values) for values in measure(calls, seconds, clock).values()]
    finally:
        torch.set_num_threads(before)


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

    once, before = call_of(case.ours, torch.randn(*case.size[:3])), torch.get_num_threads()

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
    """Time our layers against torch's in float32: a ratio below 1 means we are faster.

    Most rows are forward + backward, from the input to the gradients of all parameters, given the gradient of the
    outputs. Others are whole training steps, inference, short calls and single steps. Both sides take turns in blocks
    of 20 ms. With one thread processor time is taken, with more the wall clock. Numbers are compared before they are
    timed; the spread is the distance between the quartiles of our times.
    """
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    if what != "cpu":
        raise typer.BadParameter(f"must be 'cpu', got {what!r}", param_hint="WHAT")
    torch.set_num_threads(threads)
    table = Table("layer / peer", "T, B, I, H", "ours ms", "peer ms", "ratio", "spread", title=f"{threads} thread(s)")
    cases = list(cpu_cases())
    try:
        # a bar that refreshes by itself would disturb the measurement
        with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
            task = progress.add_task("", total=len(cases))
            for case in cases:
                progress.update(task, description=f"{case.title} {case.size}", refresh=True)
                check(case)
                (ours, spread), (theirs, _) = times(case, seconds)
                figures = f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{ours / theirs:.2f}", f"{spread:.0%}"
                table.add_row(case.title, ", ".join(map(str, case.size)), *figures)
                progress.advance(task)
    finally:  # interrupted half-way, the command prints the rows it has
        Console().print(table)
    for case in cases if (os.cpu_count() or 1) > 1 else []:
        if case.title == "LSTM / nn.LSTM" and case.size in LARGE:
            (two, _), (one, _) = two_threads(case, seconds)
            typer.echo(f"two threads are {one / two:.2f} times as fast as one: LSTM {case.size}")
    cold, warm = first_calls()
    typer.echo(f"first call of ll.LSTM in a process: {cold:.2f} s compiling, {warm:.3f} s from the cache")
