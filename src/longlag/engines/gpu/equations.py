"""A cell printed as Triton functions, and what the kernels need to know about the cell."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from longlag.cells import Assignments, Cell, Printer, without_marks

# functions of the language of cells that `functions` has, under the same name with an underscore; others are refused
KNOWN = "above abs cos erf exp log maximum minimum relu sigmoid sign sin softplus sqrt step tanh"
FUNCTIONS = {name: f"_{name}" for name in (*KNOWN.split(), "where_at_least", "where_greater")}
HELPERS = ("_square", "_cube", "_power", "_affine", "_affine_before")

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


class Gate(NamedTuple):
    """A net input: its place among the gates, its row in W and its row in U, −1 where it has none."""

    name: str
    place: int
    in_W: int
    in_U: int


class Source(NamedTuple):
    """What some rows of U read.

    ``names`` are the values of a step that form the source by the function ``form``; its adjoint is ``back``. A source
    that is y(t−1) or a state itself is ``plain`` and has no functions. A ``late`` source reads gates of its own step.
    """

    number: int
    gates: tuple[Gate, ...]
    names: tuple[str, ...]
    plain: bool
    late: bool
    forms: tuple[Assignments, ...]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The rows of U that read the source, as pieces start:stop without a gap."""
        rows = sorted(gate.in_U for gate in self.gates)
        starts = [row for row in rows if row - 1 not in rows]
        return [(start, next(row + 1 for row in rows if row >= start and row + 1 not in rows)) for start in starts]


class Equations:
    """A cell as the kernels see it.

    Attributes:
        cell: the cell.
        gates: its net inputs.
        only_U: rows in U of the gates that have no row in W.
        shared: whether W and U feed the same gates, so that one array holds the gradients of both products.
        sources: what U reads: first what a step has at its beginning, then what is formed from gates of the step.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        places = [{name: row for row, name in enumerate(names)} for names in (cell.input_gates, cell.recurrent_gates)]
        self.gates = [Gate(name, k, *(rows.get(name, -1) for rows in places)) for k, name in enumerate(cell.gates)]
        self.only_U = [gate.in_U for gate in self.gates if gate.in_W < 0]
        self.shared = cell.dense and cell.input_gates == cell.recurrent_gates
        self.sources = [self._source(k, read) for k, read in enumerate(cell.sources)]

    def _source(self, number: int, read: Any) -> Source:
        import sympy

        names = tuple(sorted(map(str, read.free_symbols)))
        symbols, received = [sympy.Symbol(name, real=True) for name in names], sympy.Symbol("d_read", real=True)
        slopes = {f"d_{symbol}_": received * sympy.diff(read, symbol) for symbol in symbols}
        owner, values = self.cell.name, {name: without_marks(value) for name, value in slopes.items()}
        forms = (
            Assignments.of("reads", owner, names, {"read": without_marks(read)}, ["read"]),
            Assignments.of("reads_back", owner, (*names, "d_read"), values, list(values)),
        )
        gates = tuple(gate for gate in self.gates if self.cell.source_of.get(gate.name) == number)
        late = bool({gate.name for gate in self.gates}.intersection(names))
        return Source(number, gates, names, bool(read.is_Symbol), late, forms)

    @property
    def late(self) -> list[Source]:
        """The sources that are formed from gates of the step."""
        return [source for source in self.sources if source.late]

    @property
    def values(self) -> set[str]:
        """The values of the step before that a step or the sources of U compute with."""
        formed = {name for source in self.sources if not source.plain for name in source.names}
        read = {*self.cell.states, *(["y"] if self.cell.reads_y else []), *formed}
        return read.intersection(self.cell.fed_back)

    @cached_property
    def step(self) -> str:
        """The step and its vector-Jacobian product; the same of the sources of U that are formed."""
        texts = [function(self.cell.assignments(form)) for form in ("step", "step_back")]
        for source in self.sources:
            if not source.plain:
                texts += [function(form, f"{form.name}_{source.number}") for form in source.forms]
        return "\n\n".join(texts)

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
    """v(t) = A v(t−1) + B for every fed-back value v; A and B depend on the gates, the step's numbers and params alone.

    The functions are Triton's: ``coefficients`` gives A and B of every value, ``slopes`` ∂y/∂v(t) of every value,
    ``output`` y, all from the gates, the values after the step, the numbers of the step and the params.
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
    given = [*cell.gates, *cell.per_step, *cell.params]
    seen = [*cell.gates, *map(str, after.values()), *cell.per_step, *cell.params]
    forms = {"coefficients": (given, wanted), "slopes": (seen, slopes), "output": (seen, {"y_out": own})}
    texts = []
    for name, (inputs, results) in forms.items():
        values = {result: without_marks(value) for result, value in results.items()}
        texts.append(function(Assignments.of(name, cell.name, inputs, values, list(values))))
    return Linear(*texts)
