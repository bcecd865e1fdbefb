"""The memory cell of 1997: a self-connection of weight 1, guarded by an input and an output gate."""

import functools

from longlag.cells import Cell, cell, sigmoid, tanh

SQUASH = {
    "4s-2": lambda a: 4 * sigmoid(a) - 2,  # the paper's g, range (−2, 2)
    "2s-1": lambda a: 2 * sigmoid(a) - 1,  # the paper's h, range (−1, 1)
    "logistic": sigmoid,
    "tanh": tanh,
    "identity": lambda a: a,
}


@functools.cache
def memory_cell(g: str = "4s-2", h: str = "2s-1", output_gate: bool = True) -> Cell:
    """Memory cell of LSTM-1997 with squashing functions g and h (keys of ``SQUASH``).

    i, o: net inputs of the block's input and output gate; a: net input of the cell; s: its internal state.

    s(t) = s(t−1) + σ(i)·g(a)
    y(t) = σ(o)·h(s(t))

    >>> memory_cell()
    Cell(memory_cell_: gates i a o, states s, local)
    """
    g_, h_ = SQUASH[g], SQUASH[h]
    # dense=False: the gates also read y(t−1), but the layer computes this product, since a block shares its gates.
    if not output_gate:

        @cell(gates="i a", states="s", dense=False)
        def memory_cell_open(i, a, s):
            s = s + sigmoid(i) * g_(a)
            return h_(s), s

        return memory_cell_open

    @cell(gates="i a o", states="s", dense=False)
    def memory_cell_(i, a, o, s):
        s = s + sigmoid(i) * g_(a)  # [LSTM-97 2 s]
        return sigmoid(o) * h_(s), s  # [LSTM-97 2 y]

    return memory_cell_
