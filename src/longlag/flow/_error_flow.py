"""Error flow: how large ∂state(t)/∂state(t−q) is, lag by lag. [ELMAN 6] [RNN-97 1.1]"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.flow import _krylov
from longlag.flow._run import Run, linearise, shown, time_step
from longlag.layers import Layer, State
from longlag.layers.validation import one_of, positive
from longlag.results import Result
from longlag.style import COLOURS, GREY, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 1e-12  # pictures end here: nothing is learned from smaller errors


@dataclass(frozen=True, repr=False)
class ErrorFlow(Result):
    """Norms of ∂state(t)/∂state(t−q), as logarithms, since products over 1000 steps exceed every float format.

    Attributes:
        lags: (Q,) the lags q; state(t−q) is the state after step t−q, and before the first step for q = t + 1.
        log_singular: (Q, B, r) natural logs of the singular values, largest first; r = n (exact) or 1 (probe).
            Those below about 1e-16 of the largest are rounding.
        log_bound: (Q, B) natural logs of an upper bound on the norm; ``bound_is`` is its formula.
        error: the largest relative underestimate of a norm, which holds for each number with probability 0.999;
            0 for exact.
    """

    name: str
    t: int
    lags: Tensor
    log_singular: Tensor
    log_bound: Tensor
    bound_is: str
    error: float

    @property
    def norm(self) -> Tensor:
        """(Q, B) spectral norms."""
        return self.log_singular[..., 0].exp()

    @property
    def bound(self) -> Tensor:
        """(Q, B) upper bounds on `norm`."""
        return self.log_bound.exp()

    @property
    def rate(self) -> Tensor:
        """(Q, B) geometric mean of the growth per step, norm^(1/q); NaN at q = 0."""
        return (self.log_singular[..., 0] / self.lags.unsqueeze(-1)).exp()

    @property
    def regime(self) -> list[str]:
        """For each sequence, by the rate at the longest lag: vanishing, exploding, or kept (within 0.1 % of 1)."""
        rates = self.rate[-1].tolist()
        return ["kept" if abs(r - 1) < 1e-3 else "vanishing" if r < 1 else "exploding" for r in rates]

    def columns(self) -> dict[str, Tensor | list[Any]]:
        B = self.log_bound.shape[1]
        long = {
            "lag": self.lags.repeat_interleave(B),
            "sequence": torch.arange(B).repeat(len(self.lags)),
            "log10_norm": self.log_singular[..., 0].flatten() / math.log(10),
            "norm": self.norm.flatten(),
            "log10_bound": self.log_bound.flatten() / math.log(10),
        }
        return {"layer": [self.name] * len(long["lag"]), **long}

    def plot(self, axes: Axes | None = None) -> Figure:
        """Norms against lags, median and range over the sequences, between vanishing and exploding."""
        with style():
            if axes is None:
                _, axes = new_figure()
            assert axes is not None
            draw_norms(axes, self, COLOURS[0], "-", "norm (median, range)")
            bound = self.bound.amax(-1)
            if bool(torch.isfinite(bound).all()):
                axes.plot(self.lags, bound, color=COLOURS[1], ls=(0, (5, 2)), lw=1.2, label=f"bound {self.bound_is}")
            norm_axes(axes, [self])
            axes.legend(loc="right")
            axes.set_title(f"Error flow of {self.name}")
        figure = axes.get_figure(root=True)
        assert figure is not None
        return figure


def draw_norms(axes: Axes, flow: ErrorFlow, colour: str, dash: Any, label: str) -> None:
    """The norms of one `ErrorFlow`, as a line (median over the sequences) and a band (their range)."""
    norm = flow.norm
    axes.plot(flow.lags, norm.median(-1).values, color=colour, ls=dash, label=label, zorder=3)
    if norm.shape[1] > 1:
        axes.fill_between(flow.lags, norm.amin(-1), norm.amax(-1), color=colour, alpha=0.18, lw=0)


def norm_axes(axes: Axes, flows: list[ErrorFlow]) -> None:
    """Logarithmic axes with the line that parts vanishing from exploding."""
    norms = torch.cat([flow.norm.flatten() for flow in flows])
    norms = norms[(norms > 0) & norms.isfinite()]
    low, high = (float(norms.min()), float(norms.max())) if len(norms) else (1.0, 1.0)
    axes.set_yscale("log")
    axes.set_ylim(max(low / 3, SHOWN), max(high, 1.0) * 30)
    last = max(int(flow.lags[-1]) for flow in flows)
    axes.set_xlim(0, last)
    axes.axhline(1, color=GREY, lw=1, zorder=1)
    text: dict[str, Any] = {"color": GREY, "fontsize": 8, "transform": axes.transAxes}
    axes.text(0.012, 0.985, "↑ exploding", va="top", **text)
    axes.text(0.012, 0.02, "↓ vanishing", va="bottom", **text)
    axes.set_xlabel("lag q (steps)")
    axes.set_ylabel("‖∂state(t)/∂state(t−q)‖₂")


@torch.no_grad()
def error_flow(
    layer: nn.Module,
    x: Tensor,
    t: int | None = None,
    *,
    method: str = "exact",
    lags: Iterable[int] | None = None,
    state: State | None = None,
    probes: int = 4,
    tolerance: float = 0.1,
    seed: int = 0,
) -> ErrorFlow:
    """How an error at step t shrinks or grows on its way back: ‖A(t) A(t−1) … A(t−q+1)‖₂ for every lag q.

    A(t) = ∂state(t)/∂state(t−1), of the whole state, from the cell's derived partials. [ELMAN 6 J]

    Args:
        layer: a longlag layer, or ``torch.nn.RNN``, ``LSTM`` or ``GRU``; one direction. Dropout is off.
        x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I).
        t: the step where the error starts; the last by default.
        method: ``"exact"`` multiplies the Jacobians, O(n³) a step and lag, and gives all singular values;
            ``"probe"`` uses matrix-vector products only, for large layers, and gives the norm alone, never too
            large and too small by at most ``tolerance`` with probability 0.999.
        lags: which lags q of 0..t+1; by default all of them (exact), or about 32, evenly spread on a
            logarithmic scale (probe).
        state: where the run starts.
        probes, tolerance, seed: number of random starting vectors, relative error, and where the vectors come
            from, for ``"probe"``.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> found = flow.error_flow(ll.LocalFeedback(2, 1, feedback="net"), torch.randn(50, 1, 2))
    >>> u = found.norm[1, 0]  # a local loop of gain u: after q steps uᵠ is left, and that is its bound
    >>> torch.allclose(found.norm[:, 0], u ** found.lags), torch.allclose(found.norm, found.bound)
    (True, True)
    """
    one_of("error_flow", "method", method, ("exact", "probe"))
    positive("error_flow", "probes", probes)
    if not 0 < tolerance < 1:
        raise ValueError(f"error_flow: tolerance must be a number in (0, 1), got {tolerance!r}")
    run = linearise("error_flow", layer, x, state)
    name = type(layer).__name__
    if not run.size:
        raise ValueError(f"error_flow: cannot analyse {name}: it has no state, nothing flows from step to step")
    t = time_step("error_flow", t, run.steps)
    chosen = _lags(lags, t, method)
    with few_threads(run.size):
        if method == "exact":
            log_singular, log_steps = _exact(run, t, chosen)
        else:
            log_singular, log_steps = _probe(run, t, chosen, probes, tolerance, seed), None
        log_bound, bound_is = _bound(run.layer, chosen, log_singular, log_steps)
    error = 0.0 if method == "exact" else tolerance
    return ErrorFlow(shown(layer), t, torch.tensor(chosen), log_singular.cpu(), log_bound.cpu(), bound_is, error)


def _lags(lags: Iterable[int] | None, t: int, method: str) -> list[int]:
    if lags is None and method == "exact":
        return list(range(t + 2))
    if lags is None:
        return sorted({0, *(round(math.exp(i / 31 * math.log(t + 1))) for i in range(32))})
    chosen = sorted(set(lags))
    if not chosen or chosen[0] < 0 or chosen[-1] > t + 1:
        raise ValueError(f"error_flow: lags must lie in 0..{t + 1}, got {chosen}")
    return chosen


def _exact(run: Run, t: int, lags: list[int]) -> tuple[Tensor, Tensor]:
    """log singular values (Q, B, n) of the products, and log Π ‖A‖ (Q, B) of their factors."""
    P, log = run.eye(), torch.zeros(run.states.shape[1], dtype=torch.float64, device=run.states.device)
    log_steps = log
    singular, factors = [], []
    for q in range(lags[-1] + 1):
        if q:
            A = run.jacobian(t - q + 1)
            P, log_steps = P @ A, log_steps + torch.linalg.matrix_norm(A, 2).double().log()  # [ELMAN 6 J]
            P, scale = _krylov.rescale(P, (-2, -1))
            log = log + scale.flatten()
        if q in lags:
            singular.append(torch.linalg.svdvals(P).double().log() + log[:, None])
            factors.append(log_steps)
    return torch.stack(singular), torch.stack(factors)


def _probe(run: Run, t: int, lags: list[int], probes: int, tolerance: float, seed: int) -> Tensor:
    some = [q for q in lags if q]
    found = torch.zeros(len(lags) - len(some), run.states.shape[1]).to(run.states.device).double()  # ‖I‖ = e⁰ at lag 0
    if some:
        found = torch.cat([found, _krylov.log_norms(run, t, some, probes, tolerance, seed)])
    return found.unsqueeze(-1)


def _bound(layer: Layer, lags: list[int], log_singular: Tensor, log_steps: Tensor | None) -> tuple[Tensor, str]:
    """From the weights alone where theory gives such a bound, else from the norms of the run's own factors."""
    found = layer.gain_bound()
    if found is not None:
        log = math.log(found[0]) if found[0] else -math.inf
        rows = torch.tensor([q * log if q else 0.0 for q in lags], dtype=log_singular.dtype)
        return rows.unsqueeze(-1).expand(log_singular.shape[:2]), found[1]
    if log_steps is not None:
        return log_steps, "Π ‖A‖ along the run"
    return torch.full_like(log_singular[..., 0], math.inf), "none: the weights alone give none"
