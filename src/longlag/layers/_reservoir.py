"""Linear algebra of reservoirs: random matrices, their spectral radius, normal equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

DENSE = 200  # units up to which all eigenvalues are computed, which takes milliseconds
PANEL = 256  # columns of XᵀX computed together
DRAWS = 100  # attempts to draw connections that contain a loop


def random_matrix(
    m: int, density: float, uniform: Callable[..., Tensor], generator: torch.Generator
) -> tuple[Tensor, float]:
    """A random matrix (m, m) and its spectral radius, which is 0 if no draw contained a loop."""
    U, radius = uniform(m, m), 0.0
    for _ in range(DRAWS):
        U = U * (torch.rand(m, m, generator=generator, dtype=torch.float64) < density)
        radius = spectral_radius(U)
        if radius:
            break
        U = uniform(m, m)  # a small sparse reservoir may have no loop: draw again
    return U, radius


def spectral_radius(U: Tensor) -> float:
    """The modulus of the largest eigenvalue of U, to a relative error of about 1e-9.

    ARPACK computes two (pairs of) eigenvalues at once. Those of random matrices lie close together: asked for one,
    ARPACK may return another than the largest.
    """
    m = len(U)
    if m <= DENSE:
        return float(torch.linalg.eigvals(U).abs().max())
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    dense = U.numpy()
    matrix = csr_array(dense) if np.count_nonzero(dense) < 0.25 * dense.size else dense
    try:
        options: dict[str, Any] = {"k": 2, "ncv": 60, "tol": 1e-8, "v0": np.ones(m)}
        found = eigs(matrix, return_eigenvectors=False, **options)
    except ArpackNoConvergence:
        return float(torch.linalg.eigvals(U).abs().max())
    return float(np.abs(found).max())


def argument_for(value: float, function: Callable[[float], float], most: float = 100.0) -> float:
    """An argument in 0..``most`` for which the continuous function, called with it last, has this value."""
    from scipy.optimize import brentq

    least = largest = function(0.0)
    end = 1.0
    while largest < value and end <= most:
        largest, end = max(largest, function(end)), 1.5 * end
    if not least <= value <= largest:
        raise ValueError(f"must lie between {least:.3g} and {largest:.3g}, got {value!r},")
    found: Any = brentq(lambda argument: function(argument) - value, 0.0, end / 1.5, xtol=1e-6)
    function(found)
    return float(found)


def gram(X: Tensor) -> Tensor:
    """XᵀX, which is symmetric: about half of the products are left out."""
    G = X.new_empty(X.shape[1], X.shape[1])
    for start in range(0, len(G), PANEL):
        end = min(start + PANEL, len(G))
        rows = X[:, start:end].t() @ X[:, :end]
        G[start:end, :end] = rows
        G[:start, start:end] = rows[:, :start].t()
    return G


def cholesky_solution(A: Tensor, B: Tensor) -> Tensor:
    return torch.cholesky_solve(B, torch.linalg.cholesky(A))
