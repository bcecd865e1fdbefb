"""Losses of one step; a mask selects the samples that are scored."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot


def squared_error(output: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """L(t) = ½ Σ_b m_b ‖y_b − d_b‖², so that dL/dy = m (y − d).

    Args:
        output: (B, l).
        target: (B, l), or classes (B,), which stand for one-hot targets.
        mask: (B,) bool or weights; targets that are not scored may hold any value, even NaN. None: all are scored.

    >>> import torch
    >>> squared_error(torch.tensor([[3.0], [5.0]]), torch.tensor([[1.0], [float("nan")]]), torch.tensor([True, False]))
    tensor(2.)
    """
    _check("squared_error", mask, output)
    target = _vectors("squared_error", output, target, mask)
    if output.shape != target.shape:
        raise ValueError(f"squared_error: target must have shape {tuple(output.shape)}, got {tuple(target.shape)}")
    return _scored((output - _safe(target, mask)).square().sum(-1), mask) / 2


def cross_entropy(output: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """L(t) = −Σ_b m_b d_bᵀ log softmax(z_b), so that dL/dz = m (softmax z − d).

    Args:
        output: z (B, l).
        target: classes (B,), or distributions (B, l).
        mask: as in `squared_error`.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, 3]))
    tensor(2.7726)
    """
    _check("cross_entropy", mask, output)
    target = _vectors("cross_entropy", output, target, mask)
    if target.shape != output.shape:
        raise ValueError(
            f"cross_entropy: target must be int64 classes {tuple(output.shape[:-1])} or distributions "
            f"{tuple(output.shape)}, got {target.dtype} of shape {tuple(target.shape)}"
        )
    return _scored(-(_safe(target, mask) * log_softmax(output, -1)).sum(-1), mask)


def _vectors(owner: str, output: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """The target; classes become vectors."""
    if target.shape != output.shape[:-1] or target.dtype != torch.long:
        return target
    classes = _safe(target, mask)
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high >= output.shape[-1]:
        wrong = low if low < 0 else high
        raise ValueError(f"{owner}: target must lie in 0..{output.shape[-1] - 1}, got {wrong}")
    return one_hot(classes, output.shape[-1]).to(output.dtype)


def _safe(target: Tensor, mask: Tensor | None) -> Tensor:
    """The target, 0 where it is not scored."""
    if mask is None:
        return target
    scored = (mask != 0).view(-1, *[1] * (target.dim() - 1))
    return torch.where(scored, target, torch.zeros_like(target))


def _check(owner: str, mask: Tensor | None, output: Tensor) -> None:
    if mask is not None and mask.shape != output.shape[:-1]:
        raise ValueError(f"{owner}: mask must have shape {tuple(output.shape[:-1])}, got {tuple(mask.shape)}")


def _scored(losses: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_b m_b L_b."""
    return losses.sum() if mask is None else (losses * mask).sum()
