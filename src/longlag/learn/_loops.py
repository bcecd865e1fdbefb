"""Influence within a group whose units read each other's last outputs through a matrix R.

For the weights θ into the group, E = ∂y/∂θ (B, H, H · width):    E ← f′(net) (R E + I ⊗ source).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.layers import Layer
from longlag.layers.units import UnitGraph, UnitGroup
from longlag.learn._state import Values


class Loops:
    """The traces of the graph's `dense_loops`; such a group has one gate and no state."""

    def __init__(self, layer: Layer, graph: UnitGraph, trained: Sequence[UnitGroup]) -> None:
        self.layer = layer
        self.groups = {group.name: group for group in trained if group.name in graph.dense_loops}
        self.spans = graph.dense_loops

    def start(self, batch: int) -> Values:
        """No influence yet."""
        new = self.layer.any_weight.new_zeros
        return {name: new(batch, g.units, g.units * (g.width + g.biased)) for name, g in self.groups.items()}

    def advance(self, values: Values) -> None:
        """Advance the traces over the last step."""
        for name, group in self.groups.items():
            last, E = values["last"][name], values["loops"][name]
            slope = last["partials"]["y", group.cell.gates[0]].unsqueeze(-1)
            new = last["W"][:, self.spans[name]] @ E
            by_unit = new.unflatten(-1, (group.units, -1))  # (B, H, H, width)
            torch.diagonal(by_unit, dim1=1, dim2=2).add_(last["source"].unsqueeze(-1))
            torch.mul(slope, new, out=E)

    def add_gradient(self, group: UnitGroup, values: Values, nets: Tensor, dW: Tensor) -> None:
        """Add to dW the part that reaches the errors of the net inputs (B, H) through the last outputs."""
        if group.name in self.groups:
            past = nets @ group.weights()[0][:, self.spans[group.name]]
            dW += (past.unsqueeze(1) @ values["loops"][group.name]).sum((0, 1)).view_as(dW)
