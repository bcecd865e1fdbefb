"""Credit: how much of the loss at step t reaches the inputs and states of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.flow._run import Run, linearise, shown
from longlag.layers import State
from longlag.results import Result
from longlag.style import HEAT, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECADES = 8  # the picture's colours span so many powers of ten


@dataclass(frozen=True, repr=False)
class Credit(Result):
    """Gradients of the loss at each step with respect to every earlier input and state.

    Attributes:
        inputs: (T, T, B), [t, s] = ‖∂L_t/∂x(s)‖₂; 0 for s > t.
        states: (T, T, B), [t, s] = ‖∂L_t/∂state‖₂, the state that step s reads; 0 for s > t.
    """

    name: str
    inputs: Tensor
    states: Tensor

    def share(self) -> Tensor:
        """(T,) what each lag q contributes: Σ_t ‖∂L_t/∂x(t−q)‖ over the sum of all, mean over sequences."""
        T = len(self.inputs)
        by_lag = torch.stack([self.inputs.diagonal(-q).sum(-1) for q in range(T)])  # (T, B)
        return (by_lag / by_lag.sum(0)).mean(-1)

    def columns(self) -> dict[str, Tensor]:
        T = len(self.inputs)
        t, s = torch.tril_indices(T, T)
        return {
            "loss_step": t,
            "earlier_step": s,
            "lag": t - s,
            "input_gradient": self.inputs.mean(-1)[t, s],
            "state_gradient": self.states.mean(-1)[t, s],
        }

    def plot(self) -> Figure:
        """Two T × T pictures, mean over the sequences; a column is a loss, down the column its way back in time."""
        from matplotlib.colors import LogNorm

        with style():
            figure, axes = new_figure(1, 2, width=7.4, height=3.6)
            pictures = (
                (self.inputs, "Credited to the input x(s)"),
                (self.states, "Credited to the state before step s"),
            )
            top = max(float(values.mean(-1).max()) for values, _ in pictures) or 1.0
            shade = LogNorm(top * 10.0**-DECADES, top)
            image = None
            for axis, (values, title) in zip(axes, pictures):
                grid = values.mean(-1).t()  # [s, t]
                seen = torch.ones_like(grid, dtype=torch.bool).triu()
                grid = torch.where(seen, grid.clamp(min=top * 10.0**-DECADES), torch.nan)
                image = axis.imshow(
                    grid.numpy(), origin="lower", aspect="auto", cmap=HEAT, norm=shade, interpolation="nearest"
                )
                axis.set_title(title)
                axis.set_xlabel("loss at step t")
                axis.grid(False)
            axes[0].set_ylabel("earlier step s")
            axes[1].set_yticklabels([])
            assert image is not None
            figure.colorbar(image, ax=list(axes), label="norm of the gradient of the loss at t", extend="min")
        return figure


def gradient_by_lag(
    layer: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], *, state: State | None = None
) -> Credit:
    """How much of the loss at step t is credited to each earlier input and state.

    Args:
        layer, x, state: as in `error_flow`.
        loss: maps outputs (T, B, O) to losses (T, B), one per step and sequence; a read-out may be part of it.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> layer, target = ll.Elman(2, 5), torch.zeros(30, 3, 5)
    >>> credit = flow.gradient_by_lag(layer, torch.randn(30, 3, 2), lambda y: (y - target).square().sum(-1))
    >>> credit.states.shape, bool((credit.states[9, 10:] == 0).all())  # no loss is credited to a later step
    (torch.Size([30, 30, 3]), True)
    """
    run = linearise("gradient_by_lag", layer, x, state)
    errors = _output_errors(run, loss)
    with torch.no_grad(), few_threads(run.size):
        inputs, states = _sweep(run, errors)
    return Credit(shown(layer), inputs.cpu(), states.cpu())


def _output_errors(run: Run, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """∂L_t/∂y(s), (s, B, O, t)."""
    outputs = run.outputs.detach().requires_grad_()
    losses = loss(outputs)
    wanted = tuple(outputs.shape[:2])
    if not isinstance(losses, Tensor) or losses.shape != wanted:
        got = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"gradient_by_lag: loss must give one value per step and sequence {wanted}, got {got}")
    if not bool(torch.isfinite(losses).all()):
        t = int((~torch.isfinite(losses)).any(-1).nonzero()[0])
        raise ValueError(f"gradient_by_lag: loss must be finite, got NaN or infinity first at step {t}")
    # sequences do not mix, so their losses may be summed
    rows = [torch.autograd.grad(row.sum(), outputs, retain_graph=True)[0] for row in losses.unbind(0)]
    return torch.stack(rows, -1)


def _sweep(run: Run, errors: Tensor) -> tuple[Tensor, Tensor]:
    """One way back through time with the errors of all T losses side by side."""
    T, B = run.x.shape[:2]
    ds = run.states.new_zeros(B, run.size, T)
    inputs, states = run.x.new_zeros(T, T, B), run.x.new_zeros(T, T, B)
    for s in reversed(range(T)):
        ds, dx = run.pull(s, ds, errors[s])  # ∂L_t/∂y(s) joins here; then (B, n, T), [:, :, t] = ∂L_t/∂state
        inputs[:, s], states[:, s] = dx().norm(dim=1).t(), ds.norm(dim=1).t()
    return inputs, states
