"""The style of all pictures: colour-blind safe, light, legible in print. matplotlib is loaded when first drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (jfly.uni-koeln.de/color), dark enough on white; the yellow is left out
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)), (0, (7, 2, 1, 2, 1, 2)), "-", "-")
GREY = "#666666"
HEAT = "cividis"  # reads the same with and without colour vision

_RC: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "longlag",  # the same figure gives the same file
}


@contextmanager
def style() -> Iterator[None]:
    """The common style, for figures made and saved inside."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def new_figure(rows: int = 1, columns: int = 1, *, width: float = 6.2, height: float = 3.7) -> tuple[Figure, Any]:
    """A figure and its axes, independent of pyplot; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def label_lines(axes: Axes, entries: list[tuple[float, str, str]], *, gap: float = 0.055) -> None:
    """Names beside the right ends of lines, moved apart where they would overlap.

    entries: (y in data units, text, colour); gap: least distance as a share of the axes' height.
    """
    where = axes.transData + axes.transAxes.inverted()
    x_right = axes.get_xlim()[1]
    heights = [float(where.transform((x_right, y))[1]) for y, _, _ in entries]
    order = sorted(range(len(entries)), key=lambda i: heights[i])
    placed: dict[int, float] = {}
    lowest = 0.02
    for i in order:
        placed[i] = lowest = max(min(max(heights[i], 0.0), 1.0), lowest)
        lowest += gap
    overflow = max([0.0, *(y - 1.0 for y in placed.values())])
    for i, (_, text, colour) in enumerate(entries):
        axes.text(1.015, placed[i] - overflow, text, color=colour, transform=axes.transAxes, va="center", fontsize=8.5)
