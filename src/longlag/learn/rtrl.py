"""Real-time recurrent learning: the influence of every parameter on the state, carried along with it."""

from __future__ import annotations

from longlag.layers import LSTM97, LocalFeedbackNetwork, Recurrent
from longlag.layers._module import Layer
from longlag.learn._dense import Dense
from longlag.learn._diagonal import Diagonal
from longlag.learn._generic import Generic
from longlag.learn._graph import Levels, LocalNetwork
from longlag.learn._linear import RecurrentStep
from longlag.learn._linear97 import LSTM97Step
from longlag.learn._rule import Method, Rule


class RTRL(Rule):
    """Real-time recurrent learning (Williams and Zipser 1989): exact for every layer, memory independent of time.

    E(t) = J(t) E(t−1) + ∂s(t)/∂θ, E = ∂s/∂θ the influence of the parameters on the state s, J = ∂s(t)/∂s(t−1);
    dθ = dy · ∂y/∂θ [ELMAN 1.3], [LSTM-FG 1.2], [LSTM-97 3.6], [JORDAN 2 S].

    Cost per step and sample, w parameters and S numbers of state: dense layers O(S² w) time, O(S w) memory. Layers
    whose units hear only themselves (``dense=False``, no norm) O(w); stacked, O(H₂ w₁) for two layers, O(H₃ H₂ w₁)
    for a third. `Skip` and `Jordan` are differentiated step by step by autograd: as dense ones, with its overhead.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.LocalFeedback(3, 5), ll.learn.RTRL()
    >>> x, state, trace = torch.randn(50, 2, 3), None, rule.start(layer, 2)
    >>> for x_t in x:
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> grads = rule.gradients(layer, trace, torch.ones_like(y))
    >>> layer(x)[0][-1].sum().backward()
    >>> torch.allclose(grads["u_l0"], layer.u_l0.grad, rtol=1e-4)
    True
    """

    def _method(self, layer: Layer) -> Method:
        if isinstance(layer, Recurrent):
            by_unit = not layer.cell.dense and layer.norm is None
            return Diagonal(Levels(layer), cross=True) if by_unit else Dense(RecurrentStep(layer))
        if isinstance(layer, LocalFeedbackNetwork):
            return Diagonal(LocalNetwork(layer), cross=True)
        return Dense(LSTM97Step(layer)) if isinstance(layer, LSTM97) else Generic(layer)
