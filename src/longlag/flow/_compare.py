"""Several error flows on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longlag.flow._carousel import Carousel
from longlag.flow._error_flow import ErrorFlow, draw_norms, error_flow, norm_axes
from longlag.results import Result
from longlag.style import COLOURS, DASHES, label_lines, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Error flows by name."""

    flows: dict[str, ErrorFlow]
    title: str

    def columns(self) -> dict[str, list[Any]]:
        tables = {name: flow.columns() for name, flow in self.flows.items()}
        names = [name for name, table in tables.items() for _ in table["layer"]]
        numbers: dict[str, list[Any]] = {"name": names}
        for column in next(iter(tables.values())):
            pieces = [table[column] for table in tables.values()]
            numbers[column] = [v for p in pieces for v in (p.tolist() if isinstance(p, Tensor) else p)]
        return numbers

    def plot(self) -> Figure:
        """Median norms with the range over sequences, one colour per name."""
        with style():
            figure, axes = new_figure(width=7.2, height=4.0)
            for i, (name, flow) in enumerate(self.flows.items()):
                draw_norms(axes, flow, COLOURS[i % 7], DASHES[i % 7], name)
            norm_axes(axes, list(self.flows.values()))
            axes.set_title(self.title)
            figure.canvas.draw()  # places the axes, which the labels need
            low = axes.get_ylim()[0]
            ends = [max(float(flow.norm[-1].median()), low) for flow in self.flows.values()]
            label_lines(axes, [(y, n, COLOURS[i % 7]) for i, (n, y) in enumerate(zip(self.flows, ends))])
        return figure


def compare(
    flows: Mapping[str, ErrorFlow | Carousel | nn.Module], x: Tensor | None = None, *, title: str = "Error flow"
) -> Comparison:
    """Collect error flows for one picture: computed here for layers on the same input, or given.

    Args:
        flows: name -> a layer, whose `error_flow` over x is taken; an `ErrorFlow`; or a `Carousel`, which shows the
            internal states under the cuts of 1997.
        x: the input of the layers, as in `error_flow`.
        title: of the picture.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> x, lstm97 = torch.randn(30, 2, 3), ll.LSTM97(3, 2)
    >>> found = flow.compare({"Elman": ll.Elman(3, 8), "LSTM-97": flow.carousel(lstm97, x)}, x)
    >>> found.flows["Elman"].regime, found.flows["LSTM-97"].regime
    (['vanishing', 'vanishing'], ['kept', 'kept'])
    """
    if not isinstance(flows, Mapping):
        expected = "a dictionary of names and layers, ErrorFlows or Carousels"
        raise TypeError(f"compare: flows must be {expected}, got {type(flows).__name__}")
    if not flows:
        raise ValueError("compare: flows must name at least one error flow, got none")
    if x is not None and not isinstance(x, Tensor):
        raise TypeError(f"compare: x must be a tensor, got {type(x).__name__}")
    return Comparison({name: _as_flow(name, flow, x) for name, flow in flows.items()}, title)


def _as_flow(name: str, flow: ErrorFlow | Carousel | nn.Module, x: Tensor | None) -> ErrorFlow:
    if isinstance(flow, ErrorFlow):
        return flow
    if isinstance(flow, Carousel):
        log = flow.cut.abs().double().log().sort(-1, descending=True).values  # ∂s/∂s is diagonal under the cuts
        return ErrorFlow(name, int(flow.lags[-1]), flow.lags, log, torch.zeros_like(log[..., 0]), "1", 0.0)
    if not isinstance(flow, nn.Module):
        expected = "a layer, an ErrorFlow or a Carousel"
        raise TypeError(f"compare: flows[{name!r}] must be {expected}, got {type(flow).__name__}")
    if x is None:
        raise TypeError(f"compare: x must be given, since flows[{name!r}] is a layer ({type(flow).__name__}), got None")
    return error_flow(flow, x)
