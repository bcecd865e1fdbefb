"""What all layers share: loading that refuses before it changes anything, and a name for messages."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longlag.layers._door import autocast, check_finite, enter, like

State = Tensor | tuple[Tensor, ...]


class Layer(nn.Module, abc.ABC):
    """Base of all layers: ``layer(x, state=None, *, lengths=None, reset=None) -> (output, state)``."""

    input_size: int
    batch_first: bool
    bidirectional: bool = False
    recurrent_dropout: float = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._name = type(self).__name__  # for messages; torch's parametrize makes a class of its own later
        self.register_load_state_dict_pre_hook(_refuse_non_finite)

    @property
    @abc.abstractmethod
    def _weight(self) -> Tensor:
        """Any weight: it knows dtype and device."""

    def step(self, x_t: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: x_t (B, I) or (I,); the state comes back to be handed in again."""
        if self.bidirectional:
            raise ValueError(f"{self._name}: step needs bidirectional=False: the other direction reads the future")
        if self.training and self.recurrent_dropout:
            raise ValueError(f"{self._name}: step needs recurrent_dropout=0 or eval(): a mask lasts a whole sequence")
        like(self._name, "input", autocast(x_t, self._weight), self._weight)
        if x_t.dim() not in (1, 2):
            raise ValueError(f"{self._name}: input of step must be (B, I) or (I,), got shape {tuple(x_t.shape)}")
        time = 1 if self.batch_first and x_t.dim() == 2 else 0
        y, new = self(x_t.unsqueeze(time), state)
        return y.squeeze(time), new

    _enter = enter

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch, but a call that fails changes nothing."""
        own = self.state_dict()
        wrong = [
            f"{name} must have shape {tuple(own[name].shape)}, got {tuple(value.shape)}"
            for name, value in state_dict.items()
            if name in own and isinstance(value, torch.Tensor) and value.shape != own[name].shape
        ]
        wrong += [
            f"{name} must be a tensor of real numbers, got {getattr(value, 'dtype', type(value).__name__)}"
            for name, value in state_dict.items()
            if name in own and (not isinstance(value, torch.Tensor) or value.is_complex())
        ]
        if strict:
            wrong += [f"{name} is missing" for name in own if name not in state_dict]
            wrong += [f"{name} is not a parameter of this layer" for name in state_dict if name not in own]
        if wrong:
            raise ValueError(f"{self._name}: cannot load state_dict: {'; '.join(wrong)}")
        return super().load_state_dict(state_dict, strict, assign)


def _refuse_non_finite(module: Layer, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    check_finite(module._name, state_dict, prefix)
