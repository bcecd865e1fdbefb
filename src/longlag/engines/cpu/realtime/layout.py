"""Where everything lies in the memory of a network; loads no compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime import rules
from longlag.engines.cpu.realtime.blocks import RULE
from longlag.engines.cpu.realtime.equations import Rows
from longlag.engines.cpu.realtime.network import FED_BACK, Group, Network, X
from longlag.engines.cpu.realtime.words import Sizes

BYTES = {"float32": 4, "float64": 8}
MOST_UNITS, MOST_SOURCES = 64, 128  # of a group whose sizes are constants of the kernel


class Layout:
    """Offsets, counted in numbers.

    Attributes:
        fed_back, outputs: R, O; numbers: N, of the packed weights; sample: of a sample's memory. In it, fed: what is
            fed back, among the sources of the group that reads it first; answer: the output, then its error.
        sizes: of every group; lanes: of every group's vectors.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.register = network, VECTOR_BYTES // BYTES[network.dtype]
        groups = network.groups
        self.lanes = [self._lanes(group) for group in groups]
        self.fed_back = sum(groups[k].units // every for k, _, every in network.fed_back)
        self.outputs = sum(groups[k].units for k in network.answers)
        self.rows = [Rows(group) for group in groups]
        self.sizes: list[Sizes] = []
        own = self.fed_back if network.reader is None else 0
        self.answer = self._whole(own)
        self.numbers, self.sample = 0, self._whole(self.answer + 2 * self.outputs + 1)
        for k, group in enumerate(groups):
            self._add(k, group)
        self.numbers = self._whole(self.numbers)
        first = network.reader
        self.fed = 0 if first is None else self.sizes[first].source + self.sizes[first].inputs

    def _add(self, k: int, group: Group) -> None:
        lanes, gates, params = self.lanes[k], len(group.cell.gates), len(group.cell.params)
        D = sum(self._width(piece) for piece in group.reads) + group.ones
        tiles = -(-group.units // lanes)
        S, inputs = tiles * lanes, self.network.inputs if X in group.reads else 0
        P = self.numbers + gates * S * D
        rows = self.sample + self._whole(D)
        E = self._whole(rows + self.rows[k].count * S)
        offsets = self.numbers, P, self.sample, rows, E
        traced = int(bool(group.loop))
        more = gates * tiles, lanes, params * S, traced
        self.sizes.append(Sizes(group.units, tiles, D, inputs, group.ones, *offsets, *more))
        self.numbers = P + params * S
        self.sample = self._whole(E + rules.memory(group.rule, self.rows[k], tiles, D, lanes))

    def _lanes(self, group: Group) -> int:
        """A register, or the power of two that holds all units."""
        whole = group.rule == RULE  # whose kernels all groups share
        return self.register if whole else min(self.register, max(2, 1 << (group.units - 1).bit_length()))

    def _width(self, piece: str | int) -> int:
        if isinstance(piece, int):
            return self.network.groups[piece].units
        return {X: self.network.inputs, FED_BACK: self.fed_back}[piece]

    def _whole(self, size: int) -> int:
        return -(-size // self.register) * self.register

    @property
    def constants(self) -> list[Sizes | None]:
        """The sizes that the kernel is compiled for: those of a small network."""
        small = all(z.units <= MOST_UNITS and z.D <= MOST_SOURCES for z in self.sizes)
        return [z if small else None for z in self.sizes]

    def weight_places(self, k: int) -> Tensor:
        """Place of every weight of group k: (gates · H, D), the last columns are the biases."""
        z, lanes = self.sizes[k], self.lanes[k]
        gates = torch.arange(len(self.network.groups[k].cell.gates)).view(-1, 1, 1)
        units, sources = torch.arange(z.units).view(1, -1, 1), torch.arange(z.D)
        places = z.W + ((gates * z.tiles + units // lanes) * z.D + sources) * lanes + units % lanes
        return places.flatten(0, 1)

    def param_places(self, k: int) -> Tensor:
        """Place of every param of group k: (params, H)."""
        z = self.sizes[k]
        params = torch.arange(len(self.network.groups[k].cell.params)).view(-1, 1)
        return z.P + params * z.tiles * self.lanes[k] + torch.arange(z.units)

    def row_places(self, k: int, name: str) -> Tensor:
        """Place of every unit's value in a row, in a sample's memory."""
        z = self.sizes[k]
        return z.rows + self.rows[k].at[name] * z.tiles * self.lanes[k] + torch.arange(z.units)
