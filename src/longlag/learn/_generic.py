"""Real-time learning of any layer: each step is linearised by autograd, sample by sample."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.layers._module import Layer, State
from longlag.learn._rule import Errors, Method
from longlag.learn._state import Parts, StateForm, Values, copied, where


class Generic(Method):
    """E ← J E + ∂s(t)/∂θ with J and ∂s/∂θ from autograd: O(S² w) time, O(S w) memory per step and sample.

    Parameters on which the new state does not depend (an echo state network's read-out) have no influence to carry.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer, self.form = layer, StateForm(layer)
        self.trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}
        self.carried = self._influential()
        if self.carried and getattr(layer, "engine", "auto") not in ("auto", "reference"):
            raise ValueError(
                f"RTRL: {layer._name} must have engine='auto' or 'reference', got {layer.engine!r}: its step is "
                "differentiated by torch.func"
            )

    def _influential(self) -> dict[str, Tensor]:
        """The parameters that the state depends on."""
        with torch.enable_grad():
            _, new = call(self.layer, self.layer._weight.new_zeros(1, self.layer.input_size), None)
            total = sum(part.sum() for part in self.form.enter(new, 1))
        if not isinstance(total, Tensor) or not total.requires_grad:
            return {}
        grads = torch.autograd.grad(total, list(self.trained.values()), allow_unused=True)
        return {name: p for (name, p), g in zip(self.trained.items(), grads) if g is not None}

    def start(self, batch: int) -> Values:
        S = sum(part.numel() for part in self.form.rest(1))
        w = sum(p.numel() for p in self.carried.values())
        none = self.layer._weight.new_zeros(batch, S, w)
        return {"influence": none, "next": none, "seen": {}, "active": None}

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
        E = values["next"]
        if reset is not None:
            E = where(reset, torch.zeros_like(E), E)
        if self.carried:
            y, new, J, direct = self._linearise(x, before, teacher)
            following = torch.baddbmm(direct, J, E)  # [JORDAN 2 S]
        else:
            y, state = call(self.layer, x, self.form.leave(before), teacher)
            new, following = self.form.enter(state, len(x)), E
        if active is not None:
            y, new = where(active, y, 0.0), self.form.choose(active, new, past)
            following = where(active, following, E)
        seen = {"x": x.clone(), "state": copied(before), "teacher": teacher}
        return y, self.form.leave(new), {"influence": E, "next": following, "seen": seen, "active": active}

    def _linearise(self, x: Tensor, state: Parts, teacher: Tensor | None) -> tuple[Tensor, Parts, Tensor, Tensor]:
        """Output, new state, J (B, S, S) and ∂s/∂θ (B, S, w)."""
        parameters, rows = {name: p.detach() for name, p in self.carried.items()}, []
        for b in range(len(x)):
            one = tuple(part.narrow(self.form.batch_dim, b, 1) for part in state)
            given = None if teacher is None else teacher[b : b + 1]

            def step(
                parameters: dict[str, Tensor], one: Parts, x: Tensor = x[b : b + 1], given: Tensor | None = given
            ) -> tuple[Tensor, tuple[Tensor, Parts]]:
                y, after = call(self.layer, x, self.form.leave(one), given, parameters)
                new = self.form.enter(after, 1)
                return torch.cat([part.flatten() for part in new]), (y, new)

            s, back, (y, new) = torch.func.vjp(step, parameters, one, has_aux=True)  # pyright: ignore[reportAssignmentType]
            by_parameter, by_state = torch.func.vmap(back)(torch.eye(len(s), dtype=s.dtype, device=s.device))
            J = torch.cat([g.flatten(1) for g in by_state], 1)
            rows.append((y, new, J, torch.cat([g.flatten(1) for g in by_parameter.values()], 1)))
        ys, news, J, direct = zip(*rows)
        new = tuple(torch.cat(part, self.form.batch_dim) for part in zip(*news))
        return torch.cat(ys), new, torch.stack(J), torch.stack(direct)

    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        """Back through the last step by autograd; then through the influence on what the step had read."""
        assert isinstance(dy, Tensor)
        seen, E = values["seen"], values["influence"]
        if values["active"] is not None:
            dy = where(values["active"], dy, 0.0)
        state = tuple(part.detach().requires_grad_() for part in seen["state"])
        with torch.enable_grad():
            y, _ = call(self.layer, seen["x"], self.form.leave(state), seen["teacher"])
        read = [*self.trained.values(), *state]
        direct = torch.autograd.grad(y, read, dy, materialize_grads=True)
        grads = dict(zip(self.trained, direct))
        ds = torch.cat([g.movedim(self.form.batch_dim, 0).flatten(1) for g in direct[len(grads) :]], 1)  # (B, S)
        past = (ds.unsqueeze(1) @ E).sum((0, 1)).split([p.numel() for p in self.carried.values()])
        for (name, p), g in zip(self.carried.items(), past):
            grads[name] = grads[name] + g.view_as(p)
        return grads


def call(
    layer: Layer,
    x: Tensor,
    state: State | None,
    teacher: Tensor | None = None,
    parameters: dict[str, Tensor] | None = None,
) -> tuple[Tensor, State]:
    """One step of a layer: x (B, I); for Jordan, what the teacher feeds back (B, l); with other parameters if given."""
    time = 1 if layer.batch_first else 0
    given = {} if teacher is None else {"targets": teacher.unsqueeze(time)}
    if parameters is None:
        y, new = layer(x.unsqueeze(time), state, **given)
    else:
        y, new = torch.func.functional_call(layer, parameters, (x.unsqueeze(time), state), given)
    return y.squeeze(time), new
