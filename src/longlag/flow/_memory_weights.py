"""Memory expansion of the forget-gate LSTM: a memory cell is a weighted sum of what was written. [LSTM-FG 25.26]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from longlag.flow._run import as_layer, linearise, time_step
from longlag.layers import State
from longlag.results import Result
from longlag.style import COLOURS, HEAT, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class MemoryWeights(Result):
    """c(t) = Σ_k w_k ⊙ g_k + carried, w_k = i_k ⊙ f_{k+1} ⊙ … ⊙ f_t.

    Attributes:
        log_weights: (t + 1, B, H) natural logs of w_k; k counts steps from 0.
        written: (t + 1, B, H) g_k = tanh of the candidate's net input: the value that step k offered.
        carried: (B, H) f_0 ⊙ … ⊙ f_t ⊙ c before the first step.
        state: (B, H) c(t) of the run itself.
    """

    t: int
    log_weights: Tensor
    written: Tensor
    carried: Tensor
    state: Tensor

    @property
    def weights(self) -> Tensor:
        """(t + 1, B, H) w_k, each in (0, 1)."""
        return self.log_weights.exp()

    @property
    def contributions(self) -> Tensor:
        """(t + 1, B, H) w_k ⊙ g_k: with ``carried`` they sum to c(t)."""
        return self.weights * self.written  # [LSTM-FG 25.26]

    @property
    def age(self) -> Tensor:
        """(B, H) mean age, in steps, of a cell's content, weighted by |w_k g_k|."""
        share = self.contributions.abs()
        ages = torch.arange(self.t, -1, -1, dtype=share.dtype)[:, None, None]
        return (ages * share).sum(0) / share.sum(0).clamp(min=torch.finfo(share.dtype).tiny)

    def columns(self) -> dict[str, Tensor]:
        K, B, H = self.log_weights.shape
        return {
            "step": torch.arange(K).repeat_interleave(B * H),
            "sequence": torch.arange(B).repeat_interleave(H).repeat(K),
            "cell": torch.arange(H).repeat(K * B),
            "weight": self.weights.flatten(),
            "written": self.written.flatten(),
            "contribution": self.contributions.flatten(),
        }

    def plot(self, sequence: int = 0, marks: Iterable[int] = ()) -> Figure:
        """What each memory cell holds at t, the oldest memories at the top: w_k, and w_k ⊙ g_k.

        marks: steps to point at.
        """
        with style():
            figure, axes = new_figure(1, 2, width=7.8, height=3.6)
            order = self.age[sequence].argsort()
            pictures = (
                (self.weights, "weight wₖ: how much of step k is kept", HEAT, 0.0),
                (self.contributions, "wₖ·gₖ: what it contributes to c(t)", "PuOr", -1.0),
            )
            for axis, (values, title, colours, least) in zip(axes, pictures):
                grid = values[:, sequence, order].t()
                high = float(grid.abs().max())
                low = least * high
                image = axis.imshow(
                    grid.numpy(),
                    aspect="auto",
                    cmap=colours,
                    vmin=low,
                    vmax=high,
                    origin="lower",
                    interpolation="nearest",
                )
                figure.colorbar(image, ax=axis, shrink=0.95, pad=0.02)
                axis.set_title(title)
                axis.set_xlabel("step k that wrote")
                if len(order) <= 24:  # more would not be legible
                    axis.set_yticks(range(len(order)), order.tolist())
                axis.grid(False)
                for k in marks:
                    axis.plot(
                        [k], [-0.02], "^", color=COLOURS[1], ms=6, clip_on=False, transform=axis.get_xaxis_transform()
                    )
            axes[0].set_ylabel("memory cell, oldest content on top")
        return figure


@torch.no_grad()
def memory_weights(
    lstm: nn.Module, x: Tensor, t: int | None = None, *, level: int = 0, state: State | None = None
) -> MemoryWeights:
    """Which past steps each memory cell of an LSTM is made of at step t.

    c(t) = Σ_{k≤t} w_k ⊙ g_k + (Π_{j≤t} f_j) ⊙ c(−1), w_k = i_k ⊙ Π_{k<j≤t} f_j [LSTM-FG 25.26]

    Args:
        lstm: `LSTM` or ``torch.nn.LSTM``, one direction.
        x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I); state: where the run starts.
        t: the step whose memory is explained, the last by default; level: of a stack.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> memory = flow.memory_weights(ll.LSTM(2, 4), torch.randn(30, 3, 2))
    >>> torch.allclose(memory.contributions.sum(0) + memory.carried, memory.state)
    True
    """
    from longlag import cells

    layer = as_layer("memory_weights", lstm)
    if layer.cell is None or layer.cell.key != cells.lstm.key:
        raise TypeError(
            f"memory_weights: cannot analyse {type(lstm).__name__}: its cells must be the forget-gate LSTM's"
        )
    levels, _ = layer.state_spec.shapes["c"]
    if not isinstance(level, int) or not 0 <= level < levels:
        raise ValueError(f"memory_weights: level must be an int of 0..{levels - 1}, got {level!r}")
    run = linearise("memory_weights", layer, x, state)
    t = time_step("memory_weights", t, run.steps)
    gates = {name: net.unflatten(0, (run.steps, -1))[: t + 1] for name, net in run.linear.net_inputs[level].items()}
    kept = logsigmoid(gates["f"]).flip(0).cumsum(0).flip(0)  # Σ_{j≥k} log f_j, up to t
    after = torch.cat([kept[1:], torch.zeros_like(kept[:1])])  # Σ_{j>k}
    rows = run.spec.unflatten(run.states.flatten(0, 1))[run.spec.names.index("c")]  # (L, (T + 1)·B, H)
    c = rows[level].unflatten(0, (run.steps + 1, -1))  # (T + 1, B, H)
    return MemoryWeights(
        t,
        (logsigmoid(gates["i"]) + after).cpu(),  # log w_k [LSTM-FG 25.26 w]
        torch.tanh(gates["g"]).cpu(),
        (kept[0].exp() * c[0]).cpu(),
        c[t + 1].cpu(),
    )
