"""Linear algebra of reservoirs: random matrices, their spectral radius, normal equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

DENSE = 200  # units up to which all eigenvalues are computed, which takes milliseconds
SPARSE = 0.25  # share of entries up to which products read only those that are not zero
DRAWS = 100  # attempts to draw connections that contain a loop


class Connections(NamedTuple):
    """The entries of a matrix (m, m) that are not zero: their places in the flat matrix, in order, and their values."""

    size: int
    places: Tensor
    values: Tensor

    def dense(self) -> Tensor:
        return self.into(torch.zeros(self.size, self.size, dtype=torch.float64))

    def into(self, matrix: Tensor) -> Tensor:
        """``matrix`` with these entries, and zeros elsewhere."""
        matrix.zero_().view(-1)[self.places.to(matrix.device)] = self.values.to(matrix)
        return matrix

    def sparse(self) -> Any:
        from scipy.sparse import csr_array

        m, places = self.size, self.places.numpy()
        starts = np.searchsorted(places, np.arange(m + 1) * m)
        return csr_array((self.values.numpy(), (places % m).astype(np.int32), starts.astype(np.int32)), (m, m))


def random_matrix(
    m: int, density: float, uniform: Callable[..., Tensor], generator: torch.Generator
) -> tuple[Connections, float]:
    """A random matrix (m, m) and its spectral radius, which is 0 if no draw contained a loop."""

    def draw() -> tuple[Connections, float]:
        places = random_places(m * m, density, generator)
        U = Connections(m, places, uniform(len(places)))
        sparse = m > DENSE and len(places) < SPARSE * m * m
        return U, _radius(U.sparse()) if sparse else spectral_radius(U.dense())

    U, radius = draw()
    for _ in range(DRAWS - 1):  # a small sparse reservoir may have no loop
        if radius:
            break
        U, radius = draw()
    return U, radius


def random_places(most: int, density: float, generator: torch.Generator) -> Tensor:
    """Numbers below ``most`` in order, each with probability ``density``; only those that are taken are drawn."""
    if density == 1:
        return torch.arange(most)
    found, last = [], -1
    while last < most:
        gaps = torch.empty(int((most - last) * density * 1.05) + 100, dtype=torch.float64)
        gaps = gaps.geometric_(density, generator=generator).clamp_(max=most + 1)  # the distance to the next
        found.append(last + gaps.cumsum(0).long())
        last = int(found[-1][-1])
    places = torch.cat(found)
    return places[: int(torch.searchsorted(places, most))]


def spectral_radius(U: Tensor) -> float:
    """The modulus of the largest eigenvalue of U: exact up to ``DENSE`` units, above to a relative error below 1e-3."""
    if len(U) <= DENSE:
        return float(torch.linalg.eigvals(U).abs().max())
    from scipy.sparse import csr_array

    dense = U.numpy()
    return _radius(csr_array(dense) if np.count_nonzero(dense) < SPARSE * dense.size else dense)


def _radius(matrix: Any) -> float:
    """The same by ARPACK.

    ARPACK computes two (pairs of) eigenvalues at once. Those of random matrices lie close together: asked for one,
    ARPACK may return another than the largest, at any tolerance. With two and a tolerance of 1e-3, the largest error
    in 100 random matrices of 300 to 1000 units was 2e-4.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, eigs

    options: dict[str, Any] = {"k": 2, "ncv": 60, "tol": 1e-3, "v0": np.ones(matrix.shape[0])}
    try:
        found = eigs(matrix, return_eigenvectors=False, **options)
    except ArpackNoConvergence:
        found = np.linalg.eigvals(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())
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
    """XᵀX; on a CPU by NumPy, which knows that the product is symmetric and computes half of it."""
    if X.device.type != "cpu":
        return X.t() @ X
    rows = X.numpy()
    return torch.from_numpy(rows.T @ rows)


def ridge_solution(A: Tensor, B: Tensor, ridge: float) -> Tensor:
    """(A + λ I)⁻¹ B on a CPU for a symmetric A, which is overwritten; by the pseudo-inverse of A if λ is 0."""
    if not ridge:
        return torch.linalg.lstsq(A, B, driver="gelsd").solution
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    A.diagonal().add_(ridge)
    try:
        factor = cho_factor(A.numpy().T, lower=True, overwrite_a=True, check_finite=False)  # Aᵀ: LAPACK reads columns
    except LinAlgError:
        text = f"EchoState: ridge must be larger for these data, or 0, got {ridge!r}: XᵀX + λI is singular in float64"
        raise ValueError(text) from None
    return torch.from_numpy(cho_solve(factor, B.numpy(), check_finite=False))
