"""Requirements of an encoder-decoder on its two layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longlag.layers import Layer, State, check_layer


def query(layer: Layer, state: State) -> Tensor:
    """(B, query size): the first part of the state, of the top layer of a stack."""
    spec = layer.state_spec
    first = spec.parts(state)[0]
    return (first if spec.batch_axis == 0 else first[-1]).flatten(1)


def check_pair(owner: str, encoder: Any, decoder: Any) -> None:
    """Refuse two layers that cannot work as encoder and decoder."""
    for name, layer in (("encoder", encoder), ("decoder", decoder)):
        check_layer(owner, name, layer)
    if decoder.bidirectional or decoder.recurrent_dropout:
        raise ValueError(f"{owner}: decoder must be able to step: not bidirectional, no recurrent_dropout")
    if encoder.batch_first != decoder.batch_first:
        raise ValueError(f"{owner}: encoder and decoder must agree in batch_first")
    if (encoder.device, encoder.dtype) != (decoder.device, decoder.dtype):
        raise ValueError(f"{owner}: encoder and decoder must agree in device and dtype")
