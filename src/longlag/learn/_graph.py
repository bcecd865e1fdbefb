"""Layers as graphs of groups: which layer becomes which groups, and how its state is taken apart and put together."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.layers import LSTM97, LocalFeedbackNetwork, Recurrent
from longlag.layers._module import Layer
from longlag.learn._groups import FED_BACK, INPUT, Cells97, CutLevel, Group, Level, Units97
from longlag.learn._state import Parts, StateForm

Results = dict[str, dict[str, Tensor]]  # group -> its gates' net inputs, its output and its states, by name


class Graph(abc.ABC):
    """Groups in the order in which a step computes them."""

    def __init__(self, layer: Layer, groups: Sequence[Group], outputs: Sequence[str]) -> None:
        self.layer, self.groups, self.outputs = layer, tuple(groups), tuple(outputs)
        self.form = StateForm(layer)
        self.spans = {group.name: self._spans(group) for group in groups}

    def _spans(self, group: Group) -> dict[str, slice]:
        """Where the output of each group that this one reads stands in its source."""
        units, spans, start = {other.name: other.units for other in self.groups}, {}, 0
        rest = group.width - sum(units.get(name, 0) for name in group.reads)  # x, or x and y
        for name in group.reads:
            if name in units:
                spans[name] = slice(start, start + units[name])
            start += units.get(name, rest)
        return spans

    @abc.abstractmethod
    def enter(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        """What each group's loop reads, and what is fed back through a matrix."""

    @abc.abstractmethod
    def leave(self, results: Results) -> Parts:
        """The layer's state after a step."""

    def below(self, name: str) -> set[str]:
        """The groups whose outputs reach this one within a step."""
        reads = {group.name: group.reads for group in self.groups}
        direct = {other for other in reads[name] if other in reads}
        return direct.union(*(self.below(other) for other in direct))


class Levels(Graph):
    """A `Recurrent` layer with a local cell: a chain."""

    layer: Recurrent

    def __init__(self, layer: Recurrent) -> None:
        names = [f"layer {k}" for k in range(layer.num_layers)]
        groups = [Level(layer, k, name, (names[k - 1] if k else INPUT,)) for k, name in enumerate(names)]
        super().__init__(layer, groups, names[-1:])

    def enter(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        return {group.name: tuple(part[k] for part in parts) for k, group in enumerate(self.groups)}, None

    def leave(self, results: Results) -> Parts:
        return tuple(torch.stack([r[part] for r in results.values()]) for part in self.layer.cell.fed_back)


class LocalNetwork(Graph):
    """A `LocalFeedbackNetwork`: hidden layers upon each other, output units with feedback reading x. [LF-92 1]"""

    layer: LocalFeedbackNetwork

    def __init__(self, layer: LocalFeedbackNetwork) -> None:
        below: dict[str, tuple[str, ...]] = {}
        hidden: tuple[str, ...] = (INPUT,)
        for i in range(len(layer.hidden_sizes)):
            names = tuple(name for name in layer.groups if name.startswith(f"hidden_{i}_"))
            below |= dict.fromkeys(names, hidden)
            hidden = names
        below |= {"output_static": hidden, "output_net": (INPUT,), "output_activation": (INPUT,)}
        groups = [Level(group, 0, name, below[name], f"groups.{name}.") for name, group in layer._groups()]
        super().__init__(layer, groups, [group.name for group in groups if group.name.startswith("output_")])

    def enter(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        return {group.name: () for group in self.groups} | {
            name: (part,) for name, part in zip(self.layer.state_sizes, parts)
        }, None

    def leave(self, results: Results) -> Parts:
        return tuple(results[g.name][g.loop[0]] for g in self.groups if g.loop)


class CutRecurrent(Graph):
    """A dense `Recurrent` layer of one level without the influence that passes through U. [LSTM-FG 1.3]"""

    layer: Recurrent

    def __init__(self, layer: Recurrent) -> None:
        super().__init__(layer, [CutLevel(layer)], ["units"])

    def enter(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        past = {name: part[0] for name, part in zip(self.layer.cell.fed_back, parts)}
        return {"units": tuple(past[part] for part in self.groups[0].loop)}, past["y"]

    def leave(self, results: Results) -> Parts:
        return tuple(torch.stack([results["units"][part]]) for part in self.layer.cell.fed_back)


class CutLSTM97(Graph):
    """An `LSTM97` without the influence that passes through the fed-back activations. [LSTM-97 3.1]"""

    layer: LSTM97

    def __init__(self, layer: LSTM97) -> None:
        reads = (INPUT, FED_BACK) if layer.recurrent else (INPUT,)  # [LSTM-97 2 x̃]
        groups: list[Group] = [Units97(layer, "hid", reads)] if layer.hidden_units else []
        groups += [Cells97(layer, reads)] if layer.blocks else []
        inner = tuple(group.name for group in groups)
        if layer.output_size is not None:
            groups.append(Units97(layer, "out", (*([INPUT] if layer.input_to_output else []), *inner)))
        super().__init__(layer, groups, inner if layer.output_size is None else ("out",))

    def enter(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        y, s = parts
        return {group.name: (s,) if group.name == "cell" else () for group in self.groups}, y

    def leave(self, results: Results) -> Parts:
        empty = next(iter(results.values()))["a"][:, :0]
        hidden = results["hid"]["y"] if "hid" in results else empty
        if "cell" not in results:
            return hidden, empty
        cell, every = results["cell"], self.layer.block_size  # the cells of a block have the same gates
        gates = [torch.sigmoid(cell[gate][:, ::every]) for gate in ("i", "o") if gate in cell]
        return torch.cat([hidden, *gates, cell["y"]], -1), cell["s"]
