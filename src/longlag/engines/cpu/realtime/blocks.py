"""Memory of the rule "rtrl": where everything lies, as words that their kernels read. Loads no compiler.

Letters: a group of H units with P fed-back parts q, the output first; s (S = P·H) its state; V entries: its gates, then
its params. A sample keeps the last n ≤ N steps, and E = ∂s/∂θ as of the step before them; see `influence`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.engines import _private
from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime.network import Group, Network
from longlag.engines.cpu.realtime.words import Sizes

RULE, CAPACITY = "rtrl", 32  # its name; N
# sizes: inputs I, units H, parts P, entries V, capacity N, padded S, padded H, length of a row of sources; of the
# packed weights: tiles, sources D, ones, offsets of gates and params
(inputs, units, parts, entries, capacity, state_row, unit_row, source_row) = range(8)
(tiles, sources, ones, first_weight, first_param) = range(8, 13)
# offsets of arrays in a sample's memory, in numbers, behind three words of 8 bytes, see `STEPS`
(partials, folded, read, errors, E) = range(13, 18)
# offsets of arrays in the memory shared by all samples
(through, psi, left, strip, carried, rows, square) = range(18, 25)
# addresses: of the kernels of `influence`, and of the shared memory
(advance, collect, flush, shared) = range(25, 29)
ENTRIES = 29  # from here on the entries, each with the words below; `position` is among the gates, or among the params
(first, width, reads_y, is_param, position, first_E, ENTRY) = range(7)
STEPS, SCORED, CARRIED = range(3)  # steps in the block, steps up to the last with an error, whether E is not 0
HEAD = 64  # bytes in front of a sample's arrays


class Layout(NamedTuple):
    """Words of a group, and numbers of memory: of a sample, and shared."""

    words: list[int]
    sample: int
    shared: int


def layout(group: Group, I: int, itemsize: int, D: int = 0, offsets: tuple[int, int] = (0, 0)) -> Layout:
    """The layout of a group that reads x (I,) and its own last outputs.

    Args:
        D: sources of a gate in the packed weights; offsets: of the group's gates and params there.
    """
    cell, H, lanes, N = group.cell, group.units, VECTOR_BYTES // itemsize, CAPACITY
    up = lambda n: -(-n // lanes) * lanes  # noqa: E731
    P, V = len(cell.fed_back), len(cell.gates) + len(cell.params)
    S, Hp = P * H, up(H)
    each, wide, size_E = [], 0, 0
    for name in (*cell.gates, *cell.params):
        x, y, param = name in cell.input_gates, name in cell.recurrent_gates, name in cell.params
        begin, end = 0 if x else I, I + 1 + (H if y else 0)
        where = (cell.params if param else cell.gates).index(name)
        each += [begin, up(end - begin), int(y), int(param), where, size_E]
        wide = max(wide, up(end - begin))
        size_E += H * up(end - begin) * S
    row = up(I + 1 + H + lanes)
    sample = [N * P * (V + P) * Hp, N * P * Hp * Hp, N * row, N * Hp, size_E]
    common = [N * V * Hp, (N + 1) * S * up(S), N * up(S), S * wide]
    common += [2 * P * Hp, lanes * wide, lanes * lanes]
    of_sample, of_all = _starts(HEAD // itemsize, sample), _starts(0, common)
    head = [I, H, P, V, N, up(S), Hp, row, Hp // lanes, D, group.ones, *offsets]
    return Layout([*head, *of_sample[:-1], *of_all[:-1], 0, 0, 0, 0, *each], up(of_sample[-1]), of_all[-1])


def _starts(first: int, sizes: list[int]) -> list[int]:
    return [first + sum(sizes[:k]) for k in range(len(sizes) + 1)]


class Blocks:
    """The group of a network whose rule is `RULE`, and its kernels."""

    def __init__(self, network: Network, k: int, z: Sizes) -> None:
        self.k, self.group, self.E, dtype = k, network.groups[k], z.E, getattr(torch, network.dtype)
        found = layout(network.groups[k], network.inputs, dtype.itemsize, z.D, (z.W, z.P))
        self.layout, self.memory = found, torch.zeros(found.shared, dtype=dtype)
        self.words = torch.tensor(found.words)
        self._collect, self._flush = (kernel(name, network.dtype) for name in ("collect", "flush"))
        addresses = [kernel(name, network.dtype) for name in ("advance", "collect", "flush")]
        self.words[advance : shared + 1] = torch.tensor([*addresses, self.memory.data_ptr()])

    def settle(self, samples: Tensor, gradient: Tensor) -> None:
        """The errors of all steps so far become gradients, and E is that of the last step."""
        for sample in samples:
            at = sample[self.E :].data_ptr()
            _call(self._collect)(self.words.data_ptr(), at, gradient.data_ptr(), self.memory.data_ptr())
            _call(self._flush)(self.words.data_ptr(), at, 0, self.memory.data_ptr())

    def influence(self, samples: Tensor, name: str, sources: slice) -> Tensor:
        """∂s/∂(weights of a gate or param from some of the sources [x, 1, y]), (B, S, H, width)."""
        w, names = self.layout.words, (*self.group.cell.gates, *self.group.cell.params)
        entry = ENTRIES + ENTRY * names.index(name)
        H, S, wide, begin = w[units], w[units] * w[parts], w[entry + width], w[entry + first]
        start = self.E + w[E] + w[entry + first_E]
        found = samples[:, start : start + H * S * wide].view(-1, H, S, wide).transpose(1, 2)
        return found[..., sources.start - begin : sources.stop - begin]

    def begin(self, samples: Tensor, met: bool) -> None:
        """No steps yet; ``met``: whether E, as it was written, is not 0."""
        for sample in samples:
            head = sample[self.E : self.E + self.layout.words[partials]].view(torch.int64)
            head[STEPS], head[SCORED], head[CARRIED] = 0, 0, int(met)


def blocks_of(network: Network, sizes: list[Sizes]) -> Blocks | None:
    """The blocks of a network, if a group has this rule; more than one such group is an error."""
    found = [k for k, group in enumerate(network.groups) if group.rule == RULE]
    if len(found) > 1:
        raise ValueError(f"engine 'cpu': rule {RULE!r} serves one group of units, got {len(found)}")
    return Blocks(network, found[0], sizes[found[0]]) if found else None


@functools.cache
def kernel(name: str, dtype: str) -> int:
    """The address of a kernel of `influence`; all cells share them."""

    def build() -> tuple[str, bytes]:
        from longlag.engines.cpu.realtime import influence  # loads Numba

        return influence.build(name, dtype)

    return machine.load(f"influence_{dtype}", machine.fingerprint(Path(__file__).parent), name, build)


@functools.cache
def _call(address: int) -> Callable[..., Any]:
    return _private.callable_kernel(address, 4)
