"""LSTM-1997 on the CPU engine: the time loops of any dense cell around units that are not all alike.

A row holds [hidden units; input gates; output gates; cells]. The memory cell's equations are those of
`longlag.cells.memory_cell`, printed like those of any cell; how the cells of a block share gates is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longlag.cells import Cell, memory_cell
from longlag.engines.cpu.codegen import generate
from longlag.engines.cpu.codegen.structure import Structure


@dataclass(frozen=True)
class Blocks:
    """The attributes of a cell that the engine reads, for units in blocks; ``layout`` is passed to the kernels."""

    g: str
    h: str
    layout: tuple[int, int, int, int]  # hidden units, blocks, cells per block, whether there are output gates
    dense: bool
    name: str = "lstm97"
    gates: tuple[str, ...] = ("a",)
    input_gates: tuple[str, ...] = ("a",)
    states: tuple[str, ...] = ("s",)
    new_states: tuple[str, ...] = ("s_new",)
    params: tuple[str, ...] = ()
    per_step: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("a", "s")
    outputs: tuple[str, ...] = ("y", "s")
    fed_back: tuple[str, ...] = ("y", "s")
    reads_y: bool = False

    @property
    def recurrent_gates(self) -> tuple[str, ...]:
        return self.gates if self.dense else ()

    @property
    def key(self) -> str:
        """All attributes as a string; see `found`."""
        return " ".join(map(str, ("blocks", self.g, self.h, int(self.dense), *self.layout)))

    @classmethod
    def found(cls, key: str) -> Blocks:
        """The inverse of `key`."""
        _, g, h, dense, *layout = key.split()
        hidden, blocks, size, gated = map(int, layout)
        return cls(g, h, (hidden, blocks, size, gated), dense == "1")

    @property
    def code_key(self) -> str:
        """The same for all layouts, which are passed in the table."""
        return repr((self.g, self.h, self.layout[3], self.dense))

    @property
    def memory_cell(self) -> Cell:
        """The equations of a memory cell."""
        return memory_cell(self.g, self.h, bool(self.layout[3]))

    def structure(self, norm: bool) -> Structure:
        """For the time loops."""
        return Structure.of(self, norm, uniform=False)

    def kernel(self, dtype: str, part: str) -> tuple[str, Callable[..., None]]:
        """See `generate.kernel`."""
        import numpy as np

        from longlag.engines.cpu.codegen import backward, forward, lstm97_rows  # these load Numba

        inner, number = self.memory_cell, getattr(np, dtype)
        text = generate.source(inner, dtype, norm=False)
        scope = generate.executed(text, f"<longlag {self.name}>")
        gated = bool(self.layout[3])
        if part == "forward":
            units = lstm97_rows.units_for(scope["unit"], gated)
            return text, forward.forward(self.structure(False), units, number)
        units = lstm97_rows.units_back_for(scope["unit_back"], gated, number)
        return text, backward.backward(self.structure(False), units, number)
