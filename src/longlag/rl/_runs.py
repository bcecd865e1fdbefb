"""Layers over batches, batch first, in which a new sequence may start at any step."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.layers import Layer
from longlag.layers.state import Parts, StateSpec


def step(layer: Layer, spec: StateSpec, x: Tensor, parts: Parts, starts: Tensor) -> tuple[Tensor, Parts]:
    """One step: x (B, I), starts (B,), 0 where none; returns outputs (B, O) and the new parts of the state.

    Args:
        spec: that of the layer, which is made anew whenever a layer is asked for it.
    """
    if bool(starts.any()):
        parts = spec.where(starts != 0, spec.parts(layer.initial_state(len(x))), parts)
    y, state = layer.step(x, spec.whole(parts))
    return y, spec.parts(state)


def run(layer: Layer, spec: StateSpec, x: Tensor, parts: Parts, starts: Tensor) -> tuple[Tensor, Parts]:
    """All steps in one call: x (B, T, I), starts (B, T) bool; returns outputs (B, T, O) and the final parts."""
    if layer.batch_first:
        y, state = layer(x, spec.whole(parts), reset=starts)
        return y, spec.parts(state)
    y, state = layer(x.transpose(0, 1), spec.whole(parts), reset=starts.t())
    return y.transpose(0, 1), spec.parts(state)


def output_size(layer: Layer) -> int:
    """Features of the layer's output; raises what a call with ``reset`` would raise."""
    x = layer.any_weight.new_zeros(1, 1, layer.input_size)
    with torch.no_grad():
        y, _ = layer.for_analysis()(x, reset=torch.ones(1, 1, dtype=torch.bool, device=x.device))
    return y.shape[-1]
