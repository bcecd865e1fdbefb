"""A layer's state seen from outside: as rows to fill, to reorder and to ask with, whatever the layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlag.layers._module import Layer, State
from longlag.layers._network import Network


class StateLayout:
    """Where a layer that steps keeps its sequences; found by one step on zeros."""

    def __init__(self, layer: Layer) -> None:
        with torch.no_grad():
            y, state = layer.step(layer._weight.new_zeros(1, layer.input_size))
        self.output_size = y.shape[-1]
        self.axis = 0 if isinstance(layer, Network) else 1  # of the batch: stacks count layers first
        self.shapes = [part.select(self.axis, 0).shape for part in _parts(state)]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.query_size = self.query(state).shape[-1] if self.shapes else 0

    def fill(self, rows: Tensor) -> State:
        """A state from rows (B, sum of sizes)."""
        parts = (part.unflatten(-1, shape) for part, shape in zip(rows.split(self.sizes, -1), self.shapes))
        return _whole([part.movedim(0, self.axis) for part in parts])

    def take(self, state: State, index: Tensor) -> State:
        """The state of the sequences index (N,)."""
        return _whole([part.index_select(self.axis, index) for part in _parts(state)])

    def query(self, state: State) -> Tensor:
        """(B, query_size): the first part of the state, of its top layer."""
        first = _parts(state)[0]
        return (first if self.axis == 0 else first[-1]).flatten(1)


def check_pair(owner: str, encoder: Any, decoder: Any) -> None:
    """Refuse two layers that cannot work as encoder and decoder."""
    for name, layer in (("encoder", encoder), ("decoder", decoder)):
        if not isinstance(layer, Layer):
            raise TypeError(f"{owner}: {name} must be a longlag layer, got {type(layer).__name__}")
    if decoder.bidirectional or decoder.recurrent_dropout:
        raise ValueError(f"{owner}: decoder must be able to step: not bidirectional, no recurrent_dropout")
    if encoder.batch_first != decoder.batch_first:
        raise ValueError(f"{owner}: encoder and decoder must agree in batch_first")
    if (encoder._weight.device, encoder._weight.dtype) != (decoder._weight.device, decoder._weight.dtype):
        raise ValueError(f"{owner}: encoder and decoder must agree in device and dtype")


def _parts(state: State) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _whole(parts: list[Tensor]) -> State:
    return parts[0] if len(parts) == 1 else tuple(parts)
