"""One results file for all benchmarks: a row per measurement, with what it was measured on."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import platform
from pathlib import Path

import torch

import longlag

FILE = Path(__file__).with_name("results.csv")
COLUMNS = ("name", "value", "unit", "baseline", "ratio", "spread", "device", "threads")
COLUMNS += ("python", "torch", "numba", "longlag", "date")


def device() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def version(package: str) -> str:
    """A package's version; empty if it is not installed (the GPU engine does without Numba)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def append(
    name: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    spread: float | None = None,
    on: str | None = None,
) -> None:
    """Add a row to ``results.csv`` and print it; ``ratio`` is value over baseline, ``on`` another device."""
    ratio = None if baseline is None else value / baseline
    written = lambda number: "" if number is None else f"{number:.4g}"  # noqa: E731
    versions = [platform.python_version(), *map(version, ("torch", "numba")), longlag.__version__]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = [name, written(value), unit, written(baseline), written(ratio), written(spread), on or device()]
    row += [torch.get_num_threads(), *versions, today]
    new = not FILE.exists()
    with FILE.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        writer.writerow(row)
    against = "" if baseline is None else f"   baseline {written(baseline)} {unit}, ratio {written(ratio)}"
    width = "" if spread is None else f"   (spread {spread:.0%})"
    print(f"{name}: {written(value)} {unit}{against}{width}", flush=True)
