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
        self._spare: dict[str, Tensor] = {}

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
        first, new = self.one_step.firsts[block.key], self._scratch(block)
        if block.source is None:
            new.copy_(block.C)
        else:
            by_row = new.view(*block.C.shape, -1)  # (B, S′, rows, width)
            torch.mul(block.C.unsqueeze(-1), block.source[:, None, None, :], out=by_row)
        if E is not None:
            old = E if reset is None else where(reset, torch.zeros_like(E), E)
            new.baddbmm_(J[:, first:, first:], old)  # [ELMAN 1.3 S] [LSTM-FG 1.2 S] [LSTM-97 3.6 P]
            self._spare[block.key] = E
        if active is None:
            return new
        return where(active, new, 0.0 if E is None else E)

    def _scratch(self, block: Block) -> Tensor:
        """Memory for a new influence: that of the last step, which nobody reads any more, if it fits."""
        B, S, rows = block.C.shape
        shape = (B, S, rows * (1 if block.source is None else block.source.shape[-1]))
        spare = self._spare.pop(block.key, None)
        return spare if spare is not None and spare.shape == shape else block.C.new_empty(shape)

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
