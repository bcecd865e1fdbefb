"""Times of the GPU engine's kernels over tile sizes, to choose the rules of `longlag.engines.gpu.plan` by.

    python tools/gpu_tune.py [--jobs N]           needs a CUDA device; about two minutes on an H200 with 12 jobs

Kernels are first compiled in N processes, then timed one after another. For every family the five fastest
configurations are printed, forward and backward apart, with the present one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag import cells
from longlag.cells import Cell, cell, sigmoid, tanh
from longlag.engines.gpu import graphs, loops, run, scans
from longlag.engines.gpu.plan import Plan, plan
from longlag.engines.gpu.run import Call


@cell(gates="a z")
def two_gates(a, z, y):
    """A user's cell."""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


@cell(gates="a z", dense=False)
def two_gates_local(a, z, y):
    """The same without U."""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


class Family(NamedTuple):
    """A problem."""

    cell: Cell
    dtype: torch.dtype
    T: int
    B: int
    H: int

    @property
    def title(self) -> str:
        return f"{self.cell.name}, {str(self.dtype)[6:]}, T={self.T} B={self.B} H={self.H}"

    def present(self) -> Setting:
        """The configuration in use."""
        now = plan(self.cell, self.H, self.dtype.itemsize, False, 1, *run.shared_memory(torch.device("cuda:0")))
        return Setting(now, scans.STAGES if now.kind == "scan" else loops.STAGES, loops.UNROLL)


class Setting(NamedTuple):
    """A plan, and the two constants of the kernels' text."""

    plan: Plan
    stages: int
    unroll: int


F32, BF16 = torch.float32, torch.bfloat16
FAMILIES = [
    Family(cells.net_feedback, F32, 4096, 8, 1536),
    Family(cells.net_feedback, BF16, 4096, 8, 1536),
    Family(two_gates_local, F32, 4096, 8, 1536),
    Family(two_gates_local, BF16, 4096, 8, 1536),
    Family(cells.activation_feedback, F32, 4096, 8, 1536),
    Family(cells.activation_feedback, BF16, 4096, 8, 1536),
    Family(cells.lstm, F32, 1000, 8, 64),
    Family(cells.lstm, BF16, 100, 32, 128),
    Family(two_gates, F32, 100, 32, 128),
    Family(two_gates, BF16, 1024, 16, 256),
    Family(two_gates, F32, 1024, 16, 256),
    Family(cells.lstm, F32, 200, 32, 512),
]


def settings(family: Family) -> Iterator[Setting]:
    """What is tried; values per thread stay between 4 and 32."""
    kind = family.present().plan.kind
    if kind == "scan":
        for BT, BH, warps, stages in itertools.product((16, 32, 64), (16, 32, 64), (1, 2, 4, 8), (1, 2, 3)):
            if 4 <= BT * BH // (32 * warps) <= 32:
                yield Setting(Plan(kind, BT, BH, warps, BH), stages, loops.UNROLL)
    elif kind == "local":
        for BH, warps, stages, unroll in itertools.product((32, 64, 128), (1, 2), (1, 2), (4, 8, 16)):
            if 32 * warps <= BH:
                yield Setting(Plan(kind, 1, BH, warps, BH), stages, unroll)
    elif kind == "resident":
        for warps in (2, 4, 8, 16):
            yield Setting(family.present().plan._replace(warps=warps), loops.STAGES, loops.UNROLL)
    else:
        for BM, BH, warps in itertools.product((1, 4), (64, 128, 256), (1, 2, 4)):
            yield Setting(Plan(kind, BM, BH, warps, BH), loops.STAGES, loops.UNROLL)


def passes(family: Family, setting: Setting) -> tuple[Any, Any]:
    """The forward and the backward pass as functions without arguments."""
    run.plan = lambda *_: setting.plan
    scans.STAGES = loops.STAGES = setting.stages
    loops.UNROLL = setting.unroll
    for kernels in [key for key in family.cell.engine_memory if isinstance(key, tuple)]:
        del family.cell.engine_memory[kernels]
    graphs.clear()
    cell, dtype, T, B, H = family
    generator = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, device="cuda", dtype=dtype)  # noqa: E731
    given: dict[str, Tensor] = {"net": draw(T, B, len(cell.input_gates) * H)}
    if cell.dense:
        given["U"] = draw(len(cell.recurrent_gates) * H, H) / H**0.5
    given |= {f"first_{v}": torch.zeros(B, H, device="cuda", dtype=dtype) for v in cell.fed_back}
    given |= {f"param_{p}": torch.full((H,), 0.9, device="cuda", dtype=dtype) for p in cell.params}
    call = Call(cell, given, False, 0.0, 1, None, None, None)
    n = 1 + len(cell.fed_back)
    results = run.forward(call, True)
    errors = [draw(T, B, H), *(torch.zeros(1, B, H, device="cuda", dtype=dtype) for _ in cell.fed_back)]
    return (
        lambda: run.forward(call, True),
        lambda: run.backward(call, results[0], results[n:], errors),
    )


def compiled(job: tuple[int, Setting]) -> None:
    """Run both passes once, so that Triton's cache has the kernels."""
    for work in passes(FAMILIES[job[0]], job[1]):
        work()
    torch.cuda.synchronize()


def attempt(job: tuple[int, Setting]) -> str:
    try:
        compiled(job)
    except Exception as error:
        return f"{FAMILIES[job[0]].title} {job[1]}: {type(error).__name__} {str(error)[:200]}"
    return ""


def milliseconds(work: Any) -> float:
    """The median of ten, by CUDA events."""
    times = []
    for _ in range(13):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=4)
    jobs = parser.parse_args().jobs
    work = [(k, setting) for k, family in enumerate(FAMILIES) for setting in {*settings(family), family.present()}]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        failures = dict(zip(work, pool.map(attempt, work)))
    for why in filter(None, failures.values()):
        print("failed:", why)
    for k, family in enumerate(FAMILIES):
        present, found = family.present(), []
        for setting in [one for number, one in work if number == k and not failures[number, one]]:
            forward, backward = passes(family, setting)
            found.append((milliseconds(forward), milliseconds(backward), setting))
        print(f"\n{family.title}: {len(found)} configurations")
        for column, which in enumerate(("forward", "backward")):
            ranked = sorted(found, key=lambda row: row[column])
            for row in ranked[:5]:
                print(f"  {which:8} {row[column]:8.3f} ms  {row[2]}")
            print(*(f"  {which:8} {row[column]:8.3f} ms  present" for row in found if row[2] == present), flush=True)


if __name__ == "__main__":
    main()
