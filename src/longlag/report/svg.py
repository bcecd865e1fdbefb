"""Small plots as SVG text: they live in the page itself, print sharply and need no library."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Points = Sequence[tuple[float, float]]
COLOURS = {"text": "#b3541e", "fit": "#1f5f99"}
LINES = ("#1f5f99", "#b3541e", "#2e7d4f", "#7b3f98", "#8a6d00", "#00798c", "#c2255c", "#444444")
WIDTH = 460


def short(value: float) -> str:
    """A number for an axis: 1.5M, 20k, 0.25."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two ends."""
    span = (high - low) or 1.0
    step = 10 ** floor(log10(span / most))
    step *= next(k for k in (1, 2, 5, 10) if span / (k * step) <= most)
    return [round(k * step, 12) for k in range(ceil(low / step), floor(high / step) + 1)]


def line(points: Points, colour: str, opacity: float = 1.0, width: float = 1.3) -> str:
    """A polyline through points of the picture."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"'
    return f'<polyline fill="none" {style} points="{text}"/>'


def label(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    """A word in the picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(text)}</text>'


def picture(height: float, body: Sequence[str], title: str) -> str:
    """The whole picture; its title is read out by screen readers."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return f"{head}<title>{escape(title)}</title>{''.join(body)}</svg>"


def grid_x(marks: Sequence[float], place, top: float, bottom: float) -> list[str]:
    """Vertical lines with their numbers."""
    parts = []
    for mark in marks:
        x = place(mark)
        parts += [line([(x, top), (x, bottom)], "#dddddd", width=0.8), label(x, bottom + 14, short(mark))]
    return parts


def curves(groups: Mapping[str, Sequence[Points]], paper: float | None, title: str) -> str:
    """Learning curves: mean error over training sequences, one line per trial, coloured by reading."""
    points = [point for lines in groups.values() for curve in lines for point in curve]
    right, top = max(x for x, _ in points), max(y for _, y in points) * 1.05 or 1.0
    height, left, bottom = 210, 40, 176

    def place(x: float) -> float:
        return left + x / right * (WIDTH - left - 20)

    def rise(y: float) -> float:
        return bottom - y / top * (bottom - 14)

    body = grid_x(ticks(0, right), place, 14, bottom)
    for mark in ticks(0, top, 5):
        body += [line([(left, rise(mark)), (WIDTH - 20, rise(mark))], "#dddddd", width=0.8)]
        body += [label(left - 5, rise(mark) + 4, short(mark), "end")]
    for reading, lines in groups.items():
        opacity = max(0.25, min(0.9, 4 / max(1, len(lines))))
        body += [line([(place(x), rise(y)) for x, y in curve], COLOURS[reading], opacity) for curve in lines]
    if paper is not None and paper <= right:
        body += [line([(place(paper), 14), (place(paper), bottom)], "#111111", width=1.2)]
        body += [label(place(paper), 11, "paper's mean")]
    body += [label((left + WIDTH) / 2, height - 3, "training sequences")]
    return picture(height, body, title)


def spread(rows: Sequence[tuple[str, str, Sequence[float], float | None]], title: str, diamonds: bool = True) -> str:
    """Sequences until success on a logarithmic axis: a dot per trial, a diamond for the paper's mean.

    rows: (name, reading, values, the paper's mean); diamonds: say what the diamonds are.
    """
    values = [v for _, _, found, paper in rows for v in (*found, *((paper,) if paper else ()))]
    low, high = log10(min(values)) - 0.08, log10(max(values)) + 0.08
    left, step = max(152, min(270, 6 * max(len(name) for name, *_ in rows))), 22
    bottom = 12 + step * len(rows)

    def place(v: float) -> float:
        return left + (log10(v) - low) / (high - low) * (WIDTH - left - 20)

    marks = [
        m * 10.0**k
        for k in range(floor(low), ceil(high) + 1)
        for m in ((1, 2, 5) if high - low > 1 else (1, 1.5, 2, 3, 5, 7))
    ]
    body = grid_x([m for m in marks if low <= log10(m) <= high], place, 4, bottom)
    for number, (name, reading, found, paper) in enumerate(rows):
        y = 12 + step * (number + 0.5)
        body += [label(left - 8, y + 4, name, "end")]
        dot = f'fill="{COLOURS[reading]}" fill-opacity="0.55"'
        body += [
            f'<circle cx="{place(v):.1f}" cy="{y + (k % 3 - 1) * 3:.1f}" r="3.4" {dot}/>' for k, v in enumerate(found)
        ]
        if paper:
            x = place(paper)
            body += [f'<path d="M{x:.1f} {y - 8:.1f}l5 8l-5 8l-5 -8z" fill="none" stroke="#111" stroke-width="1.6"/>']
    axis = "sequences until success" + ("; diamond: the paper's mean" if diamonds else "")
    body += [label((left + WIDTH) / 2, bottom + 30, axis)]
    return picture(bottom + 36, body, title)


def histogram(
    edges: Sequence[float], counts: Sequence[int], curve: Sequence[float], paper: float | None, title: str
) -> str:
    """Bars between `edges`, a curve over the same range, and a line at the paper's mean."""
    height, left, bottom, top = 210, 40, 176, max(*counts, *curve) * 1.05
    right = max(edges[-1], paper or 0)

    def place(x: float) -> float:
        return left + x / right * (WIDTH - left - 20)

    def rise(y: float) -> float:
        return bottom - y / top * (bottom - 14)

    body = grid_x(ticks(0, right), place, 14, bottom)
    body += [label(left - 5, rise(mark) + 4, short(mark), "end") for mark in ticks(0, top, 4)]
    for low, high, count in zip(edges, edges[1:], counts):
        x, wide, tall = place(low), place(high) - place(low), bottom - rise(count)
        body.append(f'<rect x="{x:.1f}" y="{rise(count):.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="#a9c3dd"/>')
    step = edges[-1] / (len(curve) - 1)
    body.append(line([(place(k * step), rise(y)) for k, y in enumerate(curve)], COLOURS["text"], width=1.8))
    if paper is not None:
        body += [line([(place(paper), 14), (place(paper), bottom)], "#111111", width=1.2)]
        body += [label(place(paper), 11, "paper's mean")]
    body += [label((left + WIDTH) / 2, height - 3, "sequences until success")]
    return picture(height, body, title)


def panels(parts: Sequence[tuple[str, Sequence[Sequence[float]]]], title: str) -> str:
    """Activities over time, one panel above the other: (name, series)."""
    left, tall, body, top = 92, 62, [], 6
    steps = max(len(series) for _, group in parts for series in group)

    def place(t: float) -> float:
        return left + t / max(1, steps - 1) * (WIDTH - left - 20)

    for name, group in parts:
        low, high = min(min(s) for s in group), max(max(s) for s in group)
        span = (high - low) or 1.0
        body += [f'<rect x="{left}" y="{top}" width="{WIDTH - left - 20}" height="{tall}" fill="none" stroke="#ddd"/>']
        body += [label(4, top + tall / 2 + 4, name, "start")]
        body += [label(left - 4, top + 10, f"{high:.3g}", "end"), label(left - 4, top + tall, f"{low:.3g}", "end")]
        for number, series in enumerate(group):
            points = [(place(t), top + tall - 3 - (v - low) / span * (tall - 6)) for t, v in enumerate(series)]
            body += [line(points, LINES[number % len(LINES)])]
        top += tall + 8
    body += [label(place(mark), top + 8, short(mark)) for mark in ticks(0, steps - 1, 8)]
    body += [label((left + WIDTH) / 2, top + 22, "time step")]
    return picture(top + 28, body, title)
