"""Groups of units whose past lives in each unit alone. Everything else they read is of the present step.

H units, G gates. Groups know where their weights are and how to hand back gradients by the layer's own names.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag import cells
from longlag.cells import Cell
from longlag.layers import LSTM97, Recurrent
from longlag.learn._state import Parts

INPUT, FED_BACK = "x", "y"  # what a group may read besides other groups


class Group(abc.ABC):
    """Units of one kind: their cell, what they read, and where their weights are.

    Args:
        reads: names of groups, ``"x"`` or ``"y"``; their outputs, concatenated, are the source of the net inputs.
        width: length of that source.
        paths: the layer's attributes that hold the weights.

    Attributes:
        loop: what of its own past a unit reads: ``y`` and states.
        traced: the gates from the first to the last that can influence the loop; ``traced_rows`` among all.
        biased: whether net inputs have a bias.
    """

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
    def effective(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by path."""


class Level(Group):
    """Level k of a `Recurrent` layer with a local cell."""

    def __init__(self, layer: Recurrent, k: int, name: str, reads: tuple[str, ...], prefix: str = "") -> None:
        self.layer, self.prefix, self.suffix = layer, prefix, f"_l{k}"
        names = ["weight_ih", *(["bias_ih"] if layer.bias else []), *layer.cell.params]
        paths = [prefix + name + self.suffix for name in names]
        super().__init__(name, layer.cell, layer.hidden_size, reads, layer._input_sizes()[k], paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        W, *rest = (getattr(self.layer, path[len(self.prefix) :]) for path in self.paths)
        return (W, rest[0], tuple(rest[1:])) if self.layer.bias else (W, None, tuple(rest))

    def effective(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        grads = {"weight_ih": dW, **dparams} | ({} if db is None else {"bias_ih": db})
        return {self.prefix + name + self.suffix: gradient for name, gradient in grads.items()}


class CutLevel(Group):
    """The one level of a dense `Recurrent` layer, y(t−1) being an input like x where U reads it: source [x; y]."""

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

    def effective(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        x_gates, y_gates, I = self.cell.input_gates, self.cell.recurrent_gates, self.layer.input_size
        grads = {"weight_ih": self._only(dW[:, :I], x_gates), "weight_hh": self._only(dW[:, I:], y_gates), **dparams}
        if db is not None:
            grads |= {"bias_ih": self._only(db, x_gates), "bias_hh": self._only(db, y_gates)}
        return {f"{name}_l0": gradient for name, gradient in grads.items()}

    def _for_all(self, value: Tensor, gates: Sequence[str]) -> Tensor:
        """Rows for every gate of the cell, 0 for those that do not read here."""
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


class Units97(Group):
    """Conventional units of an `LSTM97`: its hidden (``"hid"``) or its output units (``"out"``)."""

    def __init__(self, layer: LSTM97, section: str, reads: tuple[str, ...]) -> None:
        self.layer, self.section = layer, section
        names = [f"weight_{section}", f"bias_{section}"]
        units, width = getattr(layer, names[0]).shape
        linear = section == "out" and layer.output == "linear"
        paths = [name for name in names if hasattr(layer, name)]
        super().__init__(section, _linear_unit() if linear else cells.rnn97, units, reads, width, paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        values = [getattr(self.layer, path) for path in self.paths]
        return values[0], values[1] if len(values) > 1 else None, ()

    def effective(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.paths, (dW, db) if db is not None else (dW,)))


class Cells97(Group):
    """The memory cells of an `LSTM97`; each has its block's gates, whose gradients are summed over the block."""

    def __init__(self, layer: LSTM97, reads: tuple[str, ...]) -> None:
        self.layer = layer
        self.sections = ("ig", "cell", "og") if layer.output_gates else ("ig", "cell")  # gates i, a, o
        self.rows = [layer.sections[section] for section in self.sections]
        names = [f"{kind}_{section}" for kind in ("weight", "bias") for section in self.sections]
        paths = [name for name in names if hasattr(layer, name)]
        cell = cells.memory_cell(layer.g, layer.h, layer.output_gates)
        super().__init__("cell", cell, layer.cells, reads, layer.get_parameter("weight_ig").shape[1], paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        weights = [getattr(self.layer, f"weight_{section}") for section in self.sections]
        if not self.biased:
            return torch.cat(weights), None, ()
        found = [getattr(self.layer, f"bias_{section}", None) for section in self.sections]
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, found)]
        return torch.cat(weights), torch.cat(biases), ()

    def gates(self, net: Tensor) -> tuple[Tensor, ...]:
        """A block's gates serve each of its cells."""
        parts = net.split(self.rows, -1)
        if (size := self.layer.block_size) == 1:
            return parts
        return tuple(p if k == "cell" else p.repeat_interleave(size, -1) for k, p in zip(self.sections, parts))

    def effective(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        grads = {}
        for kind, gradient in (("weight", dW), ("bias", db)):
            for section, rows in zip(self.sections, gradient.split(self.units) if gradient is not None else ()):
                shared = rows if section == "cell" else rows.unflatten(0, (-1, self.layer.block_size)).sum(1)
                grads[f"{kind}_{section}"] = shared
        return {path: grads[path] for path in self.paths}


@functools.cache
def _linear_unit() -> Cell:
    @cells.cell(gates="a", dense=False)
    def linear_unit(a):
        """y(t) = a"""
        return a

    return linear_unit
