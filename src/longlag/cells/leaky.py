"""Leaky integrator unit."""

from longlag.cells import cell, tanh


@cell(gates="a", params={"alpha": 1.0})
def leaky(a, y, alpha):
    """Leaky integrator with time constant α ≥ 1; α = 1 is Elman's unit.

    y(t) = (1 − 1/α)·y(t−1) + tanh(a)/α
    """
    return (1 - 1 / alpha) * y + tanh(a) / alpha  # [LEAKY 2]
