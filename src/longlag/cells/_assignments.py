"""The intermediate form of a cell, from which every engine prints its code: assignments, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Expression = Any  # sympy.Expr, whose annotations are too general


@dataclass(frozen=True)
class Assignments:
    """A function as a list of assignments.

    Attributes:
        name: of the function.
        owner: the cell it belongs to, for messages.
        inputs: names of the arguments.
        lines: (name, SymPy expression), in an order in which every name is assigned before it is read.
        outputs: names of the results.
    """

    name: str
    owner: str
    inputs: tuple[str, ...]
    lines: tuple[tuple[str, Expression], ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, owner: str, inputs: Sequence[str], wanted: Mapping[str, Expression], outputs: Sequence[str]
    ) -> Assignments:
        """Assignments that compute ``wanted``, every common subexpression once, under a name ``_0``, ``_1``, ….

        An expression may refer to another wanted expression by its name.
        """
        import sympy

        shared, results = sympy.cse(list(wanted.values()), symbols=sympy.numbered_symbols("_"), order="none")
        pending: dict[str, Expression] = {str(symbol): value for symbol, value in shared}
        pending |= dict(zip(wanted, results, strict=True))
        lines = []
        while pending:
            ready = next(
                name
                for name, value in pending.items()
                if not any(str(symbol) in pending and str(symbol) != name for symbol in value.free_symbols)
            )
            lines.append((ready, pending.pop(ready)))
        return cls(name, owner, tuple(inputs), tuple(lines), tuple(outputs))
