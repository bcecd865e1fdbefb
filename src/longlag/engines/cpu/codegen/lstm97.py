"""LSTM-1997 on the CPU engine: the time loop of any dense cell around units that are not all alike.

A row holds [hidden units; input gates; output gates; cells]. The memory cell's equations are those of
`longlag.cells.memory_cell`, printed; what is written here is how gates serve their block.
"""

from __future__ import annotations

from dataclasses import dataclass

from longlag.cells import Cell, memory_cell
from longlag.engines.cpu.codegen import generate
from longlag.engines.cpu.codegen.generate import LAYOUT, _function, _indent, _print

CELLS = ["cells = hid + blocks * (1 + gated)  # where the cells begin"]


@dataclass(frozen=True)
class Blocks:
    """What the engine wants to know of a cell, for units in blocks; ``layout`` is handed to the kernels."""

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
    inputs: tuple[str, ...] = ("a", "s")
    outputs: tuple[str, ...] = ("y", "s")
    fed_back: tuple[str, ...] = ("y", "s")
    reads_y: bool = False

    @property
    def recurrent_gates(self) -> tuple[str, ...]:
        return self.gates if self.dense else ()

    @property
    def key(self) -> str:
        """All of it in words; see `found`."""
        return " ".join(map(str, ("blocks", self.g, self.h, int(self.dense), *self.layout)))

    @classmethod
    def found(cls, key: str) -> Blocks:
        """The inverse of `key`."""
        _, g, h, dense, *layout = key.split()
        hidden, blocks, size, gated = map(int, layout)
        return cls(g, h, (hidden, blocks, size, gated), dense == "1")

    @property
    def code_key(self) -> str:
        """The same for all layouts: those are handed over in the table."""
        return repr((self.g, self.h, self.layout[3], self.dense))

    def writer(self, dtype: str) -> generate.Writer:
        """Writes the kernels."""
        return _Writer(self, memory_cell(self.g, self.h, bool(self.layout[3])), dtype)


class _Writer(generate.Writer):
    extra = LAYOUT
    sizes = ("S = blocks * per_block  # memory cells",)

    def __init__(self, shape: Blocks, inner: Cell, dtype: str) -> None:
        super().__init__(shape, dtype, norm=False)
        self.inner = inner

    def masked_rows(self) -> list[str]:
        return []

    def wide(self, state: str) -> str:
        return "H" if state == "y" else "S"

    def gate_loads(self) -> list[str]:
        gates = {"i": "i = a_a[hid + block]", "a": "a = a_a[cells + k]", "o": "o = a_a[hid + blocks + block]"}
        return [gates[g] for g in self.inner.gates] + ["s = s_row[k]"]

    def units(self) -> str:
        inner = self.inner
        lines = {**dict(zip(inner.new_states, inner.expressions[1:])), "y_new": inner.output}
        cell = [*self.gate_loads(), *_print(lines), "s_new_row[k] = s_new", "y_new_row[cells + k] = y_new"]
        gates = ["for unit in range(cells):", "    y_new_row[unit] = sigmoid(a_a[unit])"]
        rows = ["a_a", "s_row", "y_new_row", "s_new_row"]
        return _function("units", ["size", *rows, *LAYOUT], [*CELLS, *gates, *self.over_cells(cell)])

    def units_back(self) -> str:
        inner = self.inner
        sums = {"i": "d_a_row[hid + block]", "o": "d_a_row[hid + blocks + block]"}
        cell = [*self.gate_loads(), "s_new = s_new_row[k]", "d_y = dOut_row[cells + k] + d_y_row[cells + k]"]
        cell += ["d_s = d_s_row[k]", *_print(inner.adjoint), "d_s_row[k] = d_s_", "d_a_row[cells + k] = d_a_"]
        cell += [f"{sums[g]} += d_{g}_" for g in inner.gates if g in sums]
        body = [*CELLS, "for unit in range(cells):", "    y = y_new_row[unit]"]
        body += ["    d_a_row[unit] = (dOut_row[unit] + d_y_row[unit]) * y * (number(1) - y)", *self.over_cells(cell)]
        body += ["for unit in range(size):", "    d_y_row[unit] = number(0)"]
        rows = ["a_a", "s_row", "y_new_row", "s_new_row", "dOut_row", "d_y_row", "d_s_row", "d_a_row"]
        return _function("units_back", ["size", *rows, *LAYOUT], body)

    def over_cells(self, body: list[str]) -> list[str]:
        loop = ["for block in range(blocks):", "    for k in range(block * per_block, (block + 1) * per_block):"]
        return [*loop, *_indent(body, 2)]
