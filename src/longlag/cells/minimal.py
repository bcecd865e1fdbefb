"""Gated units whose gates read the input only: linear in the state, so that a scan can compute them in parallel."""

from longlag.cells import cell, sigmoid


@cell(gates="z a", dense=False)
def min_gru(z, a, y):
    """minGRU (Feng et al. 2024). Take the cell for very long sequences on a GPU.

    y(t) = (1 − σ(z))·y(t−1) + σ(z)·a
    """
    return (1 - sigmoid(z)) * y + sigmoid(z) * a


@cell(gates="f i a", dense=False)
def min_lstm(f, i, a, y):
    """minLSTM (Feng et al. 2024), its two gates normalised. Take the cell as `min_gru`, with one gate more.

    y(t) = (σ(f)·y(t−1) + σ(i)·a)/(σ(f) + σ(i))
    """
    return (sigmoid(f) * y + sigmoid(i) * a) / (sigmoid(f) + sigmoid(i))
