"""The constant error carousel of 1997: what the internal state keeps of an error. [LSTM-97 4 CEC]"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longlag.engines import few_threads
from longlag.flow._run import Run, as_layer, linearise, time_step
from longlag.layers import State
from longlag.layers.units import FED_BACK, INPUT, NotLocal, UnitGraph, UnitGroup
from longlag.results import Result
from longlag.style import COLOURS, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Carousel(Result):
    """How much of an error of the internal states s(t) is left q steps earlier; C memory cells.

    Attributes:
        lags: (Q,) 0..t.
        cut: (Q, B, C) = ∂s_j(t)/∂s_j(t−q) when net inputs pass no error back, the rule of 1997: 1, exactly.
        full: (Q, B, C) = the same derivative with nothing cut.
        full_norm: (Q, B) = ‖∂s(t)/∂s(t−q)‖₂ with nothing cut.
        entering: (B, C) = y_og(t) h′(s(t)), the factor of an error that enters from the cell's output at t.
        leaving_cell, leaving_gate: (Q, B, C) = y_ig g′ and g σ′ of step t−q, the factors of an error that leaves into
            the weights of the cell or of the input gate. No other factor scales the error, however large q is.
    """

    lags: Tensor
    cut: Tensor
    full: Tensor
    full_norm: Tensor
    entering: Tensor
    leaving_cell: Tensor
    leaving_gate: Tensor

    def columns(self) -> dict[str, Tensor]:
        Q, B, C = self.cut.shape
        return {
            "lag": self.lags.repeat_interleave(B * C),
            "sequence": torch.arange(B).repeat_interleave(C).repeat(Q),
            "cell": torch.arange(C).repeat(Q * B),
            "with_cuts": self.cut.flatten(),
            "without_cuts": self.full.flatten(),
            "norm_without_cuts": self.full_norm.unsqueeze(-1).expand(Q, B, C).flatten(),
        }

    def plot(self, axes: Axes | None = None) -> Figure:
        """∂s(t)/∂s(t−q) against q, with the cuts of 1997 and without."""
        with style():
            if axes is None:
                _, axes = new_figure()
            assert axes is not None
            values = self.full.flatten(1)
            axes.plot(self.lags, self.cut.flatten(1)[:, 0], color=COLOURS[2], lw=2, label="with the cuts of 1997: 1")
            axes.plot(self.lags, values.median(-1).values, color=COLOURS[0], label="nothing cut (median, range)")
            axes.fill_between(self.lags, values.amin(-1), values.amax(-1), color=COLOURS[0], alpha=0.18, lw=0)
            axes.set_xlim(0, int(self.lags[-1]))
            axes.set_xlabel("lag q (steps)")
            axes.set_ylabel("∂s(t)/∂s(t−q), cell by cell")
            axes.set_title("The constant error carousel")
            axes.legend(loc="best")
        figure = axes.get_figure(root=True)
        assert figure is not None
        return figure


@torch.no_grad()
def carousel(network: nn.Module, x: Tensor, t: int | None = None, *, state: State | None = None) -> Carousel:
    """The derivative of the internal states through time: with the cuts of 1997, and without.

    ∂s(t)/∂s(t−1) = 1 when [y_hid; y_ig; y_og; y_cell] pass no error back through net inputs. [LSTM-97 4 CEC]
    Without cuts s(t−q) also acts through y_cell(t−q) on all that follows.

    Args:
        network: `LSTM97` with at least one block.
        x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I); state: where the run starts.
        t: the step where the error arrives; the last by default.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> found = flow.carousel(ll.LSTM97(2, blocks=2, block_size=2, init_range=0.5), torch.randn(50, 3, 2))
    >>> bool((found.cut == 1).all()), bool((found.full[20] == 1).all())
    (True, False)
    """
    graph, cells = _memory_cells(network)
    run = linearise("carousel", network, x, state)
    t = time_step("carousel", t, run.steps)
    names, sizes = run.spec.names, run.spec.sizes
    start = sum(sizes[: names.index("s")])
    rows = slice(start, start + cells.units)
    ds, full = run.eye()[:, :, rows], []  # (B, n, C): column j is the error of s_j(t)
    with few_threads(run.size):
        partials = _partials(graph, cells, run)
        for q in range(t + 1):
            # s(t−q) = s(t−q−1) + …, so the error of s(t−q), that through y_cell(t−q) included, is what arrives at
            # s(t−q−1) while all that is fed back is constant
            ds = run.pull(t - q, ds)[0]
            full.append(ds[:, rows])
        matrices = torch.stack(full).mT  # (Q, B, C, C): ∂s_j(t)/∂s_m(t−q)
        full_norm = torch.linalg.matrix_norm(matrices, 2)
    kept = partials["s", "s"][: t + 1].flip(0)  # lag 0 first
    cut = torch.cat([torch.ones_like(kept[:1]), kept[:-1].cumprod(0)])  # [LSTM-97 4 CEC]
    return Carousel(
        torch.arange(t + 1),
        cut.cpu(),
        matrices.diagonal(dim1=-2, dim2=-1).cpu(),
        full_norm.cpu(),
        partials["y", "s"][t].cpu(),
        partials["s", "a"][: t + 1].flip(0).cpu(),
        partials["s", "i"][: t + 1].flip(0).cpu(),
    )


def _memory_cells(network: nn.Module) -> tuple[UnitGraph, UnitGroup]:
    """The units of a network under the cuts of 1997, and its memory cells among them."""
    with contextlib.suppress(NotLocal):
        graph = as_layer("carousel", network).local_units(cut=True)
        for group in graph.groups:
            if group.loop == ("s",) and group.cell.jacobian["s", "s"] == 1 and {"i", "a"} <= set(group.cell.gates):
                return graph, group
    name = type(network).__name__
    raise TypeError(f"carousel: cannot analyse {name}: it must be LSTM97 with at least one block")


def _partials(graph: UnitGraph, cells: UnitGroup, run: Run) -> dict[tuple[str, str], Tensor]:
    """Partials of the memory cells along a run, each (T, B, C)."""
    past, fed_back = graph.split(run.spec.unflatten(run.states[:-1].flatten(0, 1)))
    x, (s,), (W, b, _) = run.x.flatten(0, 1), past[cells.name], cells.weights()
    sources = {INPUT: x, FED_BACK: fed_back}
    net = linear(torch.cat([sources[name] for name in cells.reads], -1), W, b)
    shape = (run.steps, -1, cells.units)
    values = cells.cell.partials(*cells.gates(net), s)
    return {key: torch.as_tensor(value).to(s).expand_as(s).view(shape) for key, value in values.items()}
