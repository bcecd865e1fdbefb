"""FastGRNN: one net input serves the gate and the candidate."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates="a", params={"b_z": 1.0, "b_h": 1.0, "zeta": 1.0, "nu": -4.0})
def fast_grnn(a, y, b_z, b_h, zeta, nu):
    """FastGRNN (Kusupati et al. 2018). Take the cell on a microcontroller: half of a GRU's cost or less.

    ζ and ν are numbers per unit here, one number per layer in the paper. Give the layer ``bias=False``.

    y(t) = (σ(ζ)·(1 − σ(a + b_z)) + σ(ν))·tanh(a + b_h) + σ(a + b_z)·y(t−1)
    """
    z = sigmoid(a + b_z)
    return (sigmoid(zeta) * (1 - z) + sigmoid(nu)) * tanh(a + b_h) + z * y
