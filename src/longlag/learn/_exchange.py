"""How a rule's trace in Python and its memory in the compiled engine correspond.

For every rule of the engine a function that returns the trace's tensors with the places of their numbers in the
engine's memory of the samples. DENSE rules add theirs to `LINKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from longlag.engines.cpu.realtime.layout import Layout
from longlag.engines.cpu.realtime.stream import Stream
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


def blocks(values: Values, graph: UnitGraph, stream: Stream) -> Iterator[tuple[Tensor, Tensor]]:
    """E of the rule "rtrl": the tensors of the trace, (B, S, H, width), with those of the engine's memory."""
    held = stream.blocks
    assert held is not None
    group, z = graph.groups[0], stream.layout.sizes[held.k]
    cell, H, B, I = group.cell, group.units, stream.batch, z.inputs
    S, new = len(cell.fed_back) * H, stream.samples.new_zeros
    pieces = {
        "weight_ih_l0": (cell.input_gates, slice(0, I)),
        "weight_hh_l0": (cell.recurrent_gates, slice(I + 1, I + 1 + H)),
        **({"bias_l0": (cell.gates, slice(I, I + 1))} if group.biased else {}),
        **{f"{param}_l0": ((param,), slice(I, I + 1)) for param in cell.params},
    }
    after = values["after"]
    for key, (names, span) in pieces.items():
        width = span.stop - span.start
        if key not in after:
            after[key] = new(B, S, len(names) * H * width)
        for k, name in enumerate(names):
            yield after[key].view(B, S, len(names), H, width)[:, :, k], held.influence(stream.samples, name, span)


LINKS: dict[str, Callable[[Values, UnitGraph, Layout, int], Linked]] = {"traces": traces}


def move(rule: str, values: Values, graph: UnitGraph, stream: Stream, out: bool) -> bool:
    """Copy a trace into the engine's memory, or ``out`` of it; whether any of its numbers is not 0."""
    if rule in LINKS:
        links = list(LINKS[rule](values, graph, stream.layout, stream.batch))  # must live as long as the transfer
        stream.transfer([stream.sample_job(tensor, pairs) for tensor, pairs in links], out)
        return any(bool(tensor.any()) for tensor, _ in links)
    pairs = list(blocks(values, graph, stream))
    for tensor, held in pairs:
        (tensor if out else held).copy_(held if out else tensor)
    met = any(bool(tensor.any()) for tensor, _ in pairs)
    if not out:
        stream.begin(met)
    return met
