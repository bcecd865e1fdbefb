"""What the weights alone say about error flow: bounds on one factor of the Jacobian product. [RNN-97 1.1]

‖∂state(t)/∂state(t−q)‖ ≤ factorᵠ. factor < 1 proves vanishing; factor ≥ 1 proves nothing: exploding is allowed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import matrix_norm

from longlag.flow._run import as_layer, linearise, time_step
from longlag.layers.bounds import largest_slopes

LARGEST_NET = 5  # units up to which single paths are written out: their number is d^(lag+1)


class Conditions(NamedTuple):
    """Sufficient conditions for vanishing, each a factor that must be below 1. [RNN-97 1.1]

    spectral γ‖U‖₂, rows γ max_i Σ_j |u_ij|, columns γ max_j Σ_i |u_ij|, entries γ d max |u_ij| (so |w| < 4/d for
    logistic units). Each of the first three bounds the error in its own norm: 2, ∞ and 1 for U, the reverse for Uᵀ.
    """

    spectral: float
    rows: float
    columns: float
    entries: float


@torch.no_grad()
def conditions(layer: nn.Module) -> Conditions:
    """The factors by which an error may grow per step, in three norms and entrywise.

    Args:
        layer: one level of units y = f(a): `Elman`, ``Recurrent(cells.rnn97, …)``, ``torch.nn.RNN``.

    >>> import longlag as ll
    >>> max(conditions(ll.Recurrent(ll.cells.rnn97, 3, 10))) < 1  # initial weights below 4/d: errors vanish
    True
    """
    found = as_layer("conditions", layer)
    known = found.gain_bound() is not None and found.cell is not None and found.cell.key in largest_slopes()
    if not known or found.cell is None:
        name = type(layer).__name__
        raise ValueError(f"conditions: layer must be one level of Elman or RNN-97 units without norm, got {name}")
    gamma, U = largest_slopes()[found.cell.key], found.get_parameter("weight_hh_l0")
    norms = (matrix_norm(U, 2), matrix_norm(U, torch.inf), matrix_norm(U, 1), len(U) * U.abs().max())
    return Conditions(*(gamma * float(v) for v in norms))  # [RNN-97 1.1 norms]


@torch.no_grad()
def path_products(layer: nn.Module, x: Tensor, lag: int, t: int | None = None) -> Tensor:
    """The single paths that error takes from step t back over ``lag`` steps, each a product of ``lag`` factors.

    ∂y_k0(t)/∂y_kn(t−n) = Σ_{k1..k(n−1)} Π_{q=1..n} f′(net_k(q−1)(t−q+1)) w_k(q−1)k(q) [RNN-97 1.1]

    Args:
        layer: as in `conditions`, with at most 5 units (d^(lag+1) paths are returned).
        x: (T, B, I); t: a step, the last by default.

    Returns:
        (B, d, …, d): one axis per unit on the path, k0 first.

    >>> import torch, longlag as ll
    >>> paths = path_products(ll.Elman(1, 3), torch.randn(6, 1, 1), lag=2)
    >>> paths.shape  # from any of 3 units over any of 3 to any of 3
    torch.Size([1, 3, 3, 3])
    """
    conditions(layer)
    run = linearise("path_products", layer, x)
    t = time_step("path_products", t, run.steps)
    if run.size > LARGEST_NET:
        raise ValueError(f"path_products: layer must have at most {LARGEST_NET} units, got {run.size}")
    if not isinstance(lag, int) or not 1 <= lag <= t + 1:
        raise ValueError(f"path_products: lag must be an int of 1..{t + 1}, got {lag!r}")
    paths = run.x.new_ones(run.x.shape[1], run.size)
    for q in range(lag):
        factors = run.jacobian(t - q)  # f′(net_i) w_ij, (B, d, d)
        paths = paths.unsqueeze(-1) * factors.view(len(factors), *[1] * q, run.size, run.size)  # [RNN-97 1.1 paths]
    return paths
