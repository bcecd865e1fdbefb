"""Checks of an export: it must give the numbers of the reference engine, and overwrite a file only if asked to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


class ExportError(ValueError):
    """A model that cannot be exported; the message names the obstacle and what to change."""


@contextmanager
def translating(model: object, target: str) -> Iterator[None]:
    """Errors of torch and onnxruntime, which do not name the layer, as one line that does."""
    try:
        yield
    except Exception as error:
        # torch.onnx explains what to do with torch; the cause is what torch.export or a translation said
        lines = [line.strip() for line in str(error.__cause__ or error).splitlines()]
        reason = next((line for line in lines if line), type(error).__name__)
        raise ExportError(
            f"export: {type(model).__name__} cannot become {target}; write its step with operations that torch "
            f"translates, and torch.where instead of if ({reason})"
        ) from error


def check_dtype(owner: str, dtype: torch.dtype) -> None:
    """Refuse dtypes that exports do not serve."""
    if dtype not in TOLERANCE:
        known = " or ".join(str(d).removeprefix("torch.") for d in TOLERANCE)
        raise ExportError(f"export: {owner} must be {known}, got {dtype}; change it by model.float()")


def check_target(path: Path, force: bool) -> None:
    """Refuse to overwrite a file."""
    if path.exists() and not force:
        raise ExportError(f"export: {path} exists already; --force (force=True) replaces it")
    if not path.parent.is_dir():
        raise ExportError(f"export: {path.parent} must be a folder")


def difference(ours: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest |ours − wanted| / max(1, |wanted|); infinite where one is NaN or has another shape."""
    largest = 0.0
    for a, b in zip(ours, wanted, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if b.numel():
            d = ((a.double() - b.double()).abs() / b.double().abs().clamp(min=1)).masked_fill(a == b, 0.0)
            largest = max(largest, float(d.nan_to_num(nan=float("inf")).max()))
    return largest


def check_difference(what: str, found: float, dtype: torch.dtype) -> float:
    """``found`` if it is small enough."""
    if not found <= TOLERANCE[dtype]:
        raise ExportError(
            f"export: the {what} differs from the reference engine by {found:.1e}, more than {TOLERANCE[dtype]:.0e} "
            f"for {str(dtype).removeprefix('torch.')}; nothing was written"
        )
    return found
