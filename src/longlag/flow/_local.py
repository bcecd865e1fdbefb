"""Local-feedback networks as sums over paths: bounds that the weights alone give. [LF-92 3] [LF-92-ML 5]

h units of a group, m units (or inputs) that they read; ρ is the most a loop leaves of a change, per step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longlag.flow._run import as_layer
from longlag.layers import Layer
from longlag.layers.units import INPUT, NotLocal, UnitGroup

SLOPE = 0.5  # M, the largest slope of f(a) = tanh(a/2) [LF-92 1 M]
LIMIT = {"net": 1.0, "activation": 2.0, "static": math.inf}  # |u| < 1, |v| < 2 [LF-92 3]


class Units(NamedTuple):
    """Units of one kind, the weights on what they read, and their loops."""

    name: str
    kind: str
    W: Tensor  # (h, m)
    bias: Tensor  # (h,)
    parameter: Tensor  # (h,): u or v; 0 for static units

    @property
    def gain(self) -> Tensor:
        """ρ (h,): |u|, |v|/2, or 0."""
        return self.parameter.abs() * (SLOPE if self.kind == "activation" else 1.0)

    @property
    def forgets(self) -> Tensor:
        """(h,) whether |u| < 1 or |v| < 2: sufficient, not necessary."""
        return self.parameter.abs() < LIMIT[self.kind]


Layers = list[list[tuple[int, Units]]]  # layer by layer: (which layer is read, units); 0 is the input, 1 the first


def layers(owner: str, network: nn.Module) -> tuple[Layer, Layers]:
    """A network of local-feedback units of 1992 and its groups of units, in the order of its outputs."""
    layer, name = as_layer(owner, network), type(network).__name__
    try:
        graph = layer.local_units()
    except NotLocal as reason:
        if str(reason) == "couples units by its norm":
            raise ValueError(f"{owner}: cannot analyse {name} with norm: it couples the units") from None
        graph = None
    kinds = _kinds()
    if graph is None or any(group.cell.key not in kinds for group in graph.groups):
        raise TypeError(f"{owner}: cannot analyse {name}: it must be LocalFeedbackNetwork or LocalFeedback")
    found: Layers = []
    depth: dict[str, int] = {INPUT: 0}  # which layer each group belongs to
    for group in graph.groups:
        below = depth[group.reads[0]]
        last = group.name in graph.outputs
        at = max(depth.values()) if last and any(other in depth for other in graph.outputs) else 0
        depth[group.name] = at or (max(depth.values()) + 1 if last else below + 1)
        while len(found) < depth[group.name]:
            found.append([])
        found[depth[group.name] - 1].append((below, _units(group, kinds[group.cell.key])))
    return layer, found


@functools.cache
def _kinds() -> dict[str, str]:
    """The units of 1992, by the key of their equations."""
    from longlag import cells

    return {
        cells.static.key: "static",
        cells.net_feedback.key: "net",
        cells.activation_feedback.key: "activation",
    }


def _units(group: UnitGroup, kind: str) -> Units:
    W, b, params = group.weights()
    zeros = W.new_zeros(group.units)
    bias, parameter = (zeros if b is None else b), (params[0] if params else zeros)
    return Units(group.name, kind, W.detach(), bias.detach(), parameter.detach())


def influence(layers: Layers, inputs: int, steps: int) -> Tensor:
    """(steps, O, I): bounds on |∂y_i(t)/∂x_k(t−q)|, q = 0..steps−1, for every input and every t."""
    first = layers[0][0][1].W.new_zeros(steps, inputs, inputs)
    first[0] = torch.eye(inputs)  # ∂x(t)/∂x(t−q)
    levels = [first]
    for layer in layers:
        levels.append(torch.cat([_spread(units, levels[below]) for below, units in layer], 1))
    return levels[-1]


def _spread(units: Units, below: Tensor) -> Tensor:
    """(Q, m, I) -> (Q, h, I): a(q) = ρ a(q−1) + |W| below(q) bounds the net inputs, M a(q) the outputs."""
    net, a = units.W.abs() @ below, []
    for q in range(len(net)):
        a.append(net[q] + units.gain.unsqueeze(-1) * a[-1] if a else net[q])
    return SLOPE * torch.stack(a)  # [LF-92 3 bound]


def window(layers: Layers, x: Tensor) -> Tensor:
    """(T, O): how far y can be, q + 1 steps after a restart from rest, from the run over all of x (T, B, I)."""
    changes = _changes(layers, x)
    found = torch.stack([next(changes) for _ in range(len(x))])
    return found.nan_to_num(nan=math.inf, posinf=math.inf)  # 0 · ∞ where a loop does not forget


def _changes(layers: Layers, x: Tensor) -> Iterator[Tensor]:
    """Bounds on |Δy|, one step after the other since the restart."""
    states = {units.name: _at_restart(units, below, x) for layer in layers for below, units in layer}
    while True:
        changed = [torch.zeros_like(x[0, 0])]  # both runs see the same inputs
        for layer in layers:
            outputs = []
            for below, units in layer:
                fed = units.W.abs() @ changed[below]
                read = SLOPE if units.kind == "activation" else 1.0  # its state is its output, not its net input
                states[units.name] = units.gain * states[units.name] + read * fed  # [LF-92 3 window]
                outputs.append(states[units.name] * (SLOPE / read))
            changed.append(torch.cat(outputs))
        yield changed[-1]


def _at_restart(units: Units, below: int, x: Tensor) -> Tensor:
    """The most that a state can be: |a| ≤ C/(1−|u|) with C ≥ |w·input + b| for net feedback, |h| ≤ 1."""
    if units.kind != "net":
        return torch.full_like(units.bias, 1.0 if units.kind == "activation" else 0.0)
    inside = units.W.abs().sum(-1) + units.bias.abs()  # what it reads lies in (−1, 1)
    C = inside if below else (x @ units.W.t() + units.bias).abs().amax((0, 1))
    return torch.where(units.gain < 1, C / (1 - units.gain), math.inf)
