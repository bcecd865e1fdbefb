"""Gated units whose recurrent matrix reads a product of the same step."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates=["r", "z", "a:x+sigmoid(r)*y"])
def gru_original(r, z, a, y):
    """GRU as published (Cho et al. 2014): the reset gate acts before the product, a = W x(t) + U (σ(r)·y(t−1)) + b.

    Take the cell to reproduce results of before cuDNN, whose form is `gru`.

    y(t) = σ(z)·y(t−1) + (1 − σ(z))·tanh(a)
    """
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


@cell(gates=["f", "a:x+sigmoid(f)*y"])
def mgu(f, a, y):
    """Minimal gated unit (Zhou et al. 2016), a = W x(t) + U (σ(f)·y(t−1)) + b. Take the cell for a smaller GRU.

    y(t) = (1 − σ(f))·y(t−1) + σ(f)·tanh(a)
    """
    return (1 - sigmoid(f)) * y + sigmoid(f) * tanh(a)
