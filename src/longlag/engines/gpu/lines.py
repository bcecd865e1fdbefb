"""Text of kernels: lines with a depth, and the names that every kernel uses.

Names made from a cell's own names have the prefixes below. No other name of a kernel begins with one of them, so a cell
may call its values what it likes.

- ``param_``, ``number_``, ``first_``, ``work_``, ``all_``: pointers; ``at_param_``, ``at_number_``: those of gradients.
- ``a_`` net inputs, ``i_`` numbers of the step, ``p_`` params, ``v_`` values that are fed back, ``b_`` the same before
  the step, ``f_`` at the beginning, ``new_`` results of the step, ``r_`` products with U, ``was_`` values as loaded.
- ``da_``, ``di_``, ``dp_``, ``dv_``, ``db_``, ``back_``: gradients; ``sum_``: over time.
- In scans ``A_``, ``B_``, ``D_``, ``e_``.
"""

from __future__ import annotations

from longlag.cells import Cell
from longlag.engines.gpu.equations import Equations


class Lines:
    """Lines of code with a depth."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = 0

    def __call__(self, *lines: str) -> None:
        self.text += ["    " * self.depth + line for line in lines if line]

    def block(self, head: str) -> Lines:
        """Open a block; close it with ``depth -= 1``."""
        self(head)
        self.depth += 1
        return self

    def when(self, condition: str, *lines: str) -> None:
        """Lines under a condition."""
        if lines:
            self.block(f"if {condition}:")(*lines)
            self.depth -= 1


def kept_values(kind: str, cell: Cell) -> list[str]:
    """The arrays of states that a forward pass keeps: every step of the states, or of a scan some steps of all."""
    return [f"all_{v}" for v in (cell.fed_back if kind == "scan" else cell.states)]


def names(kind: str, e: Equations, norm: bool, which: str) -> list[str]:
    """The pointers that a kernel takes, in order: ``which`` is ``"forward"`` or ``"backward"``."""
    cell, dense, resident = e.cell, e.cell.dense, kind == "resident"
    fed, numbers = list(cell.fed_back), [f"number_{m}" for m in cell.per_step]
    found = ["lengths", "reset", "mask", *(f"param_{p}" for p in cell.params), *numbers]
    found += ["norm_weight", "norm_bias"] * norm + ["U"] * resident + ["rec"] * (kind == "stepwise")
    work, kept = [f"work_{v}" for v in fed], kept_values(kind, cell)
    if which == "forward":
        return [*found, "net", "bias", *["saved", "source"] * dense, *work, "out", *kept]
    found += ["saved", *work, "errors", *kept, "to_net"] + ["to_rec"] * (dense and not e.shared)
    if kind != "scan":  # a scan computes the states again
        found += ["out", *(f"first_{v}" for v in fed)]
    found += [f"at_param_{p}" for p in cell.params] + [f"at_number_{m}" for m in cell.per_step]
    return found + ["to_norm_weight", "to_norm_bias"] * norm
