"""Influence across layers: of lower weights on the past of higher units. [LF-92-ML 5 P]

For a group j of weights and a group k above it, X_q = ∂q_k/∂θ_j (B, H_k, w_j) for every part q of k's past:
    ∂net_k/∂θ = Σ_i W_ki ∂y_i/∂θ    over the groups i that k reads
    X_q ← Σ_r (∂q/∂r) X_r + (∂q/∂net_k) ∂net_k/∂θ.
Two layers: O(H₂ w₁) time and memory per step. From the third on ∂y₂/∂θ₁ is full, and a step costs O(H₃ H₂ w₁).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.layers import Layer
from longlag.layers.units import UnitGraph, UnitGroup
from longlag.learn._state import Values

Influence = dict[str, Tensor]


class Cross:
    """The cross-layer traces of a graph."""

    def __init__(self, layer: Layer, graph: UnitGraph, trained: Sequence[UnitGroup]) -> None:
        self.graph, self.layer = graph, layer
        self.groups = {group.name: group for group in graph.groups}
        above = {j.name: [k for k in graph.groups if j.name in graph.below(k.name)] for j in trained}
        self.above = {j: groups for j, groups in above.items() if any(k.loop for k in groups)}

    def start(self, batch: int) -> Values:
        new = self.layer.any_weight.new_zeros
        return {
            j: {k.name: {part: new(batch, k.units, sum(self._sizes(j))) for part in k.loop} for k in above}
            for j, above in self.above.items()
        }

    def _sizes(self, j: str) -> list[int]:
        """Number of weights in each of the group's columns: gates, then params."""
        group = self.groups[j]
        weights = [group.units * (group.width + group.biased)] * len(group.cell.gates)
        return weights + [group.units] * len(group.cell.params)

    def advance(self, values: Values) -> None:
        """Advance the traces over the last step; the groups' own traces must not have been advanced yet."""
        for j, above in self.above.items():
            own = _own_output(self.groups[j], values)
            outputs: Influence = {}  # ∂y_i/∂θ_j (B, H_i, w_j) of the groups done so far
            for k in above:
                partials, X = values["last"][k.name]["partials"], values["cross"][j][k.name]
                read = {**X, **self._nets(j, k, values["last"][k.name]["W"], own, outputs)}
                new = {out: _chain(partials, out, read) for out in ("y", *k.loop)}
                outputs[k.name] = new["y"]
                for part, X_q in X.items():
                    X_q.copy_(new[part])  # [LF-92-ML 5 P]

    def _nets(self, j: str, k: UnitGroup, W: Tensor, own: list[Tensor], outputs: Influence) -> Influence:
        """∂net/∂θ_j (B, H_k, w_j) of every gate of k."""
        nets = {}
        for gate, rows in zip(k.cell.gates, W.split(k.units)):
            terms = []
            for name, span in self.graph.spans[k.name].items():
                W_ki = rows[:, span]  # (H_k, H_i)
                if name == j:  # ∂y_j/∂θ_j is diagonal in the units: no sum
                    terms.append(torch.cat([(W_ki.unsqueeze(-1) * E.unsqueeze(1)).flatten(2) for E in own], -1))
                elif name in outputs:
                    terms.append(W_ki @ outputs[name])
            nets[gate] = _sum(terms)
        return nets

    def gradients(
        self, values: Values, past: dict[str, Influence], own: dict[str, tuple[Tensor, list[Tensor]]]
    ) -> None:
        """Add to each group's gradients the part that reaches the error through the past of higher groups."""
        for j, above in self.above.items():
            terms = [
                (d.unsqueeze(1) @ values["cross"][j][k.name][part]).sum((0, 1))  # (B, 1, H_k) (B, H_k, w_j)
                for k in above
                for part, d in past[k.name].items()
            ]
            if terms:
                (dW, dparams), total = own[j], _sum(terms)
                dW += total[: dW.numel()].view_as(dW)
                more = total[dW.numel() :].split(self.groups[j].units)
                dparams[:] = [direct + past for direct, past in zip(dparams, more)]


def _own_output(group: UnitGroup, values: Values) -> list[Tensor]:
    """∂y/∂θ after the last step, by unit: (B, H, width) for every gate, (B, H, 1) for every param."""
    last, traces = values["last"][group.name], values["own"].get(group.name, {"weights": {}, "params": {}})
    source = last["source"].unsqueeze(1)
    like = source.new_zeros(len(source), group.units, source.shape[-1])
    outputs = []
    for gate in group.cell.gates:
        past = {}
        if gate in group.traced:
            past = {part: E[group.traced.index(gate)] for part, E in traces["weights"].items()}
        outputs.append(like + _chain(last["partials"], "y", {**past, gate: source}))
    for k, name in enumerate(group.cell.params):
        past = {part: F[k] for part, F in traces["params"].items()}
        outputs.append(like[:, :, :1] + _chain(last["partials"], "y", {**past, name: source.new_ones(1, 1, 1)}))
    return outputs


def _chain(partials: dict, out: str, read: Influence) -> Tensor:
    """Σ_in (∂out/∂in) · influence on in; partials are numbers or (B, H), influences (B, H, w)."""
    found = [(partials[out, name], value) for name, value in read.items() if (out, name) in partials]
    terms = [(p.unsqueeze(-1) if isinstance(p, Tensor) else p) * value for p, value in found]
    return _sum(terms) if terms else torch.zeros(())


def _sum(terms: Iterable[Any]) -> Any:
    return functools.reduce(operator.add, terms, 0.0)
