"""Structures of the recurrent matrix U, as parametrisations for `torch.nn.utils.parametrize`.

U is computed from what is trained, once per call of the layer, so that every engine runs at full speed, and the
structure holds through training. G: recurrent gates, H: units; U is (G·H, H).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longlag.layers.validation import ShapeError

if TYPE_CHECKING:
    from longlag.layers.recurrent import Recurrent

KINDS = "'dense', 'diagonal', 'heads:N', 'low_rank:N', 'sparse:DENSITY', 'antisymmetric'"


class Structure(nn.Module):
    """Base of the structures: a new start of the weights is set through ``right_inverse``."""


class Masked(Structure):
    """U ⊙ mask: connections where the mask is 0 do not exist.

    Args:
        mask: (G·H, H), or (H, H) for all gates, of zeros and ones.
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, raw: Tensor) -> Tensor:
        return raw * self.mask

    def right_inverse(self, value: Tensor) -> Tensor:
        return value * self.mask


class Signed(Structure):
    """|U| · signs: all connections that leave a unit have its sign (Dale's law).

    Args:
        signs: (H,), each 1 or −1.
    """

    signs: Tensor

    def __init__(self, signs: Tensor) -> None:
        super().__init__()
        self.register_buffer("signs", signs)

    def forward(self, raw: Tensor) -> Tensor:
        return raw.abs() * self.signs

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.abs()


class Heads(Structure):
    """Block-diagonal: units read the units of their own head only. Trained are (G, heads, H/heads, H/heads)."""

    def __init__(self, gates: int, heads: int) -> None:
        super().__init__()
        self.gates, self.heads = gates, heads

    def forward(self, blocks: Tensor) -> Tensor:
        return torch.cat([torch.block_diag(*gate.unbind(0)) for gate in blocks.unbind(0)])

    def right_inverse(self, value: Tensor) -> Tensor:
        size = value.shape[1] // self.heads
        pieces = value.view(self.gates, self.heads, size, self.heads, size)
        return torch.stack([pieces[:, k, :, k] for k in range(self.heads)], 1)


class LowRank(Structure):
    """P Q with P (G·H, rank) and Q (rank, H); a matrix is approximated by its largest singular values."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, P: Tensor, Q: Tensor) -> Tensor:
        return P @ Q

    def right_inverse(self, value: Tensor) -> tuple[Tensor, Tensor]:
        left, sizes, right = torch.linalg.svd(value, full_matrices=False)
        root = sizes[: self.rank].sqrt()
        return left[:, : self.rank] * root, root.unsqueeze(-1) * right[: self.rank]


class Antisymmetric(Structure):
    """M − Mᵀ for every gate, M upper triangular."""

    def forward(self, raw: Tensor) -> Tensor:
        M = raw.view(-1, raw.shape[1], raw.shape[1]).triu(1)
        return (M - M.mT).view_as(raw)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.view(-1, value.shape[1], value.shape[1]).triu(1).view_as(value)


def register(layer: Recurrent, kind: str, mask: Tensor | None, signs: Tensor | None) -> None:
    """Give the recurrent matrices of a layer their structure."""
    structures, owner = [*_of_kind(layer, kind)], layer.class_name
    G, H = len(layer.cell.recurrent_gates), layer.hidden_size
    wanted = [*structures, *(value for value in (mask, signs) if value is not None)]
    if wanted and not layer.cell.dense:
        raise ValueError(
            f"{owner}: the cell {layer.cell.name} is local and has no recurrent matrix to give a structure"
        )
    if signs is not None:
        signs = torch.as_tensor(signs).to(layer.any_weight)
        if signs.shape != (H,):
            raise ShapeError(f"{owner}: recurrent_signs must be ({H},) of 1 and −1, got shape {tuple(signs.shape)}")
        if (wrong := signs[signs.abs() != 1]).numel():
            raise ValueError(f"{owner}: recurrent_signs must be ({H},) of 1 and −1, got {float(wrong[0]):g}")
        structures.append(lambda: Signed(signs))
    if mask is not None:
        mask = torch.as_tensor(mask).to(layer.any_weight)
        if mask.shape not in ((H, H), (G * H, H)):
            shapes = " or ".join(map(str, dict.fromkeys([(H, H), (G * H, H)])))
            raise ShapeError(f"{owner}: recurrent_mask must have shape {shapes}, got {tuple(mask.shape)}")
        if (wrong := mask[(mask != 0) & (mask != 1)]).numel():
            raise ValueError(f"{owner}: recurrent_mask must hold zeros and ones, got {float(wrong[0]):g}")
        whole = mask if len(mask) == G * H else mask.repeat(G, 1)
        structures.append(lambda: Masked(whole))
        layer.nonzeros = int(whole.sum())
    for k in range(layer.num_layers * layer.directions):
        for make in structures:
            parametrize.register_parametrization(layer, "weight_hh" + layer.suffix(k), make())


def heads(layer: nn.Module, name: str) -> int:
    """The number of blocks on the diagonal of a recurrent matrix; 1 without this structure."""
    found = (
        layer.get_submodule(f"parametrizations.{name}").children() if parametrize.is_parametrized(layer, name) else ()
    )
    return next((each.heads for each in found if isinstance(each, Heads)), 1)


def structured(layer: nn.Module, name: str) -> str | None:
    """The attribute that a parameter's structure computes; None for other parameters."""
    if not name.startswith("parametrizations."):
        return None
    place = name.split(".")[1]
    found = layer.get_submodule(f"parametrizations.{place}")
    return place if any(isinstance(each, Structure) for each in found.children()) else None


def _of_kind(layer: Recurrent, kind: str) -> list[Any]:
    name, _, text = kind.partition(":")
    owner, H, gates = layer.class_name, layer.hidden_size, len(layer.cell.recurrent_gates)
    if name in ("dense", "diagonal") and not text:
        return []
    if kind == "antisymmetric":
        return [Antisymmetric]
    if name == "sparse":
        density = float(text) if text.replace(".", "", 1).isdigit() else 0.0
        if not 0 < density <= 1:
            raise ValueError(f"{owner}: recurrent='sparse:DENSITY' needs a number in (0, 1], got {kind!r}")
        layer.nonzeros = int(gates * H * H * density)
        return [lambda: Masked((torch.rand(gates * H, H) < density).to(layer.any_weight))]
    if name not in ("heads", "low_rank") or not text.isdigit() or not int(text):
        raise ValueError(f"{owner}: recurrent must be one of {KINDS}, got {kind!r}")
    number = int(text)
    if name == "heads":
        if H % number:
            raise ValueError(f"{owner}: hidden_size must be a multiple of the {number} heads, got {H}")
        return [lambda: Heads(gates, number)]
    if number > H:
        raise ValueError(f"{owner}: recurrent='low_rank:N' needs N of at most hidden_size {H}, got {number}")
    return [lambda: LowRank(number)]
