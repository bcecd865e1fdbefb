"""Real-time recurrent learning: the influence of every parameter on the state, updated at every step."""

from __future__ import annotations

from longlag.layers import Layer
from longlag.layers.units import NotLocal
from longlag.learn._dense import Dense
from longlag.learn._diagonal import Diagonal
from longlag.learn._rule import Method, Rule


class RTRL(Rule):
    """Real-time recurrent learning (Williams and Zipser 1989): exact for every layer, memory independent of time.

    E(t) = J(t) E(t−1) + ∂s(t)/∂θ, E = ∂s/∂θ the influence of the parameters on the state s, J = ∂s(t)/∂s(t−1);
    dθ = dy · ∂y/∂θ [ELMAN 1.3], [LSTM-FG 1.2], [LSTM-97 3.6], [JORDAN 2 S].

    Cost per step and sample, w parameters and S state values: dense layers O(S² w) time, O(S w) memory. Layers
    whose units feed back only to themselves (``dense=False``, no norm) O(w); O(H₂ w₁) for a stack of two, O(H₃ H₂ w₁)
    for three. Autograd differentiates layers without closed-form derivatives (`Skip`, `Jordan`, a `StepLayer`),
    sample by sample: the cost of dense layers plus the overhead of autograd.

    >>> import torch, longlag as ll
    >>> _ = torch.manual_seed(0)
    >>> layer, rule = ll.LocalFeedback(3, 5, constrain=None, dtype=torch.float64), ll.learn.RTRL()
    >>> x, state, trace = torch.randn(50, 2, 3).double(), None, rule.start(layer, 2)
    >>> for x_t in x:
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> grads = rule.gradients(layer, trace, torch.ones_like(y))
    >>> layer(x)[0][-1].sum().backward()
    >>> torch.allclose(grads["u_l0"], layer.u_l0.grad)
    True
    """

    def _method(self, layer: Layer) -> Method:
        try:
            graph = layer.local_units()
        except NotLocal:
            return Dense(self._name, layer)
        return Diagonal(layer, graph, cross=True)
