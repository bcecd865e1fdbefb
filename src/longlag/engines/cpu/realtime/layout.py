"""Where everything lies in the memory of a network; loads no compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime import rules
from longlag.engines.cpu.realtime.equations import Rows
from longlag.engines.cpu.realtime.network import FED_BACK, Network, X
from longlag.engines.cpu.realtime.words import Sizes

BYTES = {"float32": 4, "float64": 8}
MOST_UNITS, MOST_SOURCES = 64, 128  # of a group whose sizes are constants of the kernel


class Layout:
    """Offsets, counted in numbers.

    Attributes:
        fed_back, outputs: R, O; numbers: N, of the packed weights; sample: of a sample's memory.
        sizes: of every group.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.lanes = network, VECTOR_BYTES // BYTES[network.dtype]
        groups = network.groups
        self.fed_back = sum(groups[k].units // every for k, _, every in network.fed_back)
        self.outputs = sum(groups[k].units for k in network.answers)
        self.rows = [Rows(group) for group in groups]
        self.sizes: list[Sizes] = []
        self.numbers, self.sample = 0, self._whole(self.fed_back + 2 * self.outputs + 1)
        for k, group in enumerate(groups):
            D = sum(self._width(piece) for piece in group.reads) + group.ones
            tiles = -(-group.units // self.lanes)
            S = tiles * self.lanes
            inputs = network.inputs if X in group.reads else 0
            P = self.numbers + len(group.cell.gates) * S * D
            rows = self.sample + self._whole(D)
            E = rows + self.rows[k].count * S
            self.sizes.append(Sizes(group.units, tiles, D, inputs, group.ones, self.numbers, P, self.sample, rows, E))
            self.numbers = P + len(group.cell.params) * S
            self.sample = E + rules.memory(group.rule, self.rows[k], tiles, D, self.lanes)

    def _width(self, piece: str | int) -> int:
        if isinstance(piece, int):
            return self.network.groups[piece].units
        return {X: self.network.inputs, FED_BACK: self.fed_back}[piece]

    def _whole(self, size: int) -> int:
        return -(-size // self.lanes) * self.lanes

    @property
    def constants(self) -> list[Sizes | None]:
        """The sizes that the kernel is compiled for: those of a small network."""
        small = all(z.units <= MOST_UNITS and z.D <= MOST_SOURCES for z in self.sizes)
        return [z if small else None for z in self.sizes]

    def weight_places(self, k: int) -> Tensor:
        """Place of every weight of group k: (gates · H, D), the last columns are the biases."""
        z, lanes = self.sizes[k], self.lanes
        gates = torch.arange(len(self.network.groups[k].cell.gates)).view(-1, 1, 1)
        units, sources = torch.arange(z.units).view(1, -1, 1), torch.arange(z.D)
        places = z.W + ((gates * z.tiles + units // lanes) * z.D + sources) * lanes + units % lanes
        return places.flatten(0, 1)

    def param_places(self, k: int) -> Tensor:
        """Place of every param of group k: (params, H)."""
        z = self.sizes[k]
        params = torch.arange(len(self.network.groups[k].cell.params)).view(-1, 1)
        return z.P + params * z.tiles * self.lanes + torch.arange(z.units)

    def row_places(self, k: int, name: str) -> Tensor:
        """Place of every unit's value in a row, in a sample's memory."""
        z = self.sizes[k]
        return z.rows + self.rows[k].at[name] * z.tiles * self.lanes + torch.arange(z.units)
