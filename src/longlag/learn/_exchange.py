"""How a rule's trace in Python and its memory in the compiled engine correspond.

For every rule of the engine a function that returns the trace's tensors with the places of their numbers in the
engine's memory of the samples. DENSE rules add theirs to `LINKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from longlag.engines.cpu.realtime.layout import Layout
from longlag.layers.units import UnitGraph
from longlag.learn._state import Values

Linked = Iterator[tuple[Tensor, Tensor]]  # a tensor of the trace, and pairs (place, element)


def traces(values: Values, graph: UnitGraph, layout: Layout, batch: int) -> Linked:
    """E of the rule "traces": (gate or param, tile, part, source, lane) there, (gate, B, H, width) here."""
    lanes = layout.lanes
    for k, group in enumerate(graph.groups):
        own = values["own"].get(group.name)
        if own is None:
            continue
        z, cell, described = layout.sizes[k], group.cell, layout.network.groups[k]
        parts, traced = len(described.loop), described.traced
        units = torch.arange(z.units)
        samples = torch.arange(batch).view(-1, 1, 1) * layout.sample + z.E
        for q, part in enumerate(described.loop):
            E = own["weights"][part]  # (gates, B, H, width)
            for gate in traced:
                at = traced.index(gate) * z.tiles + units // lanes
                sources = torch.arange(z.D)
                place = ((at.unsqueeze(-1) * parts + q) * z.D + sources) * lanes + (units % lanes).unsqueeze(-1)
                first = group.traced.index(gate) * E[0].numel()
                column = sources.clamp(max=E.shape[-1] - 1)  # a second bias has the same trace
                rows = torch.arange(batch).view(-1, 1, 1) * z.units + units.view(1, -1, 1)
                element = first + rows * E.shape[-1] + column
                yield E, torch.stack([(samples + place).flatten(), element.flatten()], 1)
            F = own["params"][part]  # (params, B, H, 1)
            for p in range(len(cell.params)):
                at = len(traced) * z.tiles * parts * z.D + (p * z.tiles + units // lanes) * parts + q
                place = samples.squeeze(-1) + at * lanes + units % lanes
                element = (p * batch + torch.arange(batch).unsqueeze(-1)) * z.units + units
                yield F, torch.stack([place.flatten(), element.flatten()], 1)


LINKS: dict[str, Callable[[Values, UnitGraph, Layout, int], Linked]] = {"traces": traces}


def nothing_met(values: Any) -> bool:
    """Whether all traces are 0."""
    tensors = values.values() if isinstance(values, dict) else [values]
    return all(nothing_met(v) if isinstance(v, dict) else not bool(v.any()) for v in tensors)
