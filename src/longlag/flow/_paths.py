"""Error flow as a sum over paths from unit to unit, as in Hochreiter and Schmidhuber (1997). [RNN-97 1.1]

d units y(t) = f(net(t)), net(t) = W x(t) + U y(t−1) + b; w_ij are the entries of U. The first step is t = 0.
ϑ(t) = ∂L/∂net(t) is the error that the learning rule works with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longlag.flow._conditions import simple_units
from longlag.flow._run import linearise, time_step
from longlag.layers.validation import ShapeError, like, one_of

MOST_UNITS = 5  # d^(lag + 1) numbers are returned


@torch.no_grad()
def path_products(layer: nn.Module, x: Tensor, lag: int, t: int | None = None, *, of: str = "output") -> Tensor:
    """Every path that an error takes from step t back over n = ``lag`` steps, each a product of n factors.

    ``of="output"``: ∂y_k0(t)/∂y_kn(t−n) = Σ_{k1..k(n−1)} Π_{q=1..n} f′(net_k(q−1)(t−q+1)) w_k(q−1)k(q);
    ``of="net"``: ∂ϑ_kn(t−n)/∂ϑ_k0(t) = Σ_{k1..k(n−1)} Π_{q=1..n} w_k(q−1)k(q) f′(net_k(q)(t−q)),
    the equation of the paper, whose slopes are taken one step earlier. Products are returned, not their sum.

    Args:
        layer: as in `conditions`, with at most 5 units.
        x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I).
        lag: n, at most t + 1 for outputs (y before the first step is the initial state), at most t for nets.
        t: a step; the last by default.
        of: ``"output"`` or ``"net"``.

    Returns:
        (B, d, …, d): one axis per unit on the path, k0 first.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> layer, x = ll.Recurrent(ll.cells.rnn97, 2, 3), torch.randn(6, 1, 2)
    >>> paths = flow.path_products(layer, x, lag=2, of="net")
    >>> paths.shape  # from any of 3 units over any of 3 to any of 3
    torch.Size([1, 3, 3, 3])
    >>> theta = flow.net_errors(layer, x, error=torch.tensor([[1.0, -1.0, 0.5]]))  # ϑ(t), ϑ(t−1), …
    >>> torch.allclose(torch.einsum("bij, bi -> bj", paths.sum(2), theta[0]), theta[2])
    True
    """
    one_of("path_products", "of", of, ("output", "net"))
    U, slopes = _units("path_products", layer, x)
    T, B, d = slopes.shape
    if d > MOST_UNITS:
        raise ValueError(f"path_products: layer must have at most {MOST_UNITS} units, got {d}")
    t = time_step("path_products", t, T)
    most = t + 1 if of == "output" else t
    if not isinstance(lag, int) or isinstance(lag, bool) or not 1 <= lag <= most:
        raise ValueError(f"path_products: lag must be an int of 1..{most}, got {lag!r}")
    paths = U.new_ones(B, d)
    for q in range(1, lag + 1):
        factors = slopes[t - q + 1].unsqueeze(-1) * U
        if of != "output":
            factors = U * slopes[t - q].unsqueeze(-2)  # [RNN-97 1.1 paths]
        paths = paths.unsqueeze(-1) * factors.view(B, *[1] * (q - 1), d, d)
    return paths


@torch.no_grad()
def net_errors(layer: nn.Module, x: Tensor, error: Tensor, t: int | None = None) -> Tensor:
    """The errors ϑ = ∂L/∂net of step t and of all earlier steps, for a loss that reads y(t) alone.

    ϑ(t) = f′(net(t)) ⊙ ∂L/∂y(t), ϑ(t−q) = f′(net(t−q)) ⊙ Uᵀ ϑ(t−q+1)

    Args:
        layer: as in `conditions`, of any size; x, t: as in `path_products`.
        error: ∂L/∂y(t), (B, d), or (d,) if x is (T, I).

    Returns:
        (t + 1, B, d): ϑ(t), ϑ(t−1), …, ϑ(0).

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> layer, x = ll.Recurrent(ll.cells.rnn97, 2, 10), torch.randn(30, 1, 2)
    >>> theta = flow.net_errors(layer, x, error=torch.ones(1, 10))
    >>> bool(theta[20].norm() < flow.conditions(layer).spectral ** 20 * theta[0].norm())
    True
    """
    U, slopes = _units("net_errors", layer, x)
    T, B, d = slopes.shape
    t = time_step("net_errors", t, T)
    wanted = (B, d) if x.dim() == 3 else (d,)
    if like("net_errors", "error", error, U).shape != wanted:
        raise ShapeError(f"net_errors: error must have shape {wanted}, got {tuple(error.shape)}")
    theta = [slopes[t] * error]
    for q in range(1, t + 1):
        theta.append(slopes[t - q] * (theta[-1] @ U))  # [RNN-97 1.1 chain]
    return torch.stack(theta)


def _units(owner: str, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """U (d, d) and the slopes f′(net(t)) along a run, (T, B, d)."""
    cell, U = simple_units(owner, layer)
    run = linearise(owner, layer, x)
    (gate,) = cell.gates
    slopes = cell.partials(run.linear.net_inputs[0][gate])["y", gate]
    return U, torch.as_tensor(slopes).unflatten(0, (run.steps, -1))
