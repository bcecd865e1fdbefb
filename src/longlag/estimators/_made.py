"""From an estimator's argument ``layer`` to a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from longlag import cells, layers
from longlag.cells import Cell
from longlag.layers import Layer

Kind = str | Cell | Callable[..., Layer]
NAMED = {
    "elman": layers.Elman,
    "gru": layers.GRU,
    "leaky": layers.Leaky,
    "local": layers.LocalFeedback,
    "lstm": layers.LSTM,
}


def made_layer(
    owner: str, kind: Kind, input_size: int, hidden_size: int, options: Mapping[str, Any] | None, dtype: torch.dtype
) -> Layer:
    """The layer that ``kind`` stands for: a name, a cell, or a callable of (input_size, hidden_size, **options)."""
    options = dict(options or {})
    if isinstance(kind, str) and kind not in NAMED:
        cell = getattr(cells, kind, None)
        if not isinstance(cell, Cell):
            known = ", ".join(map(repr, NAMED))
            raise ValueError(f"{owner}: layer must be {known} or the name of a cell in longlag.cells, got {kind!r}")
        kind = cell
    if isinstance(kind, Cell):
        return layers.Recurrent(kind, input_size, hidden_size, **options).to(dtype)
    make = NAMED[kind] if isinstance(kind, str) else kind
    if not callable(make):
        raise TypeError(f"{owner}: layer must be a name, a cell or a callable, got {type(kind).__name__}")
    return layers.check_layer(owner, "the result of layer()", make(input_size, hidden_size, **options)).to(dtype)


def width(layer: Layer) -> int:
    """The number of a layer's outputs per step."""
    axes = (1, 1, layer.input_size)
    with torch.no_grad():
        return layer(torch.zeros(axes, dtype=layer.dtype))[0].shape[-1]
