"""A cell whose gates read the unit's own output in place of U y."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longlag.cells._declaration import Gate

if TYPE_CHECKING:
    from longlag.cells._cell import Cell


@functools.cache
def diagonal(cell: Cell) -> Cell:
    """The cell with U replaced by a weight per unit and gate: u_a·y(t−1) in place of U y(t−1) in the gate a.

    A gate without a row in W has a bias too: u_m·y(t−1) + b_m. The new cell is local.

    >>> from longlag import cells
    >>> cells.diagonal(cells.elman)
    Cell(elman_diagonal: gates a, params u_a, local)
    """
    if not cell.dense or not cell.reads_only_y:
        why = "reads more than y" if cell.dense else "is local already"
        raise ValueError(f"cell {cell.name}: recurrent='diagonal' needs a cell whose U reads y, and this one {why}")
    loops = {gate: f"u_{gate}" for gate in cell.recurrent_gates}
    biases = {gate: f"b_{gate}" for gate in cell.recurrent_gates if gate not in cell.input_gates}
    given = [name for name in cell.inputs if name not in biases]
    own = [*dict.fromkeys([*given, "y", *loops.values(), *biases.values()])]

    def equations(**values: Any) -> Any:
        y, gates = values["y"], dict.fromkeys(biases, 0.0) | {g: values[g] for g in cell.gates if g not in biases}
        for gate, name in loops.items():
            gates[gate] = gates[gate] + values[name] * y + (values[biases[gate]] if gate in biases else 0)
        return cell.equations(**{name: gates.get(name, values.get(name)) for name in cell.inputs})

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own]
    equations.__name__, equations.__doc__, equations.__module__ = f"{cell.name}_diagonal", cell.__doc__, cell.__module__
    equations.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    declaration = replace(
        cell.declaration,
        owner=f"cell {equations.__name__}",
        gates=tuple(Gate(gate, True, None) for gate in cell.input_gates),
        params={**cell.declaration.params, **dict.fromkeys([*loops.values(), *biases.values()], 1.0)},
        dense=False,
    )
    declaration.check()
    made = type(cell)(equations, declaration)
    made.made_from = cell
    return made
