"""Back-propagation through time, whole or through the last k steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.layers import Layer, State, validation
from longlag.layers.state import Parts
from longlag.learn._rule import Errors, Method, Rule
from longlag.learn._state import Values, begin, copied, where


class BPTT(Rule):
    """Back-propagation through time: exact for every layer, memory O(T).

    The trace keeps the inputs since `start`. `gradients` runs the layer over these inputs again, with the present
    weights, and back-propagates through all steps: O(T w) per call. Pass the errors of many steps at once.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.GRU(3, 5), ll.learn.BPTT()
    >>> x, state, trace, errors = torch.randn(50, 2, 3), None, rule.start(layer, 2), []
    >>> for x_t in x:
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    ...     errors.append(y)  # the error of ½ Σ y²
    >>> grads = rule.gradients(layer, trace, errors)
    >>> (layer(x)[0] ** 2).sum().div(2).backward()
    >>> torch.allclose(grads["weight_hh_l0"], layer.weight_hh_l0.grad, atol=1e-4)
    True
    """

    deferred = True

    def _method(self, layer: Layer) -> Method:
        return Window(self._name, layer, None)


class TruncatedBPTT(Rule):
    """Back-propagation through the last k steps; the state before these steps is a constant.

    Called at every k-th step with the errors of the last k steps, as `Online` does with ``every=k``, this is training
    in chunks. Called at every step with the last error, the window slides. Memory O(k).

    Args:
        k: number of steps an error goes back through, including the step of the error.
    """

    deferred = True

    def __init__(self, k: int) -> None:
        self.window = validation.positive("TruncatedBPTT", "k", k)

    def _method(self, layer: Layer) -> Method:
        return Window(self._name, layer, self.window)

    def __repr__(self) -> str:
        return f"TruncatedBPTT({self.window})"


class Window(Method):
    """The last k steps of a layer (all of them for None), stored as inputs and the state before the first."""

    def __init__(self, owner: str, layer: Layer, k: int | None) -> None:
        self.owner, self.layer, self.k = owner, layer, k
        self.trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}

    def start(self, batch: int) -> Values:
        return {"steps": [], "states": []}

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
        y, new_state = self.layer.taught_step(x, spec.whole(before), teacher)
        new = spec.parts(new_state)
        if self.layer.draws and teacher is None:
            teacher = new[0]  # the drawn values are constants when the steps are run again
        if active is not None:
            y, new = where(active, y, 0.0), spec.where(active, new, past)
        steps, states = values["steps"], values["states"]
        steps.append({"x": x.clone(), "active": active, "reset": reset, "teacher": teacher})
        if self.k or not states:
            states.append(copied(past))
        if self.k and len(steps) > self.k:
            del steps[0], states[0]
        return y, spec.whole(new), values

    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        errors = [dy] if isinstance(dy, Tensor) else list(dy)
        steps = values["steps"]
        if len(errors) > len(steps):
            raise ValueError(
                f"{self.owner}: dy_t must hold at most the {len(steps)} steps of the trace, got {len(errors)}"
            )
        with torch.enable_grad():
            outputs = self._run(steps, values["states"][0])
        scored = [(y, d) for y, d in zip(outputs[len(steps) - len(errors) :], errors) if d is not None]
        if not scored:
            return {name: torch.zeros_like(p) for name, p in self.trained.items()}
        ys, ds = zip(*scored)
        grads = torch.autograd.grad(ys, list(self.trained.values()), ds, materialize_grads=True)
        return dict(zip(self.trained, grads))

    def _run(self, steps: list[Values], state: Parts) -> Sequence[Tensor]:
        """The outputs of the window, under autograd."""
        taught = [step["teacher"] is not None for step in steps]
        if any(step["active"] is not None for step in steps) or (any(taught) and not all(taught)):
            return self._step_by_step(steps, state)
        time = 1 if self.layer.batch_first else 0
        given = {"targets": torch.stack([step["teacher"] for step in steps], time)} if all(taught) else {}
        if any(step["reset"] is not None for step in steps):
            none = torch.zeros(len(steps[0]["x"]), dtype=torch.bool, device=steps[0]["x"].device)
            marks = [none if step["reset"] is None else step["reset"] for step in steps]
            given["reset"] = torch.stack(marks, time)
        whole = self.layer.state_spec.whole(state)
        y, _ = self.layer(torch.stack([step["x"] for step in steps], time), whole, **given)
        return y.unbind(time)

    def _step_by_step(self, steps: list[Values], state: Parts) -> list[Tensor]:
        outputs, spec = [], self.layer.state_spec
        for step in steps:
            B, reset, active = len(step["x"]), step["reset"], step["active"]
            before = state if reset is None else spec.where(reset, self.layer.validate_state(None, B), state)
            y, new_state = self.layer.taught_step(step["x"], spec.whole(before), step["teacher"])
            new = spec.parts(new_state)
            outputs.append(y if active is None else where(active, y, 0.0))
            state = new if active is None else spec.where(active, new, state)
        return outputs
