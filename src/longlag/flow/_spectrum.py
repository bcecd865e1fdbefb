"""Spectral radius and norm of the step Jacobian along a run. [ELMAN 6]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.flow._run import linearise, shown
from longlag.layers import State
from longlag.layers.validation import positive
from longlag.results import Result
from longlag.style import COLOURS, GREY, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Spectrum(Result):
    """Spectral radius and norm of the step Jacobian along a run; both (S, B), at the steps ``times`` (S,)."""

    name: str
    times: Tensor
    radius: Tensor
    norm: Tensor

    def columns(self) -> dict[str, Tensor]:
        B = self.norm.shape[1]
        return {
            "step": self.times.repeat_interleave(B),
            "sequence": torch.arange(B).repeat(len(self.times)),
            "radius": self.radius.flatten(),
            "norm": self.norm.flatten(),
        }

    def plot(self, axes: Axes | None = None) -> Figure:
        with style():
            if axes is None:
                _, axes = new_figure()
            assert axes is not None
            for values, colour, label in (
                (self.norm, COLOURS[0], "largest singular value"),
                (self.radius, COLOURS[1], "spectral radius"),
            ):
                axes.plot(self.times, values.median(-1).values, color=colour, label=label)
                axes.fill_between(self.times, values.amin(-1), values.amax(-1), color=colour, alpha=0.18, lw=0)
            axes.axhline(1, color=GREY, lw=1, zorder=1)
            axes.set_xlabel("step t")
            axes.set_ylabel("of ∂state(t)/∂state(t−1)")
            axes.set_title(f"Step Jacobian of {self.name}")
            axes.legend(loc="best")
        figure = axes.get_figure(root=True)
        assert figure is not None
        return figure


@torch.no_grad()
def spectrum(layer: nn.Module, x: Tensor, *, every: int = 1, state: State | None = None) -> Spectrum:
    """Spectral radius and largest singular value of A(t) = ∂state(t)/∂state(t−1), at every ``every``-th step.

    A radius below 1 does not exclude growth for a while: only the norm does, since A(t) need not be normal. [ELMAN 6]

    Args:
        layer, x, state: as in `error_flow`; every: O(n³) work is done once in so many steps.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> found = flow.spectrum(ll.Elman(2, 5), torch.randn(20, 3, 2))
    >>> found.radius.shape, bool((found.radius <= found.norm + 1e-6).all())
    (torch.Size([20, 3]), True)
    """
    positive("spectrum", "every", every)
    run = linearise("spectrum", layer, x, state)
    if not run.size:
        raise ValueError(f"spectrum: cannot analyse {type(layer).__name__}: it has no state")
    times, radius, norm = torch.arange(0, run.steps, every), [], []
    with few_threads(run.size):
        for t in times.tolist():
            A = run.jacobian(t)
            radius.append(torch.linalg.eigvals(A).abs().amax(-1))
            norm.append(torch.linalg.matrix_norm(A, 2))
    return Spectrum(shown(layer), times, torch.stack(radius).cpu(), torch.stack(norm).cpu())
