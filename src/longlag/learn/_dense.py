"""Full influence: every parameter acts on every state value.

s: the state of one sequence as n numbers. E = ∂s/∂θ (B, n, w) is updated at every step:
    E(t) = J(t) E(t−1) + ∂s(t)/∂θ,    J = ∂s(t)/∂s(t−1).
An error at t goes back through step t, where parameters act directly, to s(t−1), where it multiplies the influence:
    dθ = dy ∂y(t)/∂θ + (dy ∂y(t)/∂s(t−1)) E(t−1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.layers import Layer, LinearStep
from longlag.layers.linear import Direct
from longlag.layers.state import State
from longlag.learn._rule import Errors, Method
from longlag.learn._state import Parameters, Values, attribute_paths, begin, copied, where


class LastStep:
    """The step that `gradients` reads. It shares no memory with the user's tensors and is not saved to files."""

    def __init__(self, step: LinearStep, blocks: list[Direct]) -> None:
        self.step, self.blocks = step, blocks


class Dense(Method):
    """Real-time gradients by products with the influence tensor: O(n² w) time and O(n w) memory per step."""

    def __init__(self, layer: Layer) -> None:
        if not layer.has_partials and layer.engine not in ("auto", "reference"):
            raise ValueError(
                f"RTRL: {layer.class_name} must have engine='auto' or 'reference', got {layer.engine!r}: its step is "
                "differentiated by torch.func"
            )
        carried = layer.state_parameters()
        paths = list(dict.fromkeys([*carried, *attribute_paths(layer)]))
        self.layer, self.parameters = layer, Parameters(layer, paths)
        self.paths = [path for path in paths if path in self.parameters]
        self.carried = [path for path in carried if path in self.parameters]

    def start(self, batch: int) -> Values:
        return {"before": {}, "after": {}, "active": None, "now": None}

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
        now = self.layer.linearise(x.clone(), spec.whole(copied(before)), teacher=teacher)
        J, blocks = now.influence(self.carried)
        E, after = values["after"] or {block.key: _zeros(block) for block in blocks}, {}
        if reset is not None:
            E = {key: where(reset, torch.zeros_like(value), value) for key, value in E.items()}
        for block in blocks:
            after[block.key] = self._advance(E[block.key], block, J, active, values["before"].get(block.key))
        y, new = now.y, now.state
        if active is not None:
            y, new = where(active, y, 0.0), spec.where(active, new, past)
        return y, spec.whole(new), {"before": E, "after": after, "active": active, "now": LastStep(now, blocks)}

    def _advance(self, E: Tensor, block: Direct, J: Tensor, active: Tensor | None, spare: Tensor | None) -> Tensor:
        """J E + C ⊗ source, written into the buffer ``spare`` if there is one (the influence of an earlier step)."""
        B, n, rows = block.C.shape
        new = torch.empty_like(E) if spare is None else spare
        if block.source is None:
            new.copy_(block.C)
        else:
            torch.mul(block.C.unsqueeze(-1), block.source[:, None, None, :], out=new.view(B, n, rows, -1))
        within = J if block.rows is None else J[:, block.rows][:, :, block.rows]
        new.baddbmm_(within, E)  # [ELMAN 1.3 S] [LSTM-FG 1.2 S] [LSTM-97 3.6 P] [JORDAN 2 S]
        return new if active is None else where(active, new, E)

    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        assert isinstance(dy, Tensor)
        if values["active"] is not None:
            dy = where(values["active"], dy, 0.0)
        last: LastStep = values["now"]
        ds, effective = last.step.gradients(dy, self.paths)
        for block in last.blocks:
            error = ds if block.rows is None else ds[:, block.rows]
            past = (error.unsqueeze(1) @ values["before"][block.key]).sum((0, 1))
            for path, gradient in block.assign(past).items():
                if path in effective:
                    effective[path] = effective[path] + gradient
        return self.parameters.pull_back(effective)


def _zeros(block: Direct) -> Tensor:
    """No influence yet: (B, n′, rows · width)."""
    B, n, rows = block.C.shape
    return block.C.new_zeros(B, n, rows * (1 if block.source is None else block.source.shape[-1]))
