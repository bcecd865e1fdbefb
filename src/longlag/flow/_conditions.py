"""What the weights alone say about error flow: bounds on one factor of the Jacobian product. [RNN-97 1.1 norms]

‖∂state(t)/∂state(t−q)‖ ≤ factorᵠ. factor < 1 proves vanishing; factor ≥ 1 proves nothing: exploding is allowed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import matrix_norm

from longlag.cells import Cell
from longlag.engines import few_threads
from longlag.flow._run import as_layer
from longlag.layers.bounds import largest_slopes

RECURRENT = "weight_hh_l0"


class Conditions(NamedTuple):
    """Sufficient conditions for vanishing, each a factor that must be below 1. [RNN-97 1.1 norms]

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
    >>> from longlag import flow
    >>> max(flow.conditions(ll.Recurrent(ll.cells.rnn97, 3, 10))) < 1  # initial weights below 4/d: errors vanish
    True
    """
    cell, U = simple_units("conditions", layer)
    gamma = largest_slopes()[cell.key]
    with few_threads(len(U)):
        norms = (matrix_norm(U, 2), matrix_norm(U, torch.inf), matrix_norm(U, 1), len(U) * U.abs().max())
    return Conditions(*(gamma * float(v) for v in norms))  # [RNN-97 1.1 norms]


def simple_units(owner: str, layer: nn.Module) -> tuple[Cell, Tensor]:
    """The cell y = f(a) and the recurrent matrix U of one level of such units; other layers are refused."""
    found = as_layer(owner, layer)
    with few_threads(found.state_spec.size):
        bounded = found.gain_bound() is not None
    if not bounded or found.cell is None or found.cell.key not in largest_slopes():
        name = type(layer).__name__
        raise ValueError(f"{owner}: layer must be one level of Elman or RNN-97 units without norm, got {name}")
    return found.cell, getattr(found, RECURRENT).detach()
