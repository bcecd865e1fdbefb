"""Influence per unit: a weight acts on the future only through its own unit, so its trace is one number.

For the weights θ into a unit and every part q of the unit's own past, E_q = ∂q/∂θ (gates, B, H, width):
    E_q ← Σ_r (∂q/∂r) E_r + (∂q/∂net) source                          [LF-92 2.1 E] [LSTM-97 3.1] [LSTM-FG 1.3 E]
An error at t goes back through step t, then multiplies the influence on the values that step t read:
    dθ = Σ_b (dy ∂y/∂net) source + Σ_q (dy ∂y/∂q) E_q(t−1).
The traces therefore lag one step behind; the values keep the partials of the last step to advance the traces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from longlag.cells import Partials
from longlag.layers import Layer, State
from longlag.layers.units import FED_BACK, INPUT, Results, UnitGraph, UnitGroup
from longlag.learn._cross import Cross
from longlag.learn._loops import Loops
from longlag.learn._rule import Errors, Method, Unsupported
from longlag.learn._state import Parameters, Values, begin, copied, where

Traces = dict[str, Tensor]  # by part of the unit's past


class Diagonal(Method):
    """Real-time gradients of a layer that is a `UnitGraph`: O(w) time and memory per step.

    Args:
        cross: also keep the influence of lower groups on higher groups with feedback: O(H₂ w₁) for two layers.
        loops: also keep the influence of a group's weights on its own outputs through its matrix: O(H² w) for H units.
    """

    def __init__(self, layer: Layer, graph: UnitGraph, cross: bool, loops: bool = False) -> None:
        self.graph, self.layer = graph, layer
        self.parameters = Parameters(self.layer, [path for group in graph.groups for path in group.paths])
        self.trained = [g for g in graph.groups if any(path in self.parameters for path in g.paths)]
        self.cross = Cross(layer, graph, self.trained) if cross else None
        if self.cross and not self.cross.above:
            self.cross = None
        self.loops = Loops(layer, graph, self.trained) if loops else None
        self.output_sizes = [group.units for group in graph.groups if group.name in graph.outputs]
        # partials of the past; across layers, partials of the output too
        every = self.cross or self.loops
        self.steps = {g.name: g.cell.with_partials(g.cell.outputs if every else g.loop) for g in graph.groups}

    def start(self, batch: int) -> Values:
        own = {group.name: self._zeros(group, batch) for group in self.trained if group.loop}
        across, ones = self.cross.start(batch) if self.cross else {}, self.layer.any_weight.new_ones(batch, 1)
        loops = self.loops.start(batch) if self.loops else {}
        return {"own": own, "cross": across, "loops": loops, "last": {}, "active": None, "ones": ones}

    def units(self) -> tuple[UnitGraph, str, set[str]]:
        if self.cross or self.loops:
            raise Unsupported("the rule keeps an influence of units on each other")
        return self.graph, "traces", {group.name for group in self.trained}

    def settled(self, values: Values) -> Values:
        with torch.no_grad():
            self._advance(values)
        return {**values, "last": {}, "active": None}

    def _zeros(self, group: UnitGroup, batch: int) -> Values:
        new, cell, width = self.layer.any_weight.new_zeros, group.cell, group.width + group.biased
        weights = {part: new(len(group.traced), batch, group.units, width) for part in group.loop}
        return {"weights": weights, "params": {p: new(len(cell.params), batch, group.units, 1) for p in group.loop}}

    # ----------------------------------------------------------------------------------------------------- step
    def step(
        self,
        x: Tensor,
        state: State | None,
        values: Values,
        active: Tensor | None,
        reset: Tensor | None,
        teacher: Tensor | None,
    ) -> tuple[Tensor, State, Values]:
        spec = self.layer.state_spec
        past, before = begin(self.layer, state, len(x), reset)
        self._advance(values)
        if reset is not None:
            rested = reset.view(-1, 1, 1)
            _each((values["own"], values["cross"], values["loops"]), lambda E: E.masked_fill_(rested, 0.0))
        loops, fed_back = self.graph.split(before)
        read = {INPUT: x} if fed_back is None else {INPUT: x, FED_BACK: fed_back}
        results: Results = {}
        for group in self.graph.groups:
            results[group.name], values["last"][group.name] = self._run(group, read, loops[group.name], values["ones"])
            read[group.name] = results[group.name]["y"]
        y = _joined([read[name] for name in self.graph.outputs])
        new = self.graph.join(results)
        if active is not None:
            y, new = where(active, y, 0.0), spec.where(active, new, past)
        values["active"] = active
        return y, spec.whole(new), values

    def _run(
        self, group: UnitGroup, read: dict[str, Tensor], loop: tuple[Tensor, ...], ones: Tensor
    ) -> tuple[dict[str, Tensor], Values]:
        """A group's step; and the values kept: cell inputs and partials (B, H), source (B, width)."""
        cell, (W, b, params) = group.cell, group.weights()
        source = _joined([read[name] for name in group.reads])
        gates = group.gates(linear(source, W, b))
        # copies: the user's tensors may change before the traces are advanced
        inputs = (*gates, *(part.clone() for part in loop), *(param.detach().clone() for param in params))
        outputs, partials = self.steps[group.name](*inputs)
        source = source.clone() if b is None else torch.cat([source, ones], -1)
        last: Values = {"inputs": inputs, "partials": partials, "source": source}
        if self.cross or self.loops:
            last["W"] = W.detach().clone()
        return dict(zip(cell.gates, gates)) | outputs, last

    def _advance(self, values: Values) -> None:
        """Advance the traces over the last step."""
        if not values["last"]:
            return
        traces = (values["own"], values["cross"], values["loops"])
        active: Tensor | None = values["active"]
        frozen = None if active is None else copied(traces)
        if self.cross:
            self.cross.advance(values)  # reads the groups' own traces before they advance
        if self.loops:
            self.loops.advance(values)
        for group in self.trained:
            if group.loop:
                last, own = values["last"][group.name], values["own"][group.name]
                _advance(own["weights"], last["partials"], group.traced, last["source"].unsqueeze(-2))
                if group.cell.params:
                    _advance(own["params"], last["partials"], group.cell.params, values["ones"].unsqueeze(-2))
        if active is not None:
            kept = ~active.view(-1, 1, 1)
            _each(traces, lambda E, old: E.copy_(torch.where(kept, old, E)), frozen)

    # ------------------------------------------------------------------------------------------------- gradients
    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        assert isinstance(dy, Tensor)
        if values["active"] is not None:
            dy = where(values["active"], dy, 0.0)
        whole = len(self.output_sizes) == 1
        errors = dict(zip(self.graph.outputs, (dy,) if whole else dy.split(self.output_sizes, -1)))
        own: dict[str, tuple[Tensor, list[Tensor]]] = {}
        past: dict[str, dict[str, Tensor]] = {}  # errors of the values that the step read: (B, H) per part of the loop
        for group in reversed(self.graph.groups):
            cell = group.cell
            d = errors[group.name] if group.name in errors else dy.new_zeros(len(dy), group.units)
            back = cell.step_back(*values["last"][group.name]["inputs"], d, *[0.0] * len(cell.states))
            through = {v: e for v, e in zip(cell.inputs, back) if ("y", v) in cell.jacobian}
            past[group.name] = {part: through[part] for part in group.loop if part in through}
            nets = _joined([through[g] if g in through else torch.zeros_like(d) for g in cell.gates])
            if group in self.trained:
                own[group.name] = _gradient(group, values, nets, through)
                if self.loops:
                    self.loops.add_gradient(group, values, nets, own[group.name][0])
            if spans := self.graph.spans[group.name]:
                dx = nets @ group.weights()[0]  # errors within the step [LF-92 2 δ_j]
                for name, span in spans.items():
                    errors[name] = errors[name] + dx[:, span] if name in errors else dx[:, span]
        if self.cross:
            self.cross.gradients(values, past, own)
        effective: dict[str, Tensor] = {}
        for group in self.trained:
            dW, dparams = own[group.name]
            db = dW[:, -1] if group.biased else None
            effective |= group.gradients(dW[:, : group.width], db, dict(zip(group.cell.params, dparams)))
        return self.parameters.pull_back(effective)


def _gradient(group: UnitGroup, values: Values, nets: Tensor, through: Traces) -> tuple[Tensor, list[Tensor]]:
    """dW (G·H, width) and the gradients of the params, each (H,): the last step's part plus the past's part."""
    params = group.cell.params
    dW = nets.t() @ values["last"][group.name]["source"]
    dparams = [through[name].sum(0) if name in through else nets.new_zeros(group.units) for name in params]
    for part in group.loop:
        if part in through:
            d, traces = through[part].unsqueeze(-1), values["own"][group.name]
            by_gate = dW.view(len(group.cell.gates), group.units, -1)[group.traced_rows]
            by_gate += (d * traces["weights"][part]).sum(1)  # [LF-92 2.1 g] [LSTM-97 3.1 dw] [RFLO 1 dθ]
            if params:
                past = (d * traces["params"][part]).sum(1).squeeze(-1)
                dparams = [direct + more for direct, more in zip(dparams, past)]
    return dW, dparams


def _advance(E: Traces, partials: Partials, names: tuple[str, ...], source: Tensor) -> None:
    """E_q ← Σ_r (∂q/∂r) E_r + (∂q/∂name) source, in place; E_q (names, B, H, width), source (B, 1, width)."""
    new = E if len(E) == 1 else {part: torch.zeros_like(E_q) for part, E_q in E.items()}
    for part, E_q in new.items():
        if new is E:
            _scale(E_q, partials.get((part, part)))
        else:
            for other, E_r in E.items():
                if (p := partials.get((part, other))) is not None:
                    E_q += E_r * (p.unsqueeze(-1) if isinstance(p, Tensor) else p)
        direct = _column(partials, part, names, E_q)
        if isinstance(direct, Tensor):
            E_q.addcmul_(direct, source)  # [LF-92 2.1 E] [LSTM-97 3.1 A] [LSTM-97 3.1 B] [LSTM-FG 1.3 E] [RFLO 1 ε]
        elif direct:
            E_q.add_(source, alpha=direct)
    if new is not E:
        for part, E_q in E.items():
            E_q.copy_(new[part])


def _column(partials: Partials, part: str, names: tuple[str, ...], like: Tensor) -> Tensor | float:
    """∂part/∂names as (names, B, H, 1), or one number."""
    values = [partials.get((part, name), 0.0) for name in names]
    if len(values) == 1:
        return values[0].unsqueeze(-1) if isinstance(values[0], Tensor) else values[0]
    wide = [v if isinstance(v, Tensor) else torch.as_tensor(v).to(like) for v in values]
    return torch.stack([v if v.shape == like.shape[1:3] else v.expand(like.shape[1:3]) for v in wide]).unsqueeze(-1)


def _scale(E: Tensor, gain: Tensor | float | None) -> None:
    if isinstance(gain, Tensor):
        E.mul_(gain.unsqueeze(-1))
    elif gain != 1:
        E.mul_(gain or 0.0)


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def _each(traces: Any, function: Any, *others: Any) -> None:
    """Apply to every tensor of nested dicts, and to its counterparts."""
    if isinstance(traces, Tensor):
        function(traces, *others)
    else:
        items = traces.items() if isinstance(traces, dict) else enumerate(traces)
        for key, value in items:
            _each(value, function, *(other[key] for other in others))
