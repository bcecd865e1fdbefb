"""sLSTM: exponential gates, kept in range by a stabiliser."""

from longlag.cells import cell, exp, maximum, sigmoid, softplus, tanh, where


@cell(gates="i f z o", states="c n m")
def slstm(i, f, z, o, c, n, m):
    """sLSTM (Beck et al. 2024, xLSTM), stabilised. Take the cell where a memory must be revised by later input.

    The input gate is e^i, the forget gate σ(f); both are divided by e^m, which leaves the output unchanged.

    l = m(t−1) − softplus(−f)
    m(t) = where(n(t−1) > 0, maximum(l, i), i)
    c(t) = exp(l − m(t))·c(t−1) + exp(i − m(t))·tanh(z)
    n(t) = exp(l − m(t))·n(t−1) + exp(i − m(t))
    y(t) = σ(o)·c(t)/n(t)
    """
    kept = m - softplus(-f)  # log of the forget gate, times e^m of the step before
    m = where(n > 0, maximum(kept, i), i)
    c = exp(kept - m) * c + exp(i - m) * tanh(z)
    n = exp(kept - m) * n + exp(i - m)
    return sigmoid(o) * c / n, c, n, m
