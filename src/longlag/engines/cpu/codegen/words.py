"""The table of a kernel: one 64-bit word per size, address or option, at the same place for every cell.

The constants are indices into the table; the runtime finds them by name through `names`. A word is an address unless
its comment says otherwise; address 0 means that the tensor is not given. Shapes: x (T, B, I); a (T, B, Gx, H), the net
inputs W x + b, with U y added where W and U feed the same gates; rec (T, B, Gy, H), U y where they do not; states
(T, B, S) and outputs (T, B, H); initial and final ones without T. Gx and Gy: gates with a row in W, in U.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# sizes and options: S, numbers per row of a state; scratch_size, numbers of scratch memory per thread
(T, B, I, H, S, chunk, reverse, stage, save, scratch_size) = range(10)
# kernels shared by all cells
(multiply, pack, multiply_U, pack_U, outer_W, tiles_W, outer_U, tiles_U) = range(10, 18)
# two blocks of memory, one kept for the backward pass and one for the call, and byte offsets of arrays in them
(kept, memory, a, rec, source, PW, PU, scratch, outer_scratch, dA, dRec, d_y_own) = range(18, 30)
# tensors given; eps: the bits of a float64
(x, W, U, b_x, bias_hh, gamma, beta, eps, mask, lengths, reset, y_0, dOut, d_y_end) = range(30, 44)
# tensors computed
(out, y_end, dx, dW, db, dbias_hh, dU, dGamma, dBeta, d_y_0) = range(44, 54)
# sizes of LSTM-1997's blocks, see `lstm97`
(hidden_units, blocks, cells_per_block, output_gates) = range(54, 58)
heads = 58  # number of blocks on the diagonal of U for every gate, if only these are read; else 0

COMMON = tuple(name for name, value in list(globals().items()) if isinstance(value, int))
LAYOUT = COMMON[hidden_units:heads]

PACK, ROWS, SUM_W, SUM_U = 1, 2, 4, 8  # bits of ``stage``: which parts of a kernel run


class Sections(NamedTuple):
    """Where the words of states and params begin; there is one for every state or param."""

    initial: int
    final: int
    values: int  # at all time steps; byte offsets in the block that is kept
    d_final: int
    d_own: int  # byte offsets
    d_initial: int
    params: int
    d_params: int  # for every sequence
    numbers: int  # per step
    d_numbers: int
    packed: int  # matrices of a cell whose U reads more than y, one per run; byte offsets


def sections(states: int, params: int, numbers: int = 0) -> Sections:
    """The sections of a table for a cell with so many states, params and numbers per step."""
    first = len(COMMON)
    starts = [first + k * states for k in range(7)]
    after = starts[-1] + 2 * params
    return Sections._make([*starts, starts[-1] + params, after, after + numbers, after + 2 * numbers])


def names(cell: Any, runs: int) -> list[str]:
    """Names of all words in the table of a cell, in order; ``runs``: of the rows of U, if U reads more than y."""
    of_states = ["{}_0", "{}_end", "{}_all", "d_{}_end", "d_{}_own", "d_{}_0"]
    states = [name.format(s) for name in of_states for s in cell.states]
    params = [*(f"{p}_all" for p in cell.params), *(f"d_{p}_sum" for p in cell.params)]
    numbers = [*(f"{m}_t" for m in cell.per_step), *(f"d_{m}_t" for m in cell.per_step)]
    return [*COMMON, *states, *params, *numbers, *(f"PU_{k}" for k in range(runs))]
