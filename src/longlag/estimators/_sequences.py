"""Sequences as users of scikit-learn have them: a list of arrays, a padded array, or a plain table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Arrays = list[np.ndarray]


def read(estimator: Any, X: Any, *, reset: bool) -> Arrays:
    """The sequences in X, each (T, F); sets or checks the number of features."""
    owner = type(estimator).__name__
    if _is_list(X):
        found = [_sequence(owner, f"X[{k}]", x) for k, x in enumerate(X)]
    elif getattr(X, "ndim", 0) == 3:
        found = [_sequence(owner, f"X[{k}]", _without_padding(x)) for k, x in enumerate(np.asarray(X, float))]
    else:
        table = np.asarray(validate_data(estimator, X, reset=reset, dtype="float64"))
        return list(table[:, :, None])
    features = found[0].shape[1] if reset else estimator.n_features_in_
    for k, x in enumerate(found):
        if x.shape[1] != features:
            raise ValueError(f"{owner}: X[{k}] must have {features} features per step, got {x.shape[1]}")
    if reset:
        estimator.n_features_in_ = features
    return found


def _is_list(X: Any) -> bool:
    """Whether X is a list of sequences, and not a table as nested lists."""
    if not isinstance(X, list | tuple) or not len(X):
        return False
    axes = {np.ndim(x) for x in X}
    return axes == {2} or (axes == {1} and len({len(x) for x in X}) > 1)


def _without_padding(x: np.ndarray) -> np.ndarray:
    """The steps up to the last one that has a value."""
    return x[: 1 + int(np.flatnonzero(~np.isnan(x).all(-1)).max(initial=-1))]


def _sequence(owner: str, name: str, x: Any) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{owner}: {name} must have steps and features, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"{owner}: {name} must be finite, got NaN or infinity (steps of NaN may only end a sequence)")
    return x


def read_steps(owner: str, y: Any, xs: Arrays) -> Arrays:
    """Targets per step: one array for every sequence, as long as the sequence; padding is cut off."""
    check_consistent_length(xs, y)
    longest, padded = max(map(len, xs)), isinstance(y, np.ndarray)
    found = []
    for k, (target, x) in enumerate(zip(y, xs)):
        target = np.asarray(target)
        if target.ndim == 0 or len(target) not in ({longest} if padded else {len(x)}):
            wanted = longest if padded else len(x)
            raise ValueError(f"{owner}: y[{k}] must have one target for each of {wanted} steps, got {target.shape}")
        found.append(target[: len(x)])
    return found


class Scaling:
    """Zero mean and unit variance over all steps; constant features stay as they are."""

    def __init__(self, rows: np.ndarray) -> None:
        self.mean, deviation = rows.mean(0), rows.std(0)
        self.scale = np.where(deviation > 1e-12 * np.abs(self.mean), deviation, 1.0)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.mean) / self.scale

    def back(self, rows: np.ndarray) -> np.ndarray:
        return rows * self.scale + self.mean


def padded(arrays: Sequence[np.ndarray], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(T, B, …) and lengths (B,)."""
    tensors = [torch.as_tensor(a, dtype=dtype) for a in arrays]
    return pad_sequence(tensors), torch.tensor([len(a) for a in arrays])
