"""A layer's step as groups of units: from the previous step a unit reads only its own values.

H units, G gates. A group knows the attributes that hold its weights and returns gradients by the layer's parameter
names. Exact real-time gradients of such a graph cost O(w) per step.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longlag import cells
from longlag.cells import Cell
from longlag.layers.state import Parts

if TYPE_CHECKING:
    from longlag.layers.recurrent import Recurrent

INPUT, FED_BACK = "x", "y"  # sources of a group besides the outputs of other groups
Results = dict[str, dict[str, Tensor]]  # group -> its gates' net inputs, its output and its states, by name


class NotLocal(ValueError):
    """A layer is not a graph of units with local feedback; the message is the reason."""


class UnitGroup(abc.ABC):
    """Units of one kind: their cell, what they read, and where their weights are.

    Args:
        reads: names of groups, ``"x"`` or ``"y"``; their outputs, concatenated, are the source of the net inputs.
        width: length of that source.
        paths: the layer's attributes that hold the weights.

    Attributes:
        loop: the parts of its own past that a unit reads: ``y`` and states.
        traced: the gates from the first to the last that can influence the loop; ``traced_rows``: their rows.
        biased: whether net inputs have a bias.
        shared: number of neighbouring units that may share a row of weights (a gate of a block), else 1.
    """

    shared = 1

    def __init__(
        self, name: str, cell: Cell, units: int, reads: tuple[str, ...], width: int, paths: Sequence[str]
    ) -> None:
        self.name, self.cell, self.units, self.reads, self.width = name, cell, units, reads, width
        self.paths = tuple(paths)
        self.biased = any("bias_" in path for path in paths)
        self.loop = tuple(part for part in cell.inputs if part == "y" or part in cell.states)
        rows = [k for k, g in enumerate(cell.gates) if any((part, g) in cell.jacobian for part in self.loop)]
        self.traced_rows = slice(rows[0], rows[-1] + 1) if rows else slice(0, 0)
        self.traced = cell.gates[self.traced_rows]

    @abc.abstractmethod
    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        """W (rows, width), b (rows) or None, and the cell's params, each (H,); rows are G·H unless `gates` spreads."""

    def gates(self, net: Tensor) -> tuple[Tensor, ...]:
        """The cell's gates, each (B, H), from the net inputs (B, rows)."""
        return (net,) if len(self.cell.gates) == 1 else net.split(self.units, -1)

    @abc.abstractmethod
    def gradients(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by path, from those of `weights` (with G·H rows)."""


class UnitGraph(abc.ABC):
    """Groups in the order in which a step computes them; ``outputs`` names those that make the layer's output.

    Attributes:
        fed_back_pieces: pieces of the vector that matrices read at the next step, in the order of ``split``'s vector:
            (group, ``"y"`` or a gate g for σ(g), every), the values of units 0, every, 2·every, ….
    """

    fed_back_pieces: tuple[tuple[str, str, int], ...] = ()

    def __init__(self, groups: Sequence[UnitGroup], outputs: Sequence[str]) -> None:
        self.groups, self.outputs = tuple(groups), tuple(outputs)
        self.dense_loops: dict[str, slice] = {}  # group that reads its own last outputs -> their position in its source
        self.spans = {group.name: self._spans(group) for group in groups}

    def _spans(self, group: UnitGroup) -> dict[str, slice]:
        """For each group that this group reads: the position of its output in the source."""
        units, spans, start = {other.name: other.units for other in self.groups}, {}, 0
        rest = group.width - sum(units.get(name, 0) for name in group.reads)  # x, or x and y
        for name in group.reads:
            if name in units:
                spans[name] = slice(start, start + units[name])
            start += units.get(name, rest)
        return spans

    @abc.abstractmethod
    def split(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        """From the layer's state: the past that each group's loop reads, and the values fed back through a matrix."""

    @abc.abstractmethod
    def join(self, results: Results) -> Parts:
        """The layer's state after a step."""

    def below(self, name: str) -> set[str]:
        """The groups whose outputs reach this one within a step."""
        reads = {group.name: group.reads for group in self.groups}
        direct = {other for other in reads[name] if other in reads}
        return direct.union(*(self.below(other) for other in direct))


class LocalLevel(UnitGroup):
    """Level k of a `Recurrent` layer with a local cell."""

    def __init__(self, layer: Recurrent, k: int, name: str, reads: tuple[str, ...], prefix: str = "") -> None:
        self.layer, self.prefix, self.suffix = layer, prefix, f"_l{k}"
        names = ["weight_ih", *(["bias_ih"] if layer.bias else []), *layer.cell.params]
        paths = [prefix + name + self.suffix for name in names]
        super().__init__(name, layer.cell, layer.hidden_size, reads, layer.input_sizes()[k], paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        W, *rest = (getattr(self.layer, path[len(self.prefix) :]) for path in self.paths)
        return (W, rest[0], tuple(rest[1:])) if self.layer.bias else (W, None, tuple(rest))

    def gradients(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        grads = {"weight_ih": dW, **dparams} | ({} if db is None else {"bias_ih": db})
        return {self.prefix + name + self.suffix: gradient for name, gradient in grads.items()}


class LocalLevels(UnitGraph):
    """A `Recurrent` layer with a local cell: a chain."""

    def __init__(self, layer: Recurrent) -> None:
        self.fed_back = layer.cell.fed_back
        names = [f"layer {k}" for k in range(layer.num_layers)]
        groups = [LocalLevel(layer, k, name, (names[k - 1] if k else INPUT,)) for k, name in enumerate(names)]
        super().__init__(groups, names[-1:])

    def split(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        return {group.name: tuple(part[k] for part in parts) for k, group in enumerate(self.groups)}, None

    def join(self, results: Results) -> Parts:
        return tuple(torch.stack([r[part] for r in results.values()]) for part in self.fed_back)


class CutLevel(UnitGroup):
    """The one level of a dense `Recurrent` layer; y(t−1) is an input like x where U reads it: source [x; y]."""

    def __init__(self, layer: Recurrent) -> None:
        self.layer = layer
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else []), *layer.cell.params]
        width = layer.input_size + layer.hidden_size
        paths = [f"{name}_l0" for name in names]
        super().__init__("units", layer.cell, layer.hidden_size, (INPUT, FED_BACK), width, paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        x_gates, y_gates = self.cell.input_gates, self.cell.recurrent_gates
        W, U, *rest = (getattr(self.layer, path) for path in self.paths)
        b = None
        if self.layer.bias:
            b_ih, b_hh, *rest = rest
            b = self._for_all(b_ih, x_gates) + self._for_all(b_hh, y_gates)
        return torch.cat([self._for_all(W, x_gates), self._for_all(U, y_gates)], 1), b, tuple(rest)

    def gradients(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        x_gates, y_gates, I = self.cell.input_gates, self.cell.recurrent_gates, self.layer.input_size
        grads = {"weight_ih": self._only(dW[:, :I], x_gates), "weight_hh": self._only(dW[:, I:], y_gates), **dparams}
        if db is not None:
            grads |= {"bias_ih": self._only(db, x_gates), "bias_hh": self._only(db, y_gates)}
        return {f"{name}_l0": gradient for name, gradient in grads.items()}

    def _for_all(self, value: Tensor, gates: Sequence[str]) -> Tensor:
        """Rows for every gate of the cell, 0 for gates that do not read this source."""
        if gates == self.cell.gates:
            return value
        rows = dict(zip(gates, value.split(self.units)))
        none = torch.zeros_like(value[: self.units])
        return torch.cat([rows.get(gate, none) for gate in self.cell.gates])

    def _only(self, value: Tensor, gates: Sequence[str]) -> Tensor:
        """The rows of some gates, out of the rows of all."""
        if gates == self.cell.gates:
            return value
        rows = dict(zip(self.cell.gates, value.split(self.units)))
        return torch.cat([rows[gate] for gate in gates])


class CutRecurrent(UnitGraph):
    """A dense `Recurrent` layer of one level without the influence that passes through U. [LSTM-FG 1.3]"""

    fed_back_pieces = (("units", "y", 1),)

    def __init__(self, layer: Recurrent) -> None:
        self.fed_back = layer.cell.fed_back
        super().__init__([CutLevel(layer)], ["units"])

    def split(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        past = {name: part[0] for name, part in zip(self.fed_back, parts)}
        return {"units": tuple(past[part] for part in self.groups[0].loop)}, past["y"]

    def join(self, results: Results) -> Parts:
        return tuple(torch.stack([results["units"][part]]) for part in self.fed_back)


@functools.cache
def linear_unit() -> Cell:
    """A unit without squashing function, y(t) = a."""

    @cells.cell(gates="a", dense=False)
    def linear_unit_(a):
        """y(t) = a"""
        return a

    return linear_unit_
