"""Independently recurrent units."""

from longlag.cells import cell, relu


@cell(gates="a", params={"u": 0.9}, dense=False)
def ind_rnn(a, y, u):
    """IndRNN (Li et al. 2018): units read their own output only. Take the cell for deep stacks.

    y(t) = relu(a + u·y(t−1))
    """
    return relu(a + u * y)
