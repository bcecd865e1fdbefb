"""Layers of any kind, one above the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout

from longlag.layers import validation
from longlag.layers.layer import Layer, check_layer
from longlag.layers.state import Parts, State, StateSpec


class Chain(Layer):
    """Layers of any kind as one layer: each reads the outputs of the layer before it.

    Args:
        layers: with the batch in the same position (``batch_first``). A chain is one-way if all its layers are.
        dropout: probability that an output between two layers is dropped while training, as in ``torch.nn``.

    State: the parts of all layers in order, each (B, …), named ``"0.y"``, ``"1.c"``, …

    >>> import torch, longlag as ll
    >>> net = ll.Chain(ll.LSTM(3, 8), ll.Jordan(8, 6, 2))
    >>> y, state = net(torch.randn(20, 4, 3), lengths=torch.tensor([20, 7, 3, 12]))
    >>> y.shape, net.state_spec.names
    (torch.Size([20, 4, 2]), ['0.y', '0.c', '1.fb'])
    """

    def __init__(self, *layers: Layer, dropout: float = 0.0) -> None:
        super().__init__()
        if not layers:
            raise ValueError("Chain: layers must be at least one layer, got none")
        for k, layer in enumerate(layers):
            check_layer("Chain", f"layer {k}", layer)
            if layer.batch_first != layers[0].batch_first:
                raise ValueError(f"Chain: layer {k} must have batch_first={layers[0].batch_first} like layer 0")
        self.layers = nn.ModuleList(layers)
        self.dropout = validation.probability("Chain", "dropout", dropout)
        self.input_size, self.batch_first = layers[0].input_size, layers[0].batch_first
        self.bidirectional = any(layer.bidirectional for layer in layers)
        self.draws = any(layer.draws for layer in layers)

    @property
    def members(self) -> list[Layer]:
        """The layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @property
    def state_spec(self) -> StateSpec:
        shapes = {}
        for k, layer in enumerate(self.members):
            shapes |= {f"{k}.{name}": shape for name, shape in layer.state_spec.shapes.items()}
        return StateSpec(shapes, batch_axis=0)

    def initial_state(self, batch: int) -> State:
        parts: list[Tensor] = []
        for layer in self.members:
            parts += self._to_front(layer, layer.initial_state(batch))
        return self.state_spec.whole(parts)

    def _to_front(self, layer: Layer, state: State, batched: bool = True) -> Parts:
        """The parts of a layer's state with the batch first."""
        spec = layer.state_spec
        return tuple(part.movedim(spec.batch_axis, 0) if batched else part for part in spec.parts(state))

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over whole sequences; arguments as in `Recurrent`."""
        s = validation.sequences(self, x, lengths, reset)
        given: list[Any] = [None] * len(self.members)
        if state is not None:
            given = self._split(state, s)
        y, ends = x, []
        for k, (layer, start) in enumerate(zip(self.members, given)):
            y, end = layer(y, start, lengths=lengths, reset=reset)
            ends += self._to_front(layer, end, s.batched)
            if k < len(self.members) - 1:
                y = dropout(y, self.dropout, self.training)
        return y, self.state_spec.whole(ends)

    def _split(self, state: State, s: validation.Sequences) -> list[State]:
        """The state of every layer, in that layer's own layout."""
        if s.batched:
            parts = self.validate_state(state, s.batch)
        else:
            shapes = list(self.state_spec.shapes.values())
            parts = validation.state_parts(self.class_name, state, self.state_spec.names, shapes, self.any_weight)
        states, start = [], 0
        for layer in self.members:
            spec = layer.state_spec
            own = parts[start : start + len(spec.names)]
            start += len(own)
            states.append(spec.whole([part.movedim(0, spec.batch_axis) if s.batched else part for part in own]))
        return states

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}" if self.dropout else ""
