"""What the weights alone say about error flow: bounds on one factor of the Jacobian product. [RNN-97 1.1]

‖∂state(t)/∂state(t−q)‖ ≤ factorᵠ. factor < 1 proves vanishing; factor ≥ 1 proves nothing: exploding is allowed.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import matrix_norm

from longlag.flow._cell_run import CellRun
from longlag.flow._run import as_layer, linearise, time_step
from longlag.layers import EchoState, Jordan, LocalFeedbackNetwork, Recurrent

LARGEST_NET = 5  # units up to which single paths are written out: their number is d^(lag+1)


@functools.cache
def slopes() -> dict[str, float]:
    """sup |f′| of the units y = f(a), by the key of their equations."""
    from longlag import cells

    return {cells.elman.key: 1.0, cells.elman_relu.key: 1.0, cells.rnn97.key: 0.25}  # [ELMAN 6 γ]


def factor(layer: nn.Module) -> tuple[float, str] | None:
    """A bound on ‖∂state(t+1)/∂state(t)‖₂ for every input, and its formula; None where the weights give none.

    >>> import torch, longlag as ll
    >>> layer = ll.Recurrent(ll.cells.rnn97, 1, 20)
    >>> _ = torch.nn.init.ones_(layer.weight_hh_l0)
    >>> bound, formula = factor(layer)  # every single w σ′ is at most 0.25, yet errors may grow fivefold
    >>> round(bound, 4), formula
    (5.0, '(0.25 ‖U‖)^q')
    """
    with torch.no_grad():
        if isinstance(layer, EchoState):
            return factor(layer.reservoir)
        if isinstance(layer, Jordan) and not layer.hidden_feedback:
            return _jordan(layer)
        if isinstance(layer, LocalFeedbackNetwork) and len(layer.hidden_sizes) <= 1:
            found = [factor(group) for name, group in layer._groups() if name in layer.state_sizes]
            return max((f[0] for f in found if f is not None), default=0.0), "max(|u|, |v|/2)^q"
        if isinstance(layer, Recurrent) and layer.num_layers == 1 and layer.norm is None:
            return _cell(layer)
    return None


def _cell(layer: Recurrent) -> tuple[float, str] | None:
    from longlag import cells

    key, w = layer.cell.key, layer.weights(0)
    if key in slopes():
        assert w.U is not None
        gamma = slopes()[key]
        return gamma * float(matrix_norm(w.U, 2)), "‖U‖^q" if gamma == 1 else f"({gamma:g} ‖U‖)^q"
    if key == cells.leaky.key:
        assert w.U is not None
        rate = 1 / w.params[0]  # 1/α
        kept, moved = (1 - rate).abs().max(), matrix_norm(rate.unsqueeze(-1) * w.U, 2)
        return float(kept + moved), "(max(1 − 1/α) + ‖U/α‖)^q"
    if key == cells.net_feedback.key:
        return float(w.params[0].abs().max()), "max|u|^q"  # [LF-92 3]
    if key == cells.activation_feedback.key:
        return float(w.params[0].abs().max()) / 2, "(max|v|/2)^q"  # [LF-92 3]
    return None


def _jordan(layer: Jordan) -> tuple[float, str]:
    if layer.feedback == "argmax":
        return 0.0, "0: argmax feeds back no error"
    product = float(matrix_norm(layer.weight_ho, 2) * matrix_norm(layer.weight_fb, 2))
    # ‖diag p − p pᵀ‖₂ ≤ ½ [JORDAN 2 bound]
    return (product / 2, "(½ ‖V‖ ‖U‖)^q") if layer.feedback == "soft" else (product, "(‖V‖ ‖U‖)^q")


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
    if not isinstance(found, Recurrent) or found.cell.key not in slopes() or found.num_layers > 1 or found.norm:
        name = type(layer).__name__
        raise ValueError(f"conditions: layer must be one level of Elman or RNN-97 units without norm, got {name}")
    gamma, U = slopes()[found.cell.key], found.weights(0).U
    assert U is not None
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
    assert isinstance(run, CellRun)
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
