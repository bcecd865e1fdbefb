"""The picture of the start page: one cell, printed for every target, with figures of benchmarks/results.csv.

    python tools/targets.py            # writes docs/img/targets.png

A figure is taken from the last row whose name begins as stated below; a row that does not exist is an error.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from longlag.style import COLOURS, GREY, new_figure, style

ROOT = Path(__file__).resolve().parents[1]
CELL = """@ll.cell(gates="a z")
def mine(a, z, y):
    return sigmoid(z) * y \\
      + (1 - sigmoid(z)) * tanh(a)"""


def row(name: str) -> dict[str, str]:
    """The last row of the results whose name begins with ``name``."""
    with (ROOT / "benchmarks" / "results.csv").open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["name"].startswith(name)]
    if not found:
        raise SystemExit(f"tools/targets.py: no row of benchmarks/results.csv begins with {name!r}")
    return found[-1]


def times(name: str) -> str:
    """How many times as fast as the peer."""
    ratio = 1 / float(row(name)["ratio"])
    return f"{ratio:.2g}×" if ratio < 10 else f"{ratio:.0f}×"


def value(name: str) -> str:
    """The value of a row with its unit."""
    found = row(name)
    return f"{float(found['value']):.2g} {found['unit']}"


def targets() -> list[tuple[str, str, str]]:
    """Title, what is printed, and a measured figure."""
    return [
        ("through time, CPU", "Numba, LLVM", f"{times(EQUAL)} the speed of nn.RNN\nfor work of equal size"),
        ("real time, CPU", "Numba, LLVM", f"LSTM, exact gradients per step:\n{times(JAX)} the speed of compiled JAX"),
        ("one step", "the same kernels", f"LSTM of 256 units: {value(STEP)},\n{times(STEP)} the speed of nn.LSTMCell"),
        ("GPU", "Triton", "forward and backward,\nfor every cell"),
        ("ONNX", "operators of ONNX", "runs without Python;\nchecked before it is written"),
        ("C99", "one file, no dependencies", "can go on learning on a device"),
        ("browser", "JavaScript", "the playground: longlag play"),
    ]


EQUAL = "cpu: a user's cell of 2 gates / nn.RNN of equal work (100, 32, 64, 128)"
JAX = "online: LSTM, RTRL / JAX (structured)"
STEP = "online: LSTM.step / nn.LSTMCell, step (1, 1, 256, 256)"


def draw(axes: Any) -> None:
    """The cell above, a branch to each target below: narrow, so that a phone shows the letters in a readable size."""
    rows = targets()
    axes.set_axis_off()
    axes.set(xlim=(0, 10), ylim=(-len(rows) + 0.4, 3.1))
    box = {"boxstyle": "round,pad=0.6", "facecolor": "#F5F5F5", "edgecolor": COLOURS[0], "linewidth": 1.4}
    axes.text(0.35, 2.05, CELL, family="DejaVu Sans Mono", fontsize=9, va="center", bbox=box)
    axes.text(6.6, 2.05, "written once;\nderivatives\nare derived", color=GREY, va="center", fontsize=9)
    arrow = {"arrowstyle": "-|>", "color": COLOURS[0], "shrinkA": 0, "shrinkB": 0, "lw": 1.2}
    axes.plot([0.35, 0.35], [1.28, 1 - len(rows)], color=COLOURS[0], lw=1.2)
    for k, (title, target, figure) in enumerate(rows):
        axes.annotate("", (1.0, -k), (0.35, -k), arrowprops=arrow)
        axes.text(1.15, 0.17 - k, title, weight="bold", va="center", fontsize=9.5)
        axes.text(1.15, -0.22 - k, target, color=GREY, va="center", fontsize=8.5)
        axes.text(4.9, -0.03 - k, figure, va="center", fontsize=8.5)


def main() -> None:
    with style():
        figure, axes = new_figure(width=5.6, height=5.2)
        draw(axes)
        figure.savefig(ROOT / "docs" / "img" / "targets.png")


if __name__ == "__main__":
    main()
