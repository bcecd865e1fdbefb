"""LSTM whose gates see the internal state, and LSTM with one gate for writing and forgetting."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates="i f g o", states="c", params={"p_i": 0.0, "p_f": 0.0, "p_o": 0.0})
def peephole_lstm(i, f, g, o, c, p_i, p_f, p_o):
    """LSTM with peepholes (Gers and Schmidhuber 2000). Take the cell where the exact timing of events matters.

    c(t) = σ(f + p_f·c(t−1))·c(t−1) + σ(i + p_i·c(t−1))·tanh(g)
    y(t) = σ(o + p_o·c(t))·tanh(c(t))
    """
    new = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
    return sigmoid(o + p_o * new) * tanh(new), new


@cell(gates="f g o", states="c")
def coupled_lstm(f, g, o, c):
    """LSTM with coupled gates, i = 1 − f (Greff et al. 2017). Take the cell to save a quarter of an LSTM's weights.

    c(t) = σ(f)·c(t−1) + (1 − σ(f))·tanh(g)
    y(t) = σ(o)·tanh(c(t))
    """
    c = sigmoid(f) * c + (1 - sigmoid(f)) * tanh(g)
    return sigmoid(o) * tanh(c), c
