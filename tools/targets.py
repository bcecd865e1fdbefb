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
    axes.set_axis_off()
    axes.set(xlim=(0, 10), ylim=(0, 7))
    box = {"boxstyle": "round,pad=0.6", "facecolor": "#F5F5F5", "edgecolor": COLOURS[0], "linewidth": 1.4}
    axes.text(0.1, 3.9, CELL, family="DejaVu Sans Mono", fontsize=8.5, va="center", bbox=box)
    axes.text(0.1, 2.75, "written once; derivatives are derived", color=GREY, va="center")
    for k, (title, target, figure) in enumerate(targets()):
        y = 6.55 - 1.02 * k
        axes.annotate(
            "", (5.05, y), (3.03, 3.9), arrowprops={"arrowstyle": "-|>", "color": COLOURS[0], "shrinkA": 0, "lw": 1.1}
        )
        axes.text(5.15, y + 0.13, title, weight="bold", va="center", fontsize=9)
        axes.text(5.15, y - 0.24, target, color=GREY, va="center", fontsize=7.5)
        axes.text(7.15, y - 0.03, figure, va="center", fontsize=8)


def main() -> None:
    with style():
        figure, axes = new_figure(width=8.6, height=4.1)
        draw(axes)
        figure.savefig(ROOT / "docs" / "img" / "targets.png")


if __name__ == "__main__":
    main()
