"""Gated recurrent unit."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates="r z n:x m:y")
def gru(r, z, n, m, y):
    """GRU (Cho et al. 2014) in torch's form: n reads the input only, m the previous outputs only.

    y(t) = (1 − σ(z))·tanh(n + σ(r)·m) + σ(z)·y(t−1)
    """
    return (1 - sigmoid(z)) * tanh(n + sigmoid(r) * m) + sigmoid(z) * y  # [GRU 1]
