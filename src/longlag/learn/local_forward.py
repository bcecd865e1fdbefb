"""The forward learning of the local-feedback networks of 1992."""

from __future__ import annotations

from longlag.layers import Layer
from longlag.layers.units import NotLocal
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule


class LocalForward(Rule):
    """Learning local in space and time (Frasconi, Gori and Soda 1992): exact, O(w) time and memory per step.

    One trace per weight into a unit j with feedback: E_jk ← λ_j E_jk + x_k, λ_j the gain of the unit's loop;
    dw_jk = δ_j E_jk, δ_j the error back-propagated within the step [LF-92 2.1].

    Locality theorem [LF-92-ML 5]: exact if and only if no path from j to an output passes through another unit
    with feedback: units with feedback read only the input, or units that are not trained. Other networks are refused
    unless ``cross``.

    Args:
        cross: also keep the influence of lower weights on higher units with feedback: exact for every
            number of layers, at O(H₂ w₁) time and memory for two and O(H₃ H₂ w₁) time for a third.

    >>> import torch, longlag as ll
    >>> net, rule = ll.LocalFeedbackNetwork(3, (2, 3, 4), (1, 1, 1), constrain=None), ll.learn.LocalForward()
    >>> state, trace = None, rule.start(net, batch_size=2)
    >>> for x_t in torch.randn(50, 2, 3):
    ...     y, state, trace = rule.step(net, x_t, state, trace)
    >>> rule.gradients(net, trace, 2 * y)["groups.hidden_0_net.u_l0"].shape
    torch.Size([3])
    """

    def __init__(self, cross: bool = False) -> None:
        self.cross = cross

    def _method(self, layer: Layer) -> Method:
        try:
            graph = layer.local_units()
        except NotLocal as reason:
            raise ValueError(
                f"LocalForward: {layer.class_name} {reason}; RTRL, BPTT and TruncatedBPTT serve it, "
                "LocalForward serves LocalFeedback, LocalFeedbackNetwork and cells with dense=False"
            ) from None
        method = Diagonal(layer, graph, self.cross)
        for upper in () if self.cross else graph.groups:
            lower = [g.name for g in method.trained if g.name in graph.below(upper.name)]
            if upper.loop and lower:
                raise ValueError(
                    f"LocalForward: {layer.class_name}'s {upper.name} has feedback and reads trained units "
                    f"({', '.join(lower)}), so local traces are not exact (locality theorem); "
                    "LocalForward(cross=True), RTRL, BPTT and TruncatedBPTT serve it"
                )
        return method
