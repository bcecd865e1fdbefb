"""Unbiased online recurrent optimisation: the influence as one random outer product."""

from __future__ import annotations

import torch

from longlag.layers import Layer
from longlag.learn._rank_one import RankOne
from longlag.learn._rule import Method, Rule


class UORO(Rule):
    """UORO (Tallec and Ollivier 2018): an unbiased estimate of the exact gradient, O(w) numbers whatever the layer.

    ∂s(t)/∂θ ≈ s̃ ⊗ θ̃ with the exact mean. For random signs ν [UORO 1]:
    s̃(t) = ρ₀ J(t) s̃(t−1) + ρ₁ ν, θ̃(t) = θ̃(t−1)/ρ₀ + νᵀ ∂s(t)/∂θ /ρ₁, ρ₀ = √(‖θ̃‖/‖J s̃‖), ρ₁ = √(‖νᵀ ∂s/∂θ‖/‖ν‖);
    dθ = dy ∂y(t)/∂θ + (dy ∂y(t)/∂s(t−1) s̃(t−1)) θ̃(t−1).

    The mean over many draws is the gradient of `RTRL`; a single draw is noisy, more so with more units. Small learning
    rates average the noise over time. Serves every layer that `RTRL` serves; time per step is that of the step's
    Jacobian, O(w) for a layer of one level.

    Args:
        generator: the source of random signs; the same state of the generator gives the same gradients. A trace keeps
            its seed, so a saved learner continues with the same signs. None: torch's default generator.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.GRU(3, 5), ll.learn.UORO(torch.Generator().manual_seed(0))
    >>> state, trace = None, rule.start(layer, batch_size=2)
    >>> for x_t in torch.randn(50, 2, 3):
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> rule.gradients(layer, trace, torch.ones_like(y))["weight_hh_l0"].shape
    torch.Size([15, 5])
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"UORO: generator must be a torch.Generator or None, got {type(generator).__name__}")
        self.generator = generator

    def __repr__(self) -> str:
        return "UORO()"

    def _method(self, layer: Layer) -> Method:
        return RankOne(self._name, layer, self.generator)
