"""`Joined`: the numbers per step of a layer as features of its input."""

from __future__ import annotations

from torch import Tensor

from longlag.layers.layer import Layer, check_layer
from longlag.layers.recurrent import Recurrent
from longlag.layers.state import State, StateSpec


class Joined(Layer):
    """A layer whose input holds x and then one feature for every number per step, noise included.

    Learning rules, `flow`, `Online`, `Chain` and everything else that passes one input work with such a layer.

    Args:
        layer: a `Recurrent` layer with inputs or noise. Its weights are shared.

    >>> import torch, longlag as ll
    >>> @ll.cell(gates="a", inputs="dt")
    ... def decaying(a, y, dt):
    ...     return y * ll.cells.exp(-dt) + ll.cells.tanh(a)
    >>> layer = ll.Recurrent(decaying, 3, 5)
    >>> x, dt = torch.randn(7, 2, 3), torch.rand(7, 2)
    >>> joined = ll.layers.Joined(layer)
    >>> torch.equal(joined(torch.cat([x, dt.unsqueeze(-1)], -1))[0], layer(x, dt=dt)[0])
    True
    """

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        check_layer(self.class_name, "layer", layer)
        self.names = tuple(getattr(layer.cell, "per_step", ()))
        if not self.names:
            raise ValueError(f"Joined: layer must have inputs per step, and {layer.class_name} has none")
        self.layer = layer
        self.input_size = layer.input_size + len(self.names)
        self.batch_first, self.bidirectional = layer.batch_first, layer.bidirectional
        self.recurrent_dropout = layer.recurrent_dropout

    @property
    def state_spec(self) -> StateSpec:
        return self.layer.state_spec

    def initial_state(self, batch: int) -> State:
        return self.layer.initial_state(batch)

    @property
    def any_weight(self) -> Tensor:
        return self.layer.any_weight

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """See `Layer`; x has ``layer.input_size`` features and one for every number per step."""
        if not isinstance(x, Tensor) or x.shape[-1] != self.input_size:
            raise ValueError(f"Joined: input must have {self.input_size} features ({', '.join(self.names)} last)")
        x, numbers = x.split([self.layer.input_size, len(self.names)], -1)
        given = dict(zip(self.names, numbers.unbind(-1)))
        return self.layer(x, state, lengths=lengths, reset=reset, **given)

    def engine_for(self, x: Tensor) -> str:
        return self.layer.engine_for(x[..., : self.layer.input_size])
