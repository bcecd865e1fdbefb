"""Local-feedback networks as sums over paths: bounds that the weights alone give. [LF-92 3] [LF-92-ML 5]

h units of a group, m units (or inputs) that they read; a loop multiplies a change by at most ρ per step.
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
    reads: tuple[str, ...]  # groups, or the input ("x"), whose outputs W reads, concatenated
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


class Network(NamedTuple):
    """Groups of units in the order of computation: a group reads the input or groups before it."""

    inputs: int
    groups: tuple[Units, ...]
    outputs: tuple[str, ...]  # the groups that make the network's output


def read(owner: str, module: nn.Module) -> tuple[Layer, Network]:
    """The layer and its groups, for a network of local-feedback units of 1992; other layers are refused."""
    layer, name, kinds = as_layer(owner, module), type(module).__name__, _kinds()
    try:
        graph = layer.local_units()
    except NotLocal as reason:
        if str(reason) == "couples units by its norm":
            raise ValueError(f"{owner}: cannot analyse {name} with norm: it couples the units") from None
        graph = None
    if graph is None or any(group.cell.key not in kinds for group in graph.groups):
        raise TypeError(f"{owner}: cannot analyse {name}: it must be LocalFeedbackNetwork or LocalFeedback")
    groups = tuple(_units(group, kinds[group.cell.key]) for group in graph.groups)
    return layer, Network(layer.input_size, groups, graph.outputs)


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
    return Units(group.name, kind, group.reads, W.detach(), bias.detach(), parameter.detach())


def influence(network: Network, steps: int) -> Tensor:
    """(steps, O, I): bounds on |∂y_i(t)/∂x_k(t−q)|, q = 0..steps−1, for every input and every t."""
    own = network.groups[0].W.new_zeros(steps, network.inputs, network.inputs)
    own[0] = torch.eye(network.inputs)  # ∂x(t)/∂x(t−q)
    bounds = {INPUT: own}
    for units in network.groups:
        bounds[units.name] = _spread(units, _join(bounds, units.reads, 1))
    return _join(bounds, network.outputs, 1)


def _join(values: dict[str, Tensor], names: tuple[str, ...], axis: int) -> Tensor:
    return torch.cat([values[name] for name in names], axis)


def _spread(units: Units, below: Tensor) -> Tensor:
    """(Q, m, I) -> (Q, h, I): a(q) = ρ a(q−1) + |W| below(q) bounds the net inputs, M a(q) the outputs."""
    net, a = units.W.abs() @ below, []
    for q in range(len(net)):
        a.append(net[q] + units.gain.unsqueeze(-1) * a[-1] if a else net[q])
    return SLOPE * torch.stack(a)  # [LF-92 3 bound]


def window(network: Network, x: Tensor) -> Tensor:
    """(T, O): how far y can be, q + 1 steps after a restart from rest, from the run over all of x (T, B, I)."""
    changes = _changes(network, x)
    found = torch.stack([next(changes) for _ in range(len(x))])
    return found.nan_to_num(nan=math.inf, posinf=math.inf)  # 0 · ∞ where a loop does not forget


def _changes(network: Network, x: Tensor) -> Iterator[Tensor]:
    """Bounds on |Δy|, one step after the other since the restart."""
    states = {units.name: _at_restart(units, x) for units in network.groups}
    outputs = {INPUT: torch.zeros_like(x[0, 0])}  # both runs have the same inputs
    while True:
        for units in network.groups:
            net = units.W.abs() @ _join(outputs, units.reads, 0)
            scale = SLOPE if units.kind == "activation" else 1.0  # the state is the output, not the net input
            states[units.name] = units.gain * states[units.name] + scale * net  # [LF-92 3 window]
            outputs[units.name] = states[units.name] * (SLOPE / scale)
        yield _join(outputs, network.outputs, 0)


def _at_restart(units: Units, x: Tensor) -> Tensor:
    """The largest possible |state|: |a| ≤ C/(1−|u|) with C ≥ |w·input + b| for net feedback, |h| ≤ 1."""
    if units.kind != "net":
        return torch.full_like(units.bias, 1.0 if units.kind == "activation" else 0.0)
    inside = units.W.abs().sum(-1) + units.bias.abs()  # the outputs of other units lie in (−1, 1)
    C = (x @ units.W.t() + units.bias).abs().amax((0, 1)) if units.reads == (INPUT,) else inside
    return torch.where(units.gain < 1, C / (1 - units.gain), math.inf)
