"""A cell printed as Triton functions, and what the kernels need to know about the cell."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from longlag.cells import Assignments, Cell, Printer

# functions of the language of cells that `functions` has, under the same name with an underscore; others are refused
KNOWN = "above abs cos erf exp log maximum minimum relu sigmoid sign sin softplus sqrt step tanh"
FUNCTIONS = {name: f"_{name}" for name in (*KNOWN.split(), "where_at_least", "where_greater")}
HELPERS = ("_square", "_cube", "_power", "_affine")

TRITON = Printer(
    "engine 'gpu'",
    FUNCTIONS,
    power="_power({}, {})",
    powers={2: "_square({})", 3: "_cube({})"},
    hint="; engine='reference' can",
)


def function(form: Assignments, name: str = "") -> str:
    """A Triton function that returns its results as a tuple, or the one result."""
    body = [*TRITON.lines(form), f"return {', '.join(form.outputs)}"]
    head = ["@triton.jit", f"def {name or form.name}({', '.join(form.inputs)}):"]
    return "\n".join([*head, *(f"    {line}" for line in body), ""])


class Equations:
    """A cell as the kernels see it.

    Attributes:
        cell: the cell.
        gates: for every gate its name, its row in W and its row in U, −1 where it has none.
        only_U: rows in U of the gates that have no row in W.
        shared: whether W and U feed the same gates, so that one array holds the gradients of both products.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.gates = [
            (
                gate,
                cell.input_gates.index(gate) if gate in cell.input_gates else -1,
                cell.recurrent_gates.index(gate) if gate in cell.recurrent_gates else -1,
            )
            for gate in cell.gates
        ]
        self.only_U = [in_U for _, in_W, in_U in self.gates if in_W < 0]
        self.shared = cell.dense and cell.input_gates == cell.recurrent_gates

    @cached_property
    def step(self) -> str:
        """The step and its vector-Jacobian product."""
        forms = {"step": "step", "step_back": "step_back"}
        return "\n\n".join(function(self.cell.assignments(form), name) for form, name in forms.items())

    @cached_property
    def linear(self) -> Linear | None:
        """How the state moves if it moves linearly; None otherwise, and for a cell with a matrix U."""
        return linear_parts(self.cell)


def equations(cell: Cell) -> Equations:
    """The equations of a cell, derived once."""
    if "gpu" not in cell.engine_memory:
        cell.engine_memory["gpu"] = Equations(cell)
    return cell.engine_memory["gpu"]


class Linear(NamedTuple):
    """v(t) = A v(t−1) + B for every fed-back value v, A and B functions of the gates and params alone.

    The functions are Triton's: ``coefficients`` gives A and B of every value, ``slopes`` ∂y/∂v(t) of every value,
    ``output`` y, all from the gates, the values after the step and the params.
    """

    coefficients: str
    slopes: str
    output: str


def linear_parts(cell: Cell) -> Linear | None:
    """See `Equations.linear`; decided from the derivatives of the cell's expressions."""
    import sympy

    if cell.dense or not cell.fed_back:
        return None
    past = [sympy.Symbol(name, real=True) for name in cell.fed_back]
    new = dict(zip(cell.outputs, cell.expressions))
    wanted: dict[str, Any] = {}
    for name, symbol in zip(cell.fed_back, past):
        gain = cell.jacobian.get((name, name), sympy.Integer(0))
        others = [cell.jacobian.get((name, other), 0) for other in cell.fed_back if other != name]
        inside = set().union(*(applied.free_symbols for applied in new[name].atoms(sympy.Function)))
        if (gain.free_symbols | inside) & set(past) or any(other != 0 for other in others):
            return None
        wanted |= {f"A_{name}": gain, f"B_{name}": new[name].subs(symbol, 0)}
    own = cell.output if "y" not in cell.fed_back else sympy.Symbol("y_new", real=True)
    if own.free_symbols & set(past):
        return None
    after = {name: sympy.Symbol(f"{name}_new", real=True) for name in cell.fed_back}
    slopes = {f"e_{name}": sympy.diff(own, symbol) for name, symbol in after.items()}
    given = [*cell.gates, *cell.params]
    seen = [*cell.gates, *map(str, after.values()), *cell.params]
    forms = (
        Assignments.of("coefficients", cell.name, given, wanted, list(wanted)),
        Assignments.of("slopes", cell.name, seen, slopes, list(slopes)),
        Assignments.of("output", cell.name, seen, {"y_out": own}, ["y_out"]),
    )
    return Linear(*map(function, forms))
