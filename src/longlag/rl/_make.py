"""Layers from what a user names: a class, a cell, a name of either, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from longlag import cells, layers
from longlag.cells import Cell
from longlag.layers import Layer, check_layer

LayerLike = str | Cell | type[Layer] | Callable[[int], Layer]

KINDS = "a class of layers, a cell, the name of either, or a function input_size -> layer"


def make_layer(
    owner: str,
    kind: LayerLike,
    input_size: int,
    hidden_size: int | None,
    num_layers: int | None,
    options: dict[str, Any],
) -> Layer:
    """A one-way layer of ``input_size`` features; sizes and options are given to classes and cells only.

    >>> make_layer("test", "gru", 3, 5, 2, {"norm": "layer"})
    Recurrent(gru, 3, 5, num_layers=2, norm='layer')
    >>> make_layer("test", lambda n: layers.LSTM97(n, 4, 2), 3, None, None, {}).state_spec.size
    24
    """
    if isinstance(kind, str):
        kind = _named(owner, kind)
    if isinstance(kind, nn.Module):
        raise TypeError(f"{owner}: layer must be {KINDS}, because several are made; got one {type(kind).__name__}")
    sizes = (256 if hidden_size is None else hidden_size, 1 if num_layers is None else num_layers)
    if isinstance(kind, Cell):
        layer = layers.Recurrent(kind, input_size, *sizes, **options)
    elif isinstance(kind, type) and issubclass(kind, Layer):
        if not {"hidden_size", "num_layers"} <= inspect.signature(kind).parameters.keys():
            raise TypeError(
                f"{owner}: layer {kind.__name__} has other sizes than hidden_size and num_layers; "
                f"give a function: layer=lambda input_size: {kind.__name__}(input_size, …)"
            )
        make: Any = kind
        layer = make(input_size, *sizes, **options)
    elif callable(kind):
        given = {"lstm_hidden_size": hidden_size, "n_lstm_layers": num_layers, "lstm_kwargs": options or None}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{owner}: {name} must not be given where layer is a function, got {value!r}")
        layer = check_layer(owner, "what layer(input_size) returns", kind(input_size))
    else:
        raise TypeError(f"{owner}: layer must be {KINDS}, got {type(kind).__name__}")
    return one_way(owner, layer, input_size)


def one_way(owner: str, layer: Layer, input_size: int) -> Layer:
    """``layer`` if it can act step by step on inputs of ``input_size`` features."""
    if layer.bidirectional:
        raise ValueError(f"{owner}: layer must have bidirectional=False: an agent cannot read the future")
    if layer.input_size != input_size:
        raise ValueError(f"{owner}: layer must have input_size {input_size}, got {layer.input_size}")
    return layer


def _named(owner: str, name: str) -> Any:
    found = getattr(layers, name, None) or getattr(cells, name, None)
    if isinstance(found, Cell) or (isinstance(found, type) and issubclass(found, Layer)):
        return found
    raise ValueError(f"{owner}: layer must name a class of longlag.layers or a cell of longlag.cells, got {name!r}")
