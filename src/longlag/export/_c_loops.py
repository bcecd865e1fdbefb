"""Loops over arrays in C: indices from strides, neighbouring loops merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from longlag.export._c_program import View


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """A view with the strides of a broadcast to ``shape``."""
    missing = len(shape) - len(view.shape)
    strides = [0] * missing + [
        0 if n == 1 and m != 1 else s for n, m, s in zip(view.shape, shape[missing:], view.strides)
    ]
    return View(view.array, view.offset, shape, tuple(strides))


def merged(views: Sequence[View]) -> tuple[tuple[int, ...], list[View]]:
    """The same elements in the same order with as few dimensions as possible; all views have one shape."""
    shape = views[0].shape
    dims = [k for k, n in enumerate(shape) if n != 1]
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in views]
    for k in reversed(dims):
        inner = sizes[-1] if sizes else 0
        fits = bool(sizes) and all(v.strides[k] == s[-1] * inner for v, s in zip(views, steps))
        if fits:
            sizes[-1] *= shape[k]
        else:
            sizes.append(shape[k])
            for v, s in zip(views, steps):
                s.append(v.strides[k])
    order = tuple(reversed(sizes))
    return order, [View(v.array, v.offset, order, tuple(reversed(s))) for v, s in zip(views, steps)]


def index(view: View, variables: Sequence[str]) -> str:
    """The index of an element in its array, e.g. ``3 + 4*i + j``."""
    terms = [v if s == 1 else f"{s}*{v}" for v, s, n in zip(variables, view.strides, view.shape) if s and n > 1]
    return " + ".join([*([str(view.offset)] if view.offset or not terms else []), *terms])


VARIABLES = "ijkl"


@dataclass
class Loops:
    """C statements; pointwise statements over the same elements share a loop."""

    lines: list[str] = field(default_factory=list)
    _shape: tuple[int, ...] | None = None
    _body: list[str] = field(default_factory=list)
    _written: dict[int, View] = field(default_factory=dict)
    _read: dict[int, list[View]] = field(default_factory=dict)

    def pointwise(self, target: View, sources: Sequence[View], statement: str) -> None:
        """A statement for each element; it may join the loop before if it reads only elements of its own index."""
        if self._shape != target.shape or self._conflict(target, sources):
            self.close()
            self._shape = target.shape
        self._body.append(statement)
        self._written[target.array] = target
        for source in sources:
            self._read.setdefault(source.array, []).append(source)

    def _conflict(self, target: View, sources: Sequence[View]) -> bool:
        """Whether another order of the statements would read or write other values."""
        late = any(s.array in self._written and self._written[s.array] != s for s in sources)
        twice = target.array in self._written and self._written[target.array] != target
        return late or twice or any(view != target for view in self._read.get(target.array, []))

    def close(self) -> None:
        """End the open loop."""
        if self._shape is not None:
            self.lines += nested(self._shape, self._body)
        self._shape, self._body, self._written, self._read = None, [], {}, {}

    def add(self, *lines: str) -> None:
        """Other statements."""
        self.close()
        self.lines += lines


def nested(shape: Sequence[int], body: Sequence[str], variables: Sequence[str] = VARIABLES) -> list[str]:
    """``body`` in a loop per dimension."""
    runs = [(v, n) for v, n in zip(variables, shape) if n != 1]
    lines = [f"{'    ' * d}for (int {v} = 0; {v} < {n}; ++{v})" for d, (v, n) in enumerate(runs)]
    if len(lines) == 1 and len(body) == 1:
        return [lines[0], f"    {body[0]}"]
    if not lines:
        return list(body) if len(body) == 1 else ["{", *(f"    {line}" for line in body), "}"]
    lines[-1] += " {"
    pad = "    " * len(lines)
    return [*lines, *(f"{pad}{line}" for line in body), "    " * (len(lines) - 1) + "}"]
