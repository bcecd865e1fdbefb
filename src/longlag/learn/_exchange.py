"""How a rule's trace in Python and its memory in the compiled engine correspond.

For every rule of the engine a function that returns the trace's tensors with the places of their numbers in the
engine's memory of the samples, or pieces of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from longlag.engines.cpu.realtime.layout import Layout
from longlag.engines.cpu.realtime.stream import Stream
from longlag.layers.units import FED_BACK, INPUT, UnitGraph, UnitGroup
from longlag.learn._state import Values

Linked = Iterator[tuple[Tensor, Tensor]]  # a tensor of the trace, and pairs (place, element)
Views = Iterator[tuple[Tensor, Tensor]]  # parts of the trace's tensors, and of the engine's memory, of equal shape


def traces(values: Values, graph: UnitGraph, layout: Layout, batch: int) -> Linked:
    """E of the rule "traces": (gate or param, tile, part, source, lane) there, (gate, B, H, width) here."""
    for k, group in enumerate(graph.groups):
        own = values["own"].get(group.name)
        if own is None:
            continue
        lanes = layout.lanes[k]
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


def blocks(values: Values, graph: UnitGraph, stream: Stream) -> Views:
    """E of the rule "rtrl": (gate or param, unit, S, source) there, (B, S, gate, H, width) here."""
    held = stream.blocks
    assert held is not None
    z, H = stream.layout.sizes[held.k], graph.groups[0].units
    S, order = len(graph.groups[0].cell.fed_back) * H, {INPUT: 0, "1": z.inputs, FED_BACK: z.inputs + 1}
    for key, names, piece, width in _pieces(graph.groups[0], z.inputs):
        E = values["after"].setdefault(key, stream.samples.new_zeros(stream.batch, S, len(names) * H * width))
        for k, name in enumerate(names):
            there = held.influence(stream.samples, name, slice(order[piece], order[piece] + width))
            yield E.view(stream.batch, S, len(names), H, width)[:, :, k], there


def own_units(values: Values, graph: UnitGraph, stream: Stream) -> Views:
    """Ẽ of the rule "snap": (gate or param, tile, part, source, lane) there, (B, gate · H, m, width) here.

    m counts the parts of a unit that some row of the block reaches; rows that reach fewer are padded.
    """
    group, lanes, B = graph.groups[0], stream.layout.lanes[0], stream.batch
    cell, z, H = group.cell, stream.layout.sizes[0], group.units
    parts, G = len(cell.fed_back), len(cell.gates)
    size = G * z.tiles * parts * z.D * lanes
    of_gates = stream.samples[:, z.E : z.E + size].view(B, G, z.tiles, parts, z.D, lanes)
    of_params = stream.samples[:, z.E + size :][:, : len(cell.params) * z.tiles * parts * lanes]
    of_params = of_params.view(B, len(cell.params), z.tiles, parts, 1, lanes)
    for key, names, piece, width in _pieces(group, z.inputs):
        reach = [[q for q, part in enumerate(cell.fed_back) if (part, name) in cell.jacobian] for name in names]
        m = max(map(len, reach))
        E = values["after"].setdefault(key, stream.samples.new_zeros(B, len(names) * H, m, width))
        E = E.view(B, len(names), H, m, width)
        first = {INPUT: 0, FED_BACK: z.inputs, "1": z.D - z.ones}[piece]
        for k, name in enumerate(names):
            param = name in cell.params
            there = of_params[:, cell.params.index(name)] if param else of_gates[:, cell.gates.index(name)]
            firsts = [0] if param else range(first, z.D) if piece == "1" else [first]  # both biases have one trace
            for start, tile, (rank, q) in itertools.product(firsts, range(z.tiles), enumerate(reach[k])):
                here = E[:, k, tile * lanes : (tile + 1) * lanes, rank]
                yield here, there[:, tile, q, start : start + width, : here.shape[1]].mT


def _pieces(group: UnitGroup, I: int) -> Iterator[tuple[str, tuple[str, ...], str, int]]:
    """The blocks of parameters in a trace: key, gates or params, what they are multiplied by ("1": nothing), width."""
    cell = group.cell
    yield "weight_ih_l0", cell.input_gates, INPUT, I
    yield "weight_hh_l0", cell.recurrent_gates, FED_BACK, group.units
    if group.biased:
        yield "bias_l0", cell.gates, "1", 1
    for param in cell.params:
        yield f"{param}_l0", (param,), "1", 1


VIEWS: dict[str, Callable[[Values, UnitGraph, Stream], Views]] = {"rtrl": blocks, "snap": own_units}  # by rule


def move(rule: str, values: Values, graph: UnitGraph, stream: Stream, out: bool) -> bool:
    """Copy a trace into the engine's memory, or ``out`` of it; whether any of its numbers is not 0."""
    if rule == "traces":
        links = list(traces(values, graph, stream.layout, stream.batch))  # must live as long as the transfer
        stream.transfer([stream.sample_job(tensor, pairs) for tensor, pairs in links], out)
        return any(bool(tensor.any()) for tensor, _ in links)
    pairs = list(VIEWS[rule](values, graph, stream))
    for tensor, held in pairs:
        (tensor if out else held).copy_(held if out else tensor)
    met = any(bool(tensor.any()) for tensor, _ in pairs)
    if not out:
        stream.begin(met)
    return met
