"""Units whose output is a function of their net input alone: Elman's, and the conventional net of 1997."""

from longlag.cells import cell, relu, sigmoid, tanh


@cell(gates="a")
def elman(a):
    """Elman unit (Elman 1990), a = W x(t) + U y(t−1) + b.

    y(t) = tanh(a)
    """
    return tanh(a)  # [ELMAN 1]


@cell(gates="a")
def elman_relu(a):
    """Elman unit with a rectifier, as in ``torch.nn.RNN(nonlinearity="relu")``.

    y(t) = relu(a)
    """
    return relu(a)


@cell(gates="a")
def rnn97(a):
    """Unit of the conventional fully recurrent net (Hochreiter and Schmidhuber 1997, section 3).

    y(t) = σ(a)
    """
    return sigmoid(a)  # [RNN-97 1]
