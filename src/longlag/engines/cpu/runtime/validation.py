"""Validation of tensors before kernels read them: kernels do not check bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longlag.engines._arguments import DtypeError, ShapeError

Optional = tuple[Tensor | None, Tensor | None, Tensor | None]  # mask (B, H), lengths (B,), reset (T, B)


def check_shapes(cell: Any, sizes: dict[str, tuple[int, ...]], H: int) -> None:
    """Raise if a tensor is missing or has the wrong shape.

    Args:
        sizes: shapes of the tensors given, by their names in the kernels' tables.
        H: units.
    """
    if len(sizes["x"]) != 3:
        raise ShapeError(f"engine 'cpu': x of cell {cell.name} must be (T, B, I), got shape {tuple(sizes['x'])}")
    (T, B, I), G, Gx, Gy = sizes["x"], len(cell.gates), len(cell.input_gates), len(cell.recurrent_gates)
    if T == 0:
        raise ShapeError(f"engine 'cpu': x of cell {cell.name} must have at least one step, got {tuple(sizes['x'])}")
    widths = dict.fromkeys(cell.fed_back, H)
    if hasattr(cell, "layout"):  # units in blocks: a row holds [hidden units; input gates; output gates; cells]
        hidden, blocks, size, gated = cell.layout
        widths["s"], units = blocks * size, hidden + blocks * (1 + gated + size)
        if units != H:
            text = f"W of {cell.name} must have {units} rows for {hidden} hidden units and {blocks} blocks of {size}"
            raise ShapeError(f"engine 'cpu': {text}, got {H}")
    right: dict[str, tuple[int, ...]] = {"W": (Gx * H, I), "b_x": (Gx * H,), "bias_hh": (Gy * H,)}
    right |= {"U": (Gy * H, H), "gamma": (G, H), "beta": (G, H), **{f"{p}_all": (H,) for p in cell.params}}
    right |= {f"{s}_0": (B, width) for s, width in widths.items()} | {f"{m}_t": (T, B, H) for m in cell.per_step}
    must = {
        *sizes,
        *(f"{p}_all" for p in cell.params),
        *(f"{m}_t" for m in cell.per_step),
        *(["U"] if cell.dense else []),
    } - {"x"}
    if "gamma" in sizes or "beta" in sizes:
        must |= {"gamma", "beta"}
    for name in sorted(must):
        if name not in right:
            raise ShapeError(f"engine 'cpu': cell {cell.name} has no tensor {name!r}, only {sorted(right)}")
        if (got := sizes.get(name)) != right[name]:
            found = "none" if got is None else tuple(got)
            raise ShapeError(f"engine 'cpu': {name} of cell {cell.name} must have shape {right[name]}, got {found}")


def check_optional(owner: str, shape: tuple[int, int, int], dtype: torch.dtype, optional: Optional) -> None:
    """Raise if mask, lengths or resets have the wrong shape or dtype."""
    T, B, H = shape
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    right = {"mask": ((B, H), (dtype,)), "lengths": ((B,), integers), "reset": ((T, B), (torch.bool,))}
    for (name, (wanted, dtypes)), value in zip(right.items(), optional):
        if value is None:
            continue
        if value.shape != wanted or not value.is_cpu:
            got = f"{tuple(value.shape)} on {value.device}"
            raise ShapeError(f"engine 'cpu': {name} of {owner} must have shape {wanted} on cpu, got {got}")
        if value.dtype not in dtypes:
            raise DtypeError(f"engine 'cpu': {name} of {owner} must be {dtypes[0]}, got {value.dtype}")


def check_memory(tensor: Tensor) -> Tensor:
    """``tensor`` if its storage holds all its elements."""
    if not tensor.numel():
        return tensor
    try:
        last = tensor.storage_offset() + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
        enough = tensor.data_ptr() != 0 and tensor.untyped_storage().nbytes() >= (last + 1) * tensor.element_size()
    except (NotImplementedError, RuntimeError):  # no storage at all: sparse, wrapped
        enough = False
    if not enough:
        what = f"a tensor of shape {tuple(tensor.shape)} ({tensor.layout})"
        raise ShapeError(f"engine 'cpu': {what} has no memory, or too little: its storage was resized or never made")
    return tensor
