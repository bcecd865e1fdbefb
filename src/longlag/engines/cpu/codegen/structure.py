"""Compile-time constants of the time loops for a cell: counts and flags, no equations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


class Source(NamedTuple):
    """What some rows of U read, where that is not just y of the step before.

    Attributes:
        runs: those rows of U, in gates: (first, count) of every piece without a gap.
        gates: the places of these gates among all gates.
        late: whether it is formed from gates of its own step.
        targets: what it is formed from, as places in (gates, y, states, numbers, params), see `Structure.places`.
    """

    runs: tuple[tuple[int, int], ...]
    gates: tuple[int, ...]
    late: bool
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """Constants of the time loops.

    Attributes:
        gates: for every gate its row in W and its row in U, −1 where it has none.
        norm: whether net inputs are layer-normalised.
        fed_back: whether the next step reads y, through U or in the equations.
        reads_y: whether the equations, or what U reads, read y of the unit itself.
        numbers: how many numbers per step the equations read.
        uniform: whether a state has one number per unit (LSTM-1997's states have fewer).
        sources: what U reads, the late ones last; empty: y of the step before.
    """

    gates: tuple[tuple[int, int], ...]
    states: int
    params: int
    dense: bool
    norm: bool
    fed_back: bool
    reads_y: bool
    numbers: int
    uniform: bool
    sources: tuple[Source, ...] = ()

    @classmethod
    def of(cls, cell: Any, norm: bool, uniform: bool = True) -> Structure:
        """The structure of a cell, or of anything with a cell's attributes."""
        rows = [
            (
                cell.input_gates.index(gate) if gate in cell.input_gates else -1,
                cell.recurrent_gates.index(gate) if gate in cell.recurrent_gates else -1,
            )
            for gate in cell.gates
        ]
        counts = len(cell.states), len(cell.params)
        sources = sources_of(cell)
        reads_y = cell.reads_y or (bool(sources) and "y" in cell.fed_back)
        return cls(
            tuple(rows), *counts, cell.dense, norm, "y" in cell.fed_back, reads_y, len(cell.per_step), uniform, sources
        )

    @cached_property
    def input_gates(self) -> int:
        return sum(in_W >= 0 for in_W, _ in self.gates)

    @cached_property
    def recurrent_gates(self) -> int:
        return sum(in_U >= 0 for _, in_U in self.gates)

    @cached_property
    def separate(self) -> bool:
        """Whether U y has a separate array, because W and U feed different gates or U reads more than y."""
        return self.dense and (bool(self.sources) or any(in_W != in_U for in_W, in_U in self.gates))

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The rows of U, in gates, that are multiplied together: (first, count), in order."""
        return tuple(sorted(run for source in self.sources for run in source.runs)) or ((0, self.recurrent_gates),)

    @cached_property
    def both(self) -> tuple[tuple[int, int], ...]:
        """Rows in W and U of the gates that have both."""
        return tuple((in_W, in_U) for in_W, in_U in self.gates if in_W >= 0 and in_U >= 0)

    @cached_property
    def only_U(self) -> tuple[int, ...]:
        """Rows in U of the gates that have no row in W."""
        return tuple(in_U for in_W, in_U in self.gates if in_W < 0)

    @cached_property
    def masked(self) -> int:
        """Number of fed-back values that a mask multiplies: all of a local cell, else 0 (the input of U is masked)."""
        return 0 if self.dense or not self.uniform else self.fed_back + self.states

    # Scratch memory of a thread, in rows of H numbers: one of zeros, one for every masked value, those of the norm,
    # a bias for every gate in W. The norm has one row for a net input and three for every gate.
    @cached_property
    def norm_row(self) -> int:
        return 1 + self.masked

    @cached_property
    def bias_row(self) -> int:
        return self.norm_row + (1 + 3 * len(self.gates)) * self.norm

    @cached_property
    def spare_row(self) -> int:
        """A row for gradients of numbers that nobody wants."""
        return self.bias_row + self.input_gates

    @cached_property
    def scratch_rows(self) -> int:
        """All scratch rows; a thread also needs (H + tile width) numbers for each row of its products."""
        return self.spare_row + (self.numbers > 0)


def sources_of(cell: Any) -> tuple[Source, ...]:
    """The sources of a cell whose U reads more than y."""
    if getattr(cell, "reads_only_y", True):
        return ()
    names = (*cell.gates, "y", *cell.states, *cell.per_step, *cell.params)
    found = []
    for number, read in enumerate(cell.sources):
        gates = [gate for gate in cell.recurrent_gates if cell.source_of[gate] == number]
        rows = [cell.recurrent_gates.index(gate) for gate in gates]
        starts = [row for row in rows if row - 1 not in rows]
        runs = tuple((row, next(n for n in range(1, len(rows) + 1) if row + n not in rows)) for row in starts)
        targets = tuple(names.index(name) for name in sorted(map(str, read.free_symbols)))
        late = any(place < len(cell.gates) for place in targets)
        found.append(Source(runs, tuple(map(cell.gates.index, gates)), late, targets))
    return tuple(found)
