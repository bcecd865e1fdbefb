"""Sparse n-step approximation of real-time recurrent learning."""

from __future__ import annotations

from longlag.layers import Layer, validation
from longlag.layers.units import NotLocal
from longlag.learn._dense import Dense
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule
from longlag.learn._sparse import Sparse


class SnAp(Rule):
    """SnAp-n (Menick et al. 2021): `RTRL` that keeps the influence on states which a parameter reaches in n steps.

    Ẽ(t) = P ⊙ (J(t) Ẽ(t−1) + ∂s(t)/∂θ), dθ = dL/ds(t) Ẽ(t) [SNAP 1]; P is 1 where a parameter acts on a state value
    within n steps, else 0.

    `SnAp(1)` keeps a parameter's influence on its own unit: the whole loop of that unit, with its recurrent weight
    u_jj, and nothing that passes through other units. For layers whose units feed back only to themselves
    (``dense=False``), `SnAp` is `RTRL`, exact at O(w). If every parameter reaches every state within n steps, as in
    dense layers for n = 2, `SnAp(n)` is `RTRL`, too, at its cost. A larger n pays where the connections are sparse:
    frozen zeros, or a parametrisation that masks weights.

    Cost per step and sample, w parameters of which each reaches m states: O(m w) memory, O(m² w) time, and the
    Jacobian of the step: O(w) for a layer of one level.

    Args:
        n: steps within which a state must be reached, 1 or more.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.GRU(3, 5), ll.learn.SnAp(1)
    >>> state, trace = None, rule.start(layer, batch_size=2)
    >>> for x_t in torch.randn(50, 2, 3):
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> rule.gradients(layer, trace, torch.ones_like(y))["weight_hh_l0"].shape
    torch.Size([15, 5])
    """

    def __init__(self, n: int = 1) -> None:
        self.n = validation.positive("SnAp", "n", n)

    def __repr__(self) -> str:
        return f"SnAp({self.n})"

    def _method(self, layer: Layer) -> Method:
        try:
            graph = layer.local_units()
        except NotLocal:
            sparse = Sparse(self._name, layer, self.n)
            return Dense(self._name, layer) if sparse.full else sparse
        return Diagonal(layer, graph, cross=True)
