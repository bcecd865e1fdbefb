"""Rules that carry the influence of the parameters on the state along, by the derivatives of a layer's step.

s: the state of one sequence as n numbers. E = ∂s/∂θ (B, n, w) is updated at every step:
    E(t) = J(t) E(t−1) + ∂s(t)/∂θ,    J = ∂s(t)/∂s(t−1).
An error at t goes back through step t, where parameters act directly, to s(t−1), where it multiplies the influence:
    dθ = dy ∂y(t)/∂θ + (dy ∂y(t)/∂s(t−1)) E(t−1).
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from longlag.layers import Layer, LinearStep
from longlag.layers.linear import Direct
from longlag.layers.state import State
from longlag.layers.units import CutRecurrent, NotLocal, UnitGraph
from longlag.learn._rule import Errors, Method, Unsupported
from longlag.learn._state import Parameters, Values, attribute_paths, begin, copied, where

Influence = dict[str, Tensor]  # each tensor (B, …)


class LastStep:
    """The step that `gradients` reads. It shares no memory with the user's tensors and is not saved to files."""

    def __init__(self, step: LinearStep, blocks: list[Direct]) -> None:
        self.step, self.blocks = step, blocks


class Linearised(Method):
    """Gradients from an influence, exact or approximate, that every step updates.

    Args:
        owner: the rule, for messages.
    """

    def __init__(self, owner: str, layer: Layer) -> None:
        if not layer.has_partials and layer.engine not in ("auto", "reference"):
            raise ValueError(
                f"{owner}: {layer.class_name} must have engine='auto' or 'reference', got {layer.engine!r}: its step "
                "is differentiated by torch.func"
            )
        carried = layer.state_parameters()
        # closed-form derivatives are by what the equations read, those of autograd by parameter
        read = attribute_paths(layer) if layer.has_partials else [name for name, _ in layer.named_parameters()]
        paths = list(dict.fromkeys([*carried, *read]))
        self.layer, self.parameters = layer, Parameters(layer, paths)
        self.paths = [path for path in paths if path in self.parameters]
        self.carried = [path for path in carried if path in self.parameters]

    @abc.abstractmethod
    def none(self, J: Tensor, blocks: list[Direct]) -> Influence:
        """No influence yet."""

    @abc.abstractmethod
    def advance(self, values: Values, E: Influence, J: Tensor, blocks: list[Direct]) -> Influence:
        """The influence after a step, from E before the step; ``values["before"]`` holds buffers free for reuse."""

    @abc.abstractmethod
    def past(self, E: Influence, last: LastStep, dy: Tensor, ds: Tensor) -> list[Tensor]:
        """Block by block, the gradient (rows · width,) through the state that the last step read.

        ds: (B, n) the error of that state; E: the influence on that state.
        """

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
        E: Influence = values["after"] or self.none(J, blocks)
        if reset is not None:
            E = {key: where(reset, torch.zeros_like(value), value) for key, value in E.items()}
        after, y, new = self.advance(values, E, J, blocks), now.y, now.state
        if active is not None:
            after = {key: where(active, value, E[key]) for key, value in after.items()}
            y, new = where(active, y, 0.0), spec.where(active, new, past)
        last = LastStep(now, blocks)
        return y, spec.whole(new), {**values, "before": E, "after": after, "active": active, "now": last}

    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        assert isinstance(dy, Tensor)
        if values["active"] is not None:
            dy = where(values["active"], dy, 0.0)
        last: LastStep = values["now"]
        ds, effective = last.step.gradients(dy, self.paths)
        for block, past in zip(last.blocks, self.past(values["before"], last, dy, ds)):
            for path, gradient in block.assign(past).items():
                if path in effective:
                    effective[path] = effective[path] + gradient
        return self.parameters.pull_back(effective)


class Dense(Linearised):
    """Exact gradients by products with the influence tensor: O(n² w) time and O(n w) memory per step."""

    def none(self, J: Tensor, blocks: list[Direct]) -> Influence:
        """E (B, n′, rows · width) of every block."""
        zeros = {}
        for block in blocks:
            B, n, rows = block.C.shape
            zeros[block.key] = J.new_zeros(B, n, rows * width(block))
        return zeros

    def advance(self, values: Values, E: Influence, J: Tensor, blocks: list[Direct]) -> Influence:
        return {block.key: _advance(E[block.key], block, J, values["before"].get(block.key)) for block in blocks}

    def units(self) -> tuple[UnitGraph, str, set[str]]:
        return one_level(self, "rtrl")

    def past(self, E: Influence, last: LastStep, dy: Tensor, ds: Tensor) -> list[Tensor]:
        return [(at(ds, block).unsqueeze(1) @ E[block.key]).sum((0, 1)) for block in last.blocks]


def one_level(method: Linearised, rule: str) -> tuple[UnitGraph, str, set[str]]:
    """The units of a dense layer of one level, for the compiled engine and one of its rules."""
    try:
        graph = method.layer.local_units(cut=True)
    except NotLocal as reason:
        raise Unsupported(f"{method.layer.class_name} {reason}") from None
    if not isinstance(graph, CutRecurrent):
        raise Unsupported(f"{method.layer.class_name} is not a layer of one cell")
    return graph, rule, {group.name for group in graph.groups if any(path in method.paths for path in group.paths)}


def _advance(E: Tensor, block: Direct, J: Tensor, spare: Tensor | None) -> Tensor:
    """J E + C ⊗ source, written into the buffer ``spare`` if there is one (the influence of an earlier step)."""
    B, n, rows = block.C.shape
    new = torch.empty_like(E) if spare is None else spare
    if block.source is None:
        new.copy_(block.C)
    else:
        torch.mul(block.C.unsqueeze(-1), block.source[:, None, None, :], out=new.view(B, n, rows, -1))
    within = J if block.rows is None else J[:, block.rows][:, :, block.rows]
    return new.baddbmm_(within, E)  # [ELMAN 1.3 S] [LSTM-FG 1.2 S] [LSTM-97 3.6 P] [JORDAN 2 S]


def width(block: Direct) -> int:
    """Parameters per row of the block."""
    return 1 if block.source is None else block.source.shape[-1]


def at(values: Tensor, block: Direct) -> Tensor:
    """The values (B, n) of the states that the block can reach."""
    return values if block.rows is None else values[:, block.rows]
