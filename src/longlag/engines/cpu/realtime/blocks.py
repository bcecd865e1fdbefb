"""Memory of the rule "blocks": the layout of its arrays, as words that its kernels read. Loads no compiler.

Letters: a layer of H units with P fed-back parts q, the output first; s (S = P·H) its state; V entries: its gates, then
its params; w parameters. A sample keeps the last n ≤ N steps, and E = ∂s/∂θ as of the step before them, see `influence`.
"""

from __future__ import annotations

from typing import NamedTuple

from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime.network import Group

# sizes: inputs I, units H, parts P, entries V, capacity N, padded S, padded H, length of a row of sources; of the
# packed weights: tiles, sources D, ones, offsets of gates and params. carry: whether E is kept (1), or is always 0
(inputs, units, parts, entries, capacity, state_row, unit_row, source_row) = range(8)
(tiles, sources, ones, first_weight, first_param, carry) = range(8, 14)
# offsets of arrays in a sample's memory, in numbers; the first are three words of 8 bytes, see `STEPS`
(partials, folded, read, errors, E) = range(14, 19)
# offsets of arrays in the memory shared by all samples
(through, psi, left, strip, carried, rows, square) = range(19, 26)
# addresses: of the kernels of `influence`, and of the shared memory
(advance, collect, flush, shared) = range(26, 30)
ENTRIES = 30  # from here on the entries, each with the words below
# of which `position` is among the gates, or among the params
(first, width, reads_y, is_param, position, first_E, ENTRY) = range(7)
STEPS, SCORED, CARRIED = range(3)  # steps in the block, steps up to the last with an error, whether E is not 0
HEAD = 64  # bytes in front of a sample's arrays


class Layout(NamedTuple):
    """Words of a group, and numbers of memory: of a sample, and shared."""

    words: list[int]
    sample: int
    shared: int


def fed_back(group: Group) -> tuple[str, ...]:
    """The parts of the state, the output first."""
    return group.cell.fed_back


def layout(
    group: Group, I: int, D: int, offsets: tuple[int, int], capacity_: int, itemsize: int, carry_: bool
) -> Layout:
    """The layout of a group that reads x (I,) and its own last outputs.

    Args:
        D: rows of sources in the packed weights; offsets: of its gates and params in them.
        capacity_: N.
        carry_: whether influence from before the block is kept (RTRL), or not (back-propagation through the block).
    """
    cell, H, lanes = group.cell, group.units, VECTOR_BYTES // itemsize
    up = lambda n: -(-n // lanes) * lanes  # noqa: E731
    P, V = len(fed_back(group)), len(cell.gates) + len(cell.params)
    S, Hp = P * H, up(H)
    each, wide, size_E = [], 0, 0
    for name in (*cell.gates, *cell.params):
        x, y, param = name in cell.input_gates, name in cell.recurrent_gates, name in cell.params
        begin, end = 0 if x else I, I + 1 + (H if y else 0)
        where = (cell.params if param else cell.gates).index(name)
        each += [begin, up(end - begin), int(y), int(param), where, size_E]
        wide = max(wide, up(end - begin))
        size_E += H * up(end - begin) * S * carry_
    row = up(I + 1 + H + lanes)
    of_sample = [capacity_ * P * (V + P) * Hp, capacity_ * P * Hp * Hp, capacity_ * row]
    of_sample += [capacity_ * Hp, size_E]
    squared = S * up(S)
    common = [capacity_ * V * Hp, (capacity_ + 1) * squared * carry_, capacity_ * up(S), S * wide]
    common += [2 * P * Hp, lanes * wide, lanes * lanes]
    starts = [
        [begin + sum(sizes[:k]) for k in range(len(sizes) + 1)]
        for begin, sizes in ((HEAD // itemsize, of_sample), (0, common))
    ]
    words = [I, H, P, V, capacity_, up(S), Hp, row, Hp // lanes, D, group.ones, *offsets, int(carry_)]
    return Layout([*words, *starts[0][:-1], *starts[1][:-1], 0, 0, 0, 0, *each], up(starts[0][-1]), starts[1][-1])


def block_length(states: int) -> int:
    """Steps of a block: the end of a block costs O(S² w), a step of a long block more."""
    return 16 if states <= 64 else 32

