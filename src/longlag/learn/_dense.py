"""Full influence: every parameter reaches every number of the state.

s: the state of all levels, S numbers. For parameters of one level, E (B, S′, rows · width) over it and those above:
    E ← J E + C ⊗ source,    J = ∂s(t)/∂s(t−1),    C = ∂s(t)/∂net.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.layers._module import State
from longlag.learn._linear import Block, Step
from longlag.learn._rule import Errors, Method
from longlag.learn._state import Parameters, StateForm, Values, where


class Dense(Method):
    """Real-time gradients by products with the influence tensor: O(S² w) time and O(S w) memory per step."""

    def __init__(self, step: Step) -> None:
        self.layer, self.one_step, self.form = step.layer, step, StateForm(step.layer)
        self.parameters = Parameters(self.layer, step.paths)

    def start(self, batch: int) -> Values:
        return {"influence": {}, "seen": {}, "active": None}

    def step(
        self,
        x: Tensor,
        state: State | None,
        values: Values,
        active: Tensor | None,
        reset: Tensor | None,
        teacher: Tensor | None,
    ) -> tuple[Tensor, State, Values]:
        past, before = self.form.begin(state, len(x), reset)
        now = self.one_step.linear(x, before)
        influence = {
            block.key: self._advance(values["influence"].get(block.key), block, now.J, active, reset)
            for block in now.blocks
            if any(path in self.parameters for path in self.one_step.read_by(block.key))
        }
        y, new = now.y, now.state
        if active is not None:
            y, new = where(active, y, 0.0), self.form.choose(active, new, past)
        return y, self.form.leave(new), {"influence": influence, "seen": now.seen, "active": active}

    def _advance(
        self, E: Tensor | None, block: Block, J: Tensor, active: Tensor | None, reset: Tensor | None
    ) -> Tensor:
        direct = block.C
        if block.source is not None:
            direct = (block.C.unsqueeze(-1) * block.source[:, None, None, :]).flatten(2)  # (B, S′, rows · width)
        if E is None:
            return direct if active is None else where(active, direct, 0.0)
        first = self.one_step.firsts[block.key]
        old = E if reset is None else where(reset, torch.zeros_like(E), E)
        new = torch.baddbmm(direct, J[:, first:, first:], old)  # [ELMAN 1.3 S], [LSTM-FG 1.2 S], [LSTM-97 3.6 P, Q]
        return new if active is None else where(active, new, E)

    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        assert isinstance(dy, Tensor)
        if values["active"] is not None:
            dy = where(values["active"], dy, 0.0)
        errors, grads = self.one_step.back(values["seen"], dy, self.parameters.others)
        effective: dict[str, Tensor] = {}
        for key, E in values["influence"].items():
            first = self.one_step.firsts[key]
            total = E.new_zeros(E.shape[-1])
            for rows, d in errors:
                total += (d.unsqueeze(1) @ E[:, rows.start - first : rows.stop - first]).sum((0, 1))
            effective |= self.one_step.effective(key, total)
        return {**grads, **self.parameters.pull_back(effective)}
