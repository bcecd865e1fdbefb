"""LSTM with a forget gate."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates="i f g o", states="c")
def lstm(i, f, g, o, c):
    """Forget-gate LSTM (Gers, Schmidhuber and Cummins 2000); gate order as in ``torch.nn.LSTM``.

    c(t) = σ(f)·c(t−1) + σ(i)·tanh(g)
    y(t) = σ(o)·tanh(c(t))
    """
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)  # [LSTM-FG 25.24]
    return sigmoid(o) * tanh(c), c  # [LSTM-FG 25.25]
