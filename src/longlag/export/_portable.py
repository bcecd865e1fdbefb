"""`torch.export` of models that contain layers of longlag."""

from __future__ import annotations

import copy

from torch import nn

from longlag.layers import Layer


def portable(model: nn.Module) -> nn.Module:
    """A copy for ``torch.export`` whose program needs torch only: its layers run on the reference engine.

    Without this, the program calls the operators of longlag: faster, but they must be there when the program is loaded.

    >>> import torch, longlag as ll
    >>> model, x = ll.export.portable(ll.LSTM(3, 5)), torch.randn(7, 2, 3)
    >>> free = torch.export.Dim.DYNAMIC
    >>> program = torch.export.export(model, (x,), dynamic_shapes=({0: free, 1: free},))
    >>> program.module()(torch.randn(9, 4, 3))[0].shape
    torch.Size([9, 4, 5])
    """
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, Layer):
            module.engine = "reference"
    return model
