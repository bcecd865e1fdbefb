"""Spectral norms of long Jacobian products from matrix-vector products only.

For lag q, P = A(t) A(t−1) … A(t−q+1), (n, n), is never formed. From p random starting vectors X the block Krylov
space of P Pᵀ, span(X, P Pᵀ X, …, (P Pᵀ)^(k−1) X), gets an orthonormal basis Q; then ‖Pᵀ Q‖₂ ≤ ‖P‖₂.

For one start, Pr(‖Pᵀ Q‖² < (1−ε) ‖P‖²) ≤ 1.648 √n e^(−√ε (2k−1)) whatever P is (Kuczyński and Woźniakowski 1992,
theorem 4.2); the probability that p independent starts all fail is the p-th power of this bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.flow._run import Run

FAILURE = 1e-3  # probability that a stated error does not hold


def iterations(n: int, probes: int, tolerance: float) -> int:
    """k such that the norm is underestimated by more than ``tolerance``, relatively, with probability < `FAILURE`.

    >>> iterations(512, 4, 0.1), iterations(512, 4, 0.01)
    (7, 20)
    """
    root = math.sqrt(1 - (1 - tolerance) ** 2)  # √ε
    needed = math.log(1.648 * math.sqrt(n)) - math.log(FAILURE) / probes
    return math.ceil((needed / root + 1) / 2)


def log_norms(run: Run, t: int, lags: Sequence[int], probes: int, tolerance: float, seed: int) -> Tensor:
    """log ‖∂state(t)/∂state(t−q)‖₂ (K, B) for K different lags q ≥ 1, never too large, each too small by at most
    ``tolerance`` (relatively), except with probability `FAILURE`."""
    n, k = run.size, iterations(run.size, probes, tolerance)
    if k * probes >= n:
        k, probes = 1, n  # a basis of the whole space: exact
    order = sorted(range(len(lags)), key=lambda i: -lags[i])
    sweep = _Sweep(run, t, [lags[i] for i in order], probes)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n, probes, generator=generator, dtype=torch.float64).to(run.states)
    block = torch.linalg.qr(start).Q.expand(run.states.shape[1], len(lags), n, probes)
    basis, images, scales = [block], [], []
    for i in range(k):
        image, scale = sweep.back(basis[-1])
        images.append(image)
        scales.append(scale)
        if i + 1 < k:
            basis.append(_orthogonal(sweep.forth(image), basis))
    top = torch.cat(scales, -1).amax(-1, keepdim=True)  # (B, K, 1, 1)
    top = top.where(top.isfinite(), torch.zeros_like(top))  # nothing is left of P: its norm is e^−∞
    whole = torch.cat([Z * (s - top).exp().to(Z) for Z, s in zip(images, scales)], -1)  # Pᵀ Q
    log_norm = torch.linalg.svdvals(whole)[..., 0].double().log() + top[..., 0, 0]  # (B, K)
    return log_norm.t()[torch.tensor(order).argsort()]


def _orthogonal(block: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """A block (B, K, n, p) made orthonormal to the given ones, in two passes, because one pass loses digits."""
    known = torch.cat(list(basis), -1)
    for _ in range(2):
        block = torch.linalg.qr(block - known @ (known.mT @ block)).Q
    return block


class _Sweep:
    """Products with Pᵀ and P of all lags in one sweep over time; columns are scaled as they go."""

    def __init__(self, run: Run, t: int, lags: Sequence[int], probes: int) -> None:
        self.run, self.t, self.lags, self.probes = run, t, list(lags), probes  # lags: longest first

    def back(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Pᵀ block (B, K, n, p) with columns scaled to largest entry 1, and the logs of the scales (B, K, 1, p)."""
        log = torch.zeros_like(block[:, :, :1], dtype=torch.float64)
        result, columns = torch.empty_like(block), block
        for q in range(1, self.lags[0] + 1):
            columns = self._join(self.run.pull(self.t - q + 1, self._flat(columns))[0], columns.shape[1])
            columns, scale = rescale(columns, -2)
            log[:, : columns.shape[1]] += scale
            while columns.shape[1] and self.lags[columns.shape[1] - 1] == q:
                result[:, columns.shape[1] - 1] = columns[:, -1]
                columns = columns[:, :-1]
        return result, log

    def forth(self, block: Tensor) -> Tensor:
        """P block (B, K, n, p) with columns scaled to largest entry 1."""
        columns = block[:, :0]
        for q in range(self.lags[0], 0, -1):
            while columns.shape[1] < len(self.lags) and self.lags[columns.shape[1]] == q:
                columns = torch.cat([columns, block[:, columns.shape[1], None]], 1)
            columns = self._join(self.run.push(self.t - q + 1, self._flat(columns)), columns.shape[1])
            columns, _ = rescale(columns, -2)
        return columns

    def _flat(self, columns: Tensor) -> Tensor:
        """(B, K, n, p) -> (B, n, K p), the layout of `Run`."""
        return columns.transpose(1, 2).flatten(2)

    def _join(self, columns: Tensor, lags: int) -> Tensor:
        return columns.unflatten(-1, (lags, self.probes)).transpose(1, 2)


def rescale(value: Tensor, axes: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``value`` with largest entry 1 over the axes, and the log (float64) of the factor taken out; −∞ where all is 0.

    Entries that would soon be denormal are dropped: arithmetic on those is a hundred times slower.
    """
    largest = value.abs().amax(axes, keepdim=True)
    scaled = value / largest.where(largest > 0, torch.ones_like(largest))
    least = torch.finfo(value.dtype).tiny / torch.finfo(value.dtype).eps
    return scaled.where(scaled.abs() > least, torch.zeros_like(scaled)), largest.double().log()
