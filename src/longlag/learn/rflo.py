"""Random-feedback local online learning and e-prop: each unit's own memory, nothing through the recurrent matrix."""

from __future__ import annotations

from longlag.layers import Layer
from longlag.layers.units import NotLocal
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule


class RFLO(Rule):
    """Local eligibility traces: RFLO (Murray 2019) for leaky units, e-prop (Bellec et al. 2020) for gated units.

    The definition is that of e-prop. A unit's hidden state h_j remembers by itself; outputs of all units at t−1,
    its own included, count as inputs:
    ε_ji(t) = ∂h_j(t)/∂h_j(t−1) ε_ji(t−1) + ∂h_j(t)/∂w_ji, dθ_ji = L_j(t) ∂y_j(t)/∂h_j(t) ε_ji(t) [RFLO 1].

    Kept: the leak 1 − 1/α of `Leaky` (Murray's trace, time constant α), σ(f) of the cell state of an `LSTM`, σ(z) of
    a `GRU`. Cut: everything that passes through the recurrent matrix, a unit's weight on itself included; `SnAp(1)`
    keeps that weight. `Elman` units keep nothing.

    L_j(t), the learning signal, is the dy given to `gradients`: the true error of the output, as in symmetric e-prop.
    The random feedback of the papers is a matter of the read-out, which turns output errors into dy.

    These are the cuts of `TruncatedRTRL`, and for dense layers of one level without norm, which `RFLO` serves, the
    two give the same numbers; `TruncatedRTRL` serves `LSTM97` too. O(w) time and memory per step.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.Leaky(3, 5, alpha=4.0), ll.learn.RFLO()
    >>> state, trace = None, rule.start(layer, batch_size=2)
    >>> for x_t in torch.randn(50, 2, 3):
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> rule.gradients(layer, trace, torch.ones_like(y))["weight_hh_l0"].shape
    torch.Size([5, 5])
    """

    def _method(self, layer: Layer) -> Method:
        others = "RTRL, SnAp and UORO serve it, RFLO serves dense layers of one level without norm"
        try:
            graph = layer.local_units(cut=True)
        except NotLocal as reason:
            raise ValueError(f"RFLO: {layer.class_name} {reason}; {others}") from None
        if len(graph.groups) > 1:
            raise ValueError(f"RFLO: {layer.class_name} has several kinds of units; TruncatedRTRL and {others}")
        return Diagonal(layer, graph, cross=False)
