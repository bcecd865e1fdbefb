"""Weights of other packages: layers that continue where a trained network of `ncps` or `xlstm` stopped.

Weights of ``torch.nn`` need no function: `LSTM`, `GRU` and `Elman` load the ``state_dict`` of theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.nn.utils import parametrize

from longlag.layers.recurrent import Recurrent
from longlag.layers.structures import Heads, Structure


def from_ncps(network: nn.Module) -> Recurrent:
    """The layer of `cells.cfc` with the weights of an ``ncps.torch.CfC`` or ``CfCCell`` without backbone.

    Time spans are the input ``dt`` of a call: ``layer(x, dt=timespans)``; ncps takes 1 if none are given.
    """
    from longlag import cells

    cell: Any = getattr(network, "rnn_cell", network)
    if not all(hasattr(cell, name) for name in ("ff1", "mode", "backbone")):
        raise TypeError(f"from_ncps: network must be a CfC or CfCCell of ncps.torch, got {type(network).__name__}")
    unlike = {
        "a backbone (make it with backbone_layers=0)": cell.backbone is not None,
        f"mode={cell.mode!r}": cell.mode != "default",
        "a sparsity mask": cell.sparsity_mask is not None,
        "mixed_memory=True": getattr(network, "use_mixed", False),
        "a projection": isinstance(getattr(network, "fc", None), nn.Linear),
    }
    for what, present in unlike.items():
        if present:
            raise ValueError(f"from_ncps: network has {what}, and the cell cfc has not")
    linears, inputs = [cell.ff1, cell.ff2, cell.time_a, cell.time_b], cell.input_size
    weight = torch.cat([linear.weight for linear in linears]).detach()
    made = Recurrent(
        cells.cfc, inputs, cell.hidden_size, batch_first=getattr(network, "batch_first", False),
        device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    bias = torch.cat([linear.bias for linear in linears])
    values = {"weight_ih": weight[:, :inputs], "weight_hh": weight[:, inputs:], "bias_ih": bias}
    _copy(made, values | {"bias_hh": torch.zeros_like(bias)})
    return made


def from_xlstm(layer: nn.Module) -> HeadwiseSLSTM:
    """A module that replaces an ``sLSTMLayer`` of the package xlstm: the same weights and outputs, our kernels.

    ``block.xlstm = ll.layers.from_xlstm(block.xlstm)`` replaces the layer of an ``sLSTMBlock``.
    """
    weights = layer.state_dict()
    if "slstm_cell._recurrent_kernel_" not in weights:
        raise TypeError(f"from_xlstm: layer must be an sLSTMLayer of the package xlstm, got {type(layer).__name__}")
    # in the package, the layer's fgate feeds the input gate of the cell, and igate the forget gate
    W = torch.stack([weights[f"{gate}.weight"] for gate in ("fgate", "igate", "zgate", "ogate")])
    R, b = weights["slstm_cell._recurrent_kernel_"], weights["slstm_cell._bias_"]
    heads, size = W.shape[1], W.shape[2]
    if R.shape[1] == 4 * size:  # backend "vanilla"; "cuda" keeps (head, from, gate, to)
        R, b = R.view(heads, 4, size, size), b.view(4, -1)
    else:
        R, b = R.view(heads, size, 4, size).permute(0, 2, 3, 1), b.view(heads, 4, size).transpose(0, 1).reshape(4, -1)
    kernel = weights.get("conv1d.conv.weight")
    steps, dropout = 0 if kernel is None else kernel.shape[-1], layer.get_submodule("dropout")
    made = HeadwiseSLSTM(heads * size, heads, steps, getattr(dropout, "p", 0.0)).to(W)
    with torch.no_grad():
        _original(made.recurrent, "weight_ih_l0").copy_(W)
        _original(made.recurrent, "weight_hh_l0").copy_(R.transpose(0, 1))
        _copy(made.recurrent, {"bias_ih": b.flatten(), "bias_hh": torch.zeros_like(b).flatten()})
        if made.convolution is not None:
            made.convolution.load_state_dict({"weight": kernel, "bias": weights["conv1d.conv.bias"]})
        if (scale := weights.get("group_norm.weight")) is not None:
            made.norm.weight.copy_(1 + scale)
    return made.train(layer.training)


class HeadwiseSLSTM(nn.Module):
    """The sLSTM layer of xLSTM (Beck et al. 2024): a causal convolution, `cells.slstm` in heads, normalised heads.

    The input and forget gates read silu(convolution(x)), the other two gates x; a head reads its own features only.

    Args:
        size: number of features and of units.
        heads: into how many heads they are divided.
        kernel: steps that the convolution sees; 0: no convolution.
        dropout: of the outputs.

    >>> import torch, longlag as ll
    >>> ll.layers.HeadwiseSLSTM(8, heads=2)(torch.randn(3, 10, 8)).shape    # (B, T, features)
    torch.Size([3, 10, 8])
    """

    def __init__(self, size: int, heads: int = 4, kernel: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        from longlag import cells

        self.convolution = nn.Conv1d(size, size, kernel, groups=size, padding=kernel - 1) if kernel else None
        wide = size if self.convolution is None else 2 * size
        self.recurrent = Recurrent(cells.slstm, wide, size, batch_first=True, recurrent=f"heads:{heads}")
        parametrize.register_parametrization(self.recurrent, "weight_ih_l0", HeadInputs(heads, kernel > 0))
        self.dropout, self.norm = nn.Dropout(dropout), nn.GroupNorm(heads, size)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, features)."""
        if self.convolution is not None:
            smooth = silu(self.convolution(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            y = self.recurrent(torch.cat([smooth, x], -1))[0]
        else:
            y = self.recurrent(x)[0]
        return self.norm(self.dropout(y).flatten(0, 1)).view_as(y)


class HeadInputs(Structure):
    """W of four gates whose heads read their own features; with ``apart``, two gates read half of the input."""

    def __init__(self, heads: int, apart: bool) -> None:
        super().__init__()
        self.blocks, self.apart = Heads(4, heads), apart

    def forward(self, raw: Tensor) -> Tensor:
        W = self.blocks(raw)
        return torch.block_diag(*W.chunk(2)) if self.apart else W

    def right_inverse(self, value: Tensor) -> Tensor:
        H = len(value) // 4
        value = torch.cat([value[: 2 * H, :H], value[2 * H :, H:]]) if self.apart else value
        return self.blocks.right_inverse(value)


def _original(layer: nn.Module, name: str) -> nn.Parameter:
    """What is trained of a parametrised weight."""
    return layer.get_parameter(f"parametrizations.{name}.original")


@torch.no_grad()
def _copy(layer: Recurrent, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        layer.get_parameter(f"{name}_l0").copy_(value)
