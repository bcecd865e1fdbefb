"""A module for TorchRL made of any layer."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs.transforms import TensorDictPrimer
from torchrl.modules import recurrent_mode

from longlag.layers import Layer, check_layer
from longlag.layers.state import Parts
from longlag.rl import _runs
from longlag.rl._make import one_way


class RecurrentModule(TensorDictModuleBase):
    """A layer in a policy of TorchRL, used as ``torchrl.modules.LSTMModule`` is.

    While an environment is stepped, the module runs `Layer.step`. In recurrent mode
    (``torchrl.modules.set_recurrent_mode``, which losses set) the last dimension of the tensordict is time, and all
    sequences run in one call. In both modes a new sequence starts where ``"is_init"`` is true; the transform
    ``InitTracker`` writes this entry.

    Args:
        layer: any one-way layer.
        in_key, out_key: entries of the input and of the output.
        state_keys: one entry per part of the state, ``recurrent_state_`` and the name of the part by default. The new
            state is written under ``("next", key)``.
        default_recurrent_mode: the mode outside of ``set_recurrent_mode``.

    In recurrent mode the new state is that of the last step; at steps before the last, ``("next", key)`` is zero.

    >>> import torch, longlag as ll
    >>> from torchrl.envs import GymEnv, InitTracker, TransformedEnv
    >>> from tensordict.nn import TensorDictModule, TensorDictSequential
    >>> memory = ll.rl.RecurrentModule(ll.GRU(4, 8), in_key="observation", out_key="embed")
    >>> memory.in_keys, memory.out_keys
    (['observation', 'recurrent_state_y', 'is_init'], ['embed', ('next', 'recurrent_state_y')])
    >>> env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), InitTracker())
    >>> env = env.append_transform(memory.make_tensordict_primer())
    >>> greedy = TensorDictModule(lambda y: y[..., :2].argmax(-1), ["embed"], ["action"])
    >>> env.rollout(5, TensorDictSequential(memory, greedy), break_when_any_done=False)["embed"].shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        layer: Layer,
        *,
        in_key: NestedKey,
        out_key: NestedKey,
        state_keys: list[NestedKey] | None = None,
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        check_layer("RecurrentModule", "layer", layer)
        self.layer = one_way("RecurrentModule", layer, layer.input_size)
        _runs.output_size(layer)  # raises for layers that cannot be reset
        names = layer.state_spec.names
        self.state_keys: list[Any] = state_keys or [f"recurrent_state_{name}" for name in names]
        if len(self.state_keys) != len(names):
            raise ValueError(
                f"RecurrentModule: state_keys must be {len(names)}, one per part of the state ({', '.join(names)}), "
                f"got {state_keys!r}"
            )
        self.in_keys: list[Any] = [in_key, *self.state_keys, "is_init"]
        self.out_keys: list[Any] = [out_key, *(("next", *_path(key)) for key in self.state_keys)]
        self._default_mode = default_recurrent_mode

    @property
    def recurrent_mode(self) -> bool:
        """Whether the last dimension of a tensordict is time."""
        mode = recurrent_mode()
        return self._default_mode if mode is None else mode

    @dispatch  # pyright: ignore[reportArgumentType]  (works with and without arguments)
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase
    ) -> TensorDictBase:
        """Read input, state and ``is_init``; write output and new state. A missing state is the initial state."""
        shape, spec, mode = tensordict.shape, self.layer.state_spec, self.recurrent_mode
        if mode and not shape:
            raise ValueError("RecurrentModule: recurrent mode needs a time dimension, got a tensordict without any")
        rows = (-1, shape[-1]) if mode else (-1,)
        x = tensordict.get(self.in_keys[0])
        if x is None or "is_init" not in tensordict:
            missing = self.in_keys[0] if x is None else "is_init"
            raise KeyError(f"RecurrentModule: the tensordict has no entry {missing!r}")
        x = x.reshape(*rows, self.layer.input_size)
        starts = tensordict.get("is_init").reshape(rows)
        parts = self._state(tensordict, rows, len(x))
        y, parts = (_runs.run if mode else _runs.step)(self.layer, spec, x, parts, starts)
        tensordict.set(self.out_keys[0], y.reshape(*shape, y.shape[-1]))
        for key, part, size in zip(self.out_keys[1:], parts, spec.shapes.values()):
            part = part.movedim(spec.batch_axis, 0)
            if mode:
                before = part.new_zeros(len(part), shape[-1] - 1, *size)
                part = torch.cat([before, part.unsqueeze(1)], 1)
            tensordict.set(key, part.reshape(*shape, *size))
        return tensordict

    def _state(self, tensordict: TensorDictBase, rows: tuple[int, ...], batch: int) -> Parts:
        """The parts of the state, each (…, B, …) as the layer takes them; of the first step if there is time."""
        spec, parts = self.layer.state_spec, list[Tensor]()
        for key, size in zip(self.state_keys, spec.shapes.values()):
            part = tensordict.get(key, None)
            if part is not None:
                part = part.reshape(*rows, *size)
                part = part[:, 0] if len(rows) == 2 else part
                parts.append(part.movedim(0, spec.batch_axis).contiguous())
        if parts and len(parts) < len(self.state_keys):
            raise KeyError(f"RecurrentModule: the tensordict must have all of {self.state_keys} or none")
        return tuple(parts) or spec.parts(self.layer.initial_state(batch))

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that makes an environment carry the state from step to step, zero at first."""
        dtype, shapes = self.layer.dtype, map(torch.Size, self.layer.state_spec.shapes.values())
        primers = {_path(key): Unbounded(shape=shape, dtype=dtype) for key, shape in zip(self.state_keys, shapes)}
        return TensorDictPrimer(primers, expand_specs=True)


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)
