"""Policies for sb3-contrib's ``RecurrentPPO`` made of any layer or cell."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn
from torch.nn.functional import pad

from longlag.layers import Layer
from longlag.layers.state import Parts
from longlag.rl import _runs
from longlag.rl._make import LayerLike, make_layer

Buffers = tuple[Tensor, Tensor]


class BufferedLayer(nn.Module):
    """A layer whose state is kept in the two tensors h, c (1, B, n) of sb3-contrib's rollout buffers.

    [h, c] is the state as one row of numbers per sequence (`StateSpec.flatten`), with a zero at the end if the state
    has an odd number of numbers. For an LSTM of one level, h and c are those of ``torch.nn.LSTM``.

    Attributes:
        num_layers, hidden_size: 1 and n; sb3-contrib gives its buffers this shape.
    """

    num_layers = 1

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer, self.input_size, self.spec = layer, layer.input_size, layer.state_spec
        self.hidden_size = (self.spec.size + 1) // 2
        as_buffers = [(1, self.hidden_size)] * 2
        self._parts_are_buffers = self.spec.batch_axis == 1 and list(self.spec.shapes.values()) == as_buffers
        self.register_load_state_dict_pre_hook(_accept_plain_names)

    def forward(self, features: Tensor, buffers: Buffers, episode_starts: Tensor) -> tuple[Tensor, Buffers]:
        """Run B sequences of T steps, one after the other: features (B · T, I) to outputs (B · T, O).

        Args:
            episode_starts: (B · T,), 0 where no episode starts.
        """
        parts, batch = buffers if self._parts_are_buffers else self._from_buffers(buffers), buffers[0].shape[1]
        if len(features) == batch and not self.training:
            y, parts = _runs.step(self.layer, self.spec, features, parts, episode_starts.view(batch))
        else:
            starts = episode_starts.view(batch, -1) != 0
            y, parts = _runs.run(self.layer, self.spec, features.view(batch, -1, self.input_size), parts, starts)
            y = y.flatten(0, 1)
        return y, (parts[0], parts[1]) if self._parts_are_buffers else self._to_buffers(parts)

    def _from_buffers(self, buffers: Buffers) -> Parts:
        rows = torch.cat([part[0] for part in buffers], -1)[:, : self.spec.size]
        return tuple(part.contiguous() for part in self.spec.unflatten(rows))

    def _to_buffers(self, parts: Parts) -> Buffers:
        rows = pad(self.spec.flatten(parts), (0, self.spec.size % 2)).unsqueeze(0)
        return rows[..., : self.hidden_size], rows[..., self.hidden_size :]


def _accept_plain_names(module: BufferedLayer, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load the weights of a stock policy's ``nn.LSTM``, whose names have no ``layer.``."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        own = name.removeprefix(prefix)
        if not own.startswith("layer."):
            state_dict[f"{prefix}layer.{own}"] = state_dict.pop(name)


class RecurrentPolicy(RecurrentActorCriticPolicy):
    """A policy for sb3-contrib's ``RecurrentPPO`` that remembers with any layer or cell of longlag.

    While the agent acts, the layer runs by `Layer.step`, without autograd. While it learns, all sequences of a
    minibatch run in one call, with ``reset`` where episodes start.

    Args:
        layer: a class of layers, a cell, the name of either (``"LSTM"``, ``"gru"``), or a function that makes a layer
            from the number of features: ``lambda n: ll.LSTM97(n, 16, 4)``.
        lstm_hidden_size, n_lstm_layers: hidden_size and num_layers of the layer, 256 and 1 by default.
        lstm_kwargs: further options of the layer. A function takes neither sizes nor options.
        options: as in ``MlpLstmPolicy``: ``shared_lstm``, ``enable_critic_lstm``, ``net_arch``, …

    A critic without a layer of its own (``enable_critic_lstm=False``) reads the features, or the outputs of the
    actor's layer if ``shared_lstm=True``. The weights of a stock LSTM policy load into ``layer="LSTM"`` of the same
    sizes.

    >>> import longlag as ll
    >>> from sb3_contrib import RecurrentPPO
    >>> options = dict(layer=ll.GRU, lstm_hidden_size=8)
    >>> model = RecurrentPPO(ll.rl.RecurrentPolicy, "CartPole-v1", n_steps=16, policy_kwargs=options)
    >>> model.policy.lstm_actor.layer
    GRU(4, 8)
    >>> model.learn(32).num_timesteps >= 32
    True
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        layer: LayerLike = "LSTM",
        lstm_hidden_size: int | None = None,
        n_lstm_layers: int | None = None,
        lstm_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._sizes = {"layer": layer, "lstm_hidden_size": lstm_hidden_size, "n_lstm_layers": n_lstm_layers}
        self._layer_options = lstm_kwargs or {}
        self._made: list[BufferedLayer] = []  # not yet registered: the parent's own LSTM comes first
        super().__init__(observation_space, action_space, lr_schedule, lstm_hidden_size=1, **options)
        actor = self._made.pop()
        self.lstm_kwargs, self.lstm_hidden_state_shape = self._layer_options, (1, 1, actor.hidden_size)
        self.lstm_actor = actor  # pyright: ignore[reportAttributeAccessIssue]  (declared as nn.LSTM)
        if self.lstm_critic is not None:
            self.lstm_critic = self._make()  # pyright: ignore[reportAttributeAccessIssue]
        if self.critic is not None:
            self.critic = nn.Linear(self.features_dim, self.lstm_output_dim)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # pyright: ignore[reportCallIssue]

    def _make(self) -> BufferedLayer:
        layer, hidden_size, num_layers = self._sizes.values()
        owner = type(self).__name__
        return BufferedLayer(make_layer(owner, layer, self.features_dim, hidden_size, num_layers, self._layer_options))

    def _build_mlp_extractor(self) -> None:
        """Called by the parent's constructor when the size of the features is known and that of outputs is needed."""
        self._made.append(self._make())
        self.lstm_output_dim = _runs.output_size(self._made[0].layer)
        super()._build_mlp_extractor()

    @staticmethod
    def _process_sequence(  # pyright: ignore[reportIncompatibleMethodOverride]
        features: Tensor, lstm_states: Buffers, episode_starts: Tensor, lstm: BufferedLayer
    ) -> tuple[Tensor, Buffers]:
        return lstm(features, lstm_states, episode_starts)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        shared = {"shared_lstm": self.shared_lstm, "enable_critic_lstm": self.enable_critic_lstm}
        features = {"share_features_extractor": self.share_features_extractor}
        options = {"lstm_kwargs": self._layer_options}
        return {**super()._get_constructor_parameters(), **self._sizes, **options, **shared, **features}


class RecurrentCnnPolicy(RecurrentPolicy):
    """`RecurrentPolicy` for images, as ``CnnLstmPolicy``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": NatureCNN, **options})


class RecurrentMultiInputPolicy(RecurrentPolicy):
    """`RecurrentPolicy` for observations that are dicts, as ``MultiInputLstmPolicy``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **options})
