"""A layer from a function or module that computes one step: for steps that are not equations of a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longlag.layers import validation
from longlag.layers.state import Parts
from longlag.layers.step_layer import StepLayer


class StepFunction(StepLayer):
    """A recurrent layer whose step is any torch code; see `Recurrent.from_step`, which creates one."""

    def __init__(
        self,
        step: Callable[..., tuple[Tensor, Tensor | Parts]],
        input_size: int,
        state: int | Mapping[str, int],
        params: Mapping[str, Tensor] | None = None,
        *,
        batch_first: bool = False,
    ) -> None:
        super().__init__(input_size, batch_first=batch_first)
        if not callable(step):
            raise TypeError(f"from_step: step must be a function or a module, got {type(step).__name__}")
        if isinstance(step, nn.Module) and params is not None:
            raise ValueError("from_step: params must be None where step is a module, which owns its parameters")
        self.step_of = step
        self._sizes = {"h": state} if isinstance(state, int) else dict(state)
        for name, size in self._sizes.items():
            validation.positive("from_step", f"state {name}", size)
        for name, value in (params or {}).items():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                raise TypeError(f"from_step: params[{name!r}] must be a tensor of real numbers, got {_kind(value)}")
            self.register_parameter(name, value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach()))
        self._param_names = tuple(params or ())
        if not any(True for _ in self.parameters()):
            raise ValueError("from_step: a layer needs parameters, got none (params, or a module with parameters)")

    @property
    def state_sizes(self) -> Mapping[str, int]:
        return self._sizes

    def advance(self, x_t: Tensor, state: Parts) -> tuple[Tensor, Parts]:
        before = self.state_spec.whole(state)
        given = () if isinstance(self.step_of, nn.Module) else ({n: getattr(self, n) for n in self._param_names},)
        returned = self.step_of(x_t, before, *given)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(f"{self._named}: step must return (y, state), got {_kind(returned)}")
        y, new = returned
        if not isinstance(y, Tensor) or y.dim() < 2 or len(y) != len(x_t):
            raise validation.ShapeError(f"{self._named}: y must be a tensor ({len(x_t)}, …), got {_kind(y)}")
        parts = self.state_spec.parts(new)
        wanted = [(len(x_t), n) for n in self._sizes.values()]
        if [tuple(part.shape) for part in parts] != wanted:
            got = ", ".join(map(_kind, parts))
            raise validation.ShapeError(f"{self._named}: the new state {list(self._sizes)} must be {wanted}, got {got}")
        return y, parts

    @property
    def _named(self) -> str:
        return f"from_step({getattr(self.step_of, '__name__', type(self.step_of).__name__)})"

    def extra_repr(self) -> str:
        name = getattr(self.step_of, "__name__", type(self.step_of).__name__)
        return f"{name}, {self.input_size}, state={dict(self._sizes)}"


def _kind(value: Any) -> str:
    return f"{tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
