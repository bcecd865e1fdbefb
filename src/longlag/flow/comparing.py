"""Several error flows on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.flow._result import Result
from longlag.flow._style import COLOURS, DASHES, label_lines, new_figure, style
from longlag.flow.cec import Carousel
from longlag.flow.error import ErrorFlow, draw_norms, norm_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
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


def compare(flows: Mapping[str, ErrorFlow | Carousel], title: str = "Error flow") -> Comparison:
    """Put error flows beside each other.

    Args:
        flows: name -> `ErrorFlow`, or `Carousel`, which stands for the internal states under the cuts of 1997.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> x, lstm97 = torch.randn(30, 2, 3), ll.LSTM97(3, 2)
    >>> found = flow.compare({"Elman": flow.error_flow(ll.Elman(3, 8), x), "LSTM-97": flow.carousel(lstm97, x)})
    >>> found.flows["LSTM-97"].regime
    ['kept', 'kept']
    """
    if not flows:
        raise ValueError("compare: flows must name at least one error flow, got none")
    return Comparison({name: _as_flow(name, flow) for name, flow in flows.items()}, title)


def _as_flow(name: str, flow: ErrorFlow | Carousel) -> ErrorFlow:
    if isinstance(flow, ErrorFlow):
        return flow
    log = flow.cut.abs().double().log().sort(-1, descending=True).values  # ∂s/∂s is diagonal under the cuts
    return ErrorFlow(name, int(flow.lags[-1]), flow.lags, log, torch.zeros_like(log[..., 0]), "1", 0.0)
