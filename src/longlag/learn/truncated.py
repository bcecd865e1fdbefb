"""The truncated real-time learning of 1997."""

from __future__ import annotations

from longlag.layers import Layer, validation
from longlag.layers.units import NotLocal
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule


class TruncatedRTRL(Rule):
    """Real-time learning with the cuts of Hochreiter and Schmidhuber (1997): O(w) time and memory per step.

    Errors do not go back through the net inputs: ∂net(t)/∂y(t−1) := 0. What a unit keeps by itself stays: the
    internal state of an `LSTM97` cell, ∂s(t)/∂s(t−1) = 1 [LSTM-97 3.1]; ∂c(t)/∂c(t−1) = σ(f) of an `LSTM`
    [LSTM-FG 1.3]; the leak of `Leaky`, σ(z) of a `GRU`. An `Elman` unit keeps nothing.

    Serves `LSTM97`, and dense `Recurrent` layers of one layer without norm.

    Args:
        hidden: conventional hidden units of an `LSTM97`: ``"cut"`` like all others, or ``"full"``, the full gradient
            through the connections among them: ∂net_hid(t)/∂y_hid(t−1) is kept, at O(H² w) for H hidden units.

    >>> import torch, longlag as ll
    >>> net, rule = ll.LSTM97(2, blocks=2, block_size=2, output_size=1), ll.learn.TruncatedRTRL()
    >>> state, trace = None, rule.start(net, batch_size=1)
    >>> for x_t in torch.randn(100, 1, 2):
    ...     y, state, trace = rule.step(net, x_t, state, trace)
    >>> rule.gradients(net, trace, y - 0.5)["weight_ig"].shape
    torch.Size([2, 10])
    """

    def __init__(self, hidden: str = "cut") -> None:
        self.hidden = validation.one_of("TruncatedRTRL", "hidden", hidden, ("cut", "full"))

    def __repr__(self) -> str:
        return "TruncatedRTRL()" if self.hidden == "cut" else f"TruncatedRTRL(hidden={self.hidden!r})"

    def _method(self, layer: Layer) -> Method:
        try:
            graph = layer.local_units(cut=True)
        except NotLocal as reason:
            raise ValueError(
                f"TruncatedRTRL: {layer.class_name} {reason}; RTRL, BPTT and TruncatedBPTT serve it, "
                "TruncatedRTRL serves LSTM97 and dense layers of one level without norm"
            ) from None
        if self.hidden == "full" and not graph.dense_loops:
            raise ValueError(f"TruncatedRTRL: {layer.class_name} has no conventional hidden units for hidden='full'")
        return Diagonal(layer, graph, cross=False, loops=self.hidden == "full")
