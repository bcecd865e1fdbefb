"""Forgetting: local-feedback networks lose old inputs at a known rate. [LF-92 3]

|∂y_i(t)/∂x_k(t−q)| is bounded by a sum over paths of |weights| · (largest slope of each unit) · (loop gain)^lag.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.flow import _local
from longlag.flow._run import linearise, shown, time_step
from longlag.layers import Layer
from longlag.results import Result
from longlag.style import COLOURS, GREY, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Forgetting(Result):
    """Influence of past inputs on the output at step t, measured and bounded.

    Attributes:
        lags: (Q,) 0..t.
        measured: (Q, B, O, I) = |∂y_i(t)/∂x_k(t−q)|.
        bound: (Q, O, I), holds for every input and every t.
        window_bound: (Q, O): by how much y may change if only the last q + 1 inputs are shown to a network at rest.
        units: the network's groups of units, with their gains and the check |u| < 1, |v| < 2 of each unit.
    """

    name: str
    lags: Tensor
    measured: Tensor
    bound: Tensor
    window_bound: Tensor
    units: tuple[_local.Units, ...]
    _layer: Layer = field(repr=False)
    _x: Tensor = field(repr=False)  # (T, B, I), up to and including step t

    @property
    def gain(self) -> float:
        """ρ = max(max|u|, max|v|/2): what is left of an influence per step, at most."""
        return max((float(group.gain.max()) for group in self.units), default=0.0)

    @property
    def forgets(self) -> bool:
        """Whether every loop satisfies its condition: then all influence fades."""
        return all(bool(group.forgets.all()) for group in self.units)

    def horizon(self, epsilon: float = 1e-3) -> float:
        """The lag from which no input moves any output by ``epsilon`` or more, per unit of input; ∞ beyond the run."""
        return _first_below(self.bound.amax((1, 2)), epsilon)

    def window(self, epsilon: float = 1e-3) -> float:
        """How many of the last inputs determine the output up to ``epsilon``; ∞ if more than the run has."""
        return _first_below(self.window_bound.amax(-1), epsilon) + 1

    def window_change(self, steps: int) -> float:
        """Largest change of y(t) if the network, at rest, sees only the last ``steps`` inputs."""
        if not isinstance(steps, int) or not 1 <= steps <= len(self._x):
            raise ValueError(f"Forgetting: steps must be an int of 1..{len(self._x)}, got {steps!r}")
        return float(self._window_changes(torch.tensor([steps])))

    @torch.no_grad()
    def _window_changes(self, steps: Tensor) -> Tensor:
        """`window_change` of several windows (W,) in one run: a copy of the input for each, reset where it starts."""
        T, B, _ = self._x.shape
        copies = self._x.repeat(1, len(steps) + 1, 1)  # the first copy runs through
        reset = torch.zeros(T, len(steps) + 1, dtype=torch.bool)
        reset[T - steps, torch.arange(len(steps)) + 1] = True
        reset = reset.repeat_interleave(B, 1).to(copies.device)
        layer = self._layer.for_analysis()
        if layer.batch_first:
            y = layer(copies.transpose(0, 1), reset=reset.t())[0][:, -1]
        else:
            y = layer(copies, reset=reset)[0][-1]
        y = y.unflatten(0, (-1, B))
        return (y[1:] - y[0]).abs().amax((1, 2)).cpu()

    def columns(self) -> dict[str, Tensor]:
        return {
            "lag": self.lags,
            "largest_measured": self.measured.amax((1, 2, 3)),
            "largest_bound": self.bound.amax((1, 2)),
            "largest_window_bound": self.window_bound.amax(-1),
        }

    def plot(self, epsilon: float = 1e-3) -> Figure:
        """Measured influence and its bound, the horizon, and the effect of a finite window."""
        with style():
            figure, (left, right) = new_figure(1, 2, width=7.6, height=3.5)
            measured = self.measured.flatten(1)
            left.plot(self.lags, measured.amax(-1), color=COLOURS[0], label="measured (largest)")
            left.plot(self.lags, self.bound.amax((1, 2)), color=COLOURS[1], ls=(0, (5, 2)), label="bound")
            _log_axes(left, self.lags, [measured.amax(-1), self.bound.amax((1, 2))])
            left.set_title("Influence |∂y(t)/∂x(t−q)|")
            left.set_xlabel("lag q (steps)")
            _mark(left, self.horizon(epsilon), epsilon, "horizon")
            windows = torch.linspace(1, len(self._x), min(len(self._x), 60)).round().long()
            shown = torch.unique(windows)[:-1]  # a window over all inputs changes nothing
            change = self._window_changes(shown)
            right.plot(shown, change, color=COLOURS[0], label="measured")
            right.plot(self.lags + 1, self.window_bound.amax(-1), color=COLOURS[1], ls=(0, (5, 2)), label="bound")
            _log_axes(right, self.lags + 1, [change, self.window_bound.amax(-1)])
            right.set_title("Change of y(t), last Q inputs only")
            right.set_xlabel("window Q (steps)")
            _mark(right, self.window(epsilon), epsilon, "window")
            for axes in (left, right):
                axes.legend(loc="upper right")
        return figure


def _log_axes(axes: Any, x: Tensor, lines: list[Tensor]) -> None:
    values = torch.cat([line[(line > 1e-15) & line.isfinite()].double() for line in lines])
    axes.set_yscale("log")
    if len(values):
        axes.set_ylim(float(values.min()) / 2, float(values.max()) * 8)
    axes.set_xlim(0, int(x[-1]))


def _mark(axes: Any, where: float, epsilon: float, word: str) -> None:
    text: dict[str, Any] = {"textcoords": "offset points", "color": GREY, "fontsize": 8}
    axes.axhline(epsilon, color=GREY, lw=0.8, ls=(0, (1, 2)))
    axes.annotate(f"ε = {epsilon:g}", (0, epsilon), (4, 2), **text)
    if math.isfinite(where):
        axes.plot([where, where], [axes.get_ylim()[0], epsilon], color=GREY, lw=0.8)
        axes.annotate(f"{word} {where:.0f}", (where, axes.get_ylim()[0]), (-4, 4), ha="right", **text)


@torch.no_grad()
def forgetting(network: nn.Module, x: Tensor, t: int | None = None) -> Forgetting:
    """How fast a local-feedback network forgets: the measured influence of old inputs, and the proven bound.

    One hidden layer: |∂y_i(t)/∂x_k(t−q)| ≤ ¼ Σ_j |w_out,ij w_jk| ρ_jᵠ with ρ = |u| or |v|/2 [LF-92 3]; deeper
    networks by the same sum over paths.

    Args:
        network: `LocalFeedbackNetwork` or `LocalFeedback`, without norm.
        x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I); the run starts from rest.
        t: the step whose output is explained; the last by default.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> net = ll.LocalFeedbackNetwork(2, hidden=(0, 3, 3), output=(1, 0, 0), constrain="forget", time_constant=5)
    >>> found = flow.forgetting(net, torch.randn(200, 4, 2))
    >>> found.forgets, bool((found.measured.amax(1) <= found.bound).all())
    (True, True)
    >>> Q = int(found.window(1e-3))  # so many inputs are all the network remembers, up to 1e-3
    >>> found.window_change(Q) < 1e-3
    True
    """
    layer, units = _local.read("forgetting", network)
    run = linearise("forgetting", layer, x)
    t = time_step("forgetting", t, run.steps)
    _, B, O = run.outputs.shape
    ds, dy = run.states.new_zeros(B, run.size, O), torch.eye(O).to(run.x).expand(B, -1, -1)
    measured, seen = [], run.x[: t + 1]
    with few_threads(run.size):
        for q in range(t + 1):
            ds, dx = run.pull(t - q, ds, dy if q == 0 else None)
            measured.append(dx().abs().mT)
        bound, window_bound = _local.influence(units, t + 1), _local.window(units, seen)
    return Forgetting(
        shown(network),
        torch.arange(t + 1),
        torch.stack(measured).cpu(),
        bound.cpu(),
        window_bound.cpu(),
        units.groups,
        layer,
        seen,
    )


def _first_below(values: Tensor, epsilon: float) -> float:
    """The index from which all values are below epsilon; ∞ if the last is not."""
    if not epsilon > 0:
        raise ValueError(f"Forgetting: epsilon must be positive, got {epsilon!r}")
    above = (values >= epsilon).nonzero()
    first = int(above[-1]) + 1 if len(above) else 0
    return float(first) if first < len(values) else math.inf
