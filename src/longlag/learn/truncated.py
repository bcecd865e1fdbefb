"""The truncated real-time learning of 1997."""

from __future__ import annotations

from longlag.layers import Layer
from longlag.layers.units import NotLocal
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule


class TruncatedRTRL(Rule):
    """Real-time learning with the cuts of Hochreiter and Schmidhuber (1997): O(w) time and memory per step.

    Errors do not go back through the net inputs: ∂net(t)/∂y(t−1) := 0. What a unit keeps by itself stays: the
    internal state of an `LSTM97` cell, ∂s(t)/∂s(t−1) = 1 [LSTM-97 3.1]; ∂c(t)/∂c(t−1) = σ(f) of an `LSTM`
    [LSTM-FG 1.3]; the leak of `Leaky`, σ(z) of a `GRU`. An `Elman` unit keeps nothing.

    Serves `LSTM97`, and dense `Recurrent` layers of one layer without norm.

    >>> import torch, longlag as ll
    >>> net, rule = ll.LSTM97(2, blocks=2, block_size=2, output_size=1), ll.learn.TruncatedRTRL()
    >>> state, trace = None, rule.start(net, batch_size=1)
    >>> for x_t in torch.randn(100, 1, 2):
    ...     y, state, trace = rule.step(net, x_t, state, trace)
    >>> rule.gradients(net, trace, y - 0.5)["weight_ig"].shape
    torch.Size([2, 10])
    """

    def _method(self, layer: Layer) -> Method:
        try:
            return Diagonal(layer, layer.local_units(cut=True), cross=False)
        except NotLocal as reason:
            raise ValueError(
                f"TruncatedRTRL: {layer.class_name} {reason}; RTRL, BPTT and TruncatedBPTT serve it, "
                "TruncatedRTRL serves LSTM97 and dense layers of one level without norm"
            ) from None
