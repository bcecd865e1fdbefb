"""Derived from a cell's equations: derivatives, assignments, code on tensors."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from longlag.cells._assignments import Assignments
from longlag.cells._language import LANGUAGE
from longlag.cells._printer import TORCH
from longlag.cells._rewrite import guarded, without_marks

if TYPE_CHECKING:
    import sympy

    from longlag.cells._cell import Cell

FORMS = ("step", "step_back", "adjoint", "partials")  # see `Cell.assignments`


def symbol(name: str) -> sympy.Symbol:
    """The symbol of an argument or a result of a cell."""
    import sympy

    return sympy.Symbol(name, real=True)


def jacobian(cell: Cell) -> dict[tuple[str, str], sympy.Expr]:
    """See `Cell.jacobian`."""
    import sympy

    entries = {
        (output, name): sympy.diff(expression, symbol(name))
        for output, expression in zip(cell.outputs, cell.expressions)
        for name in cell.inputs
    }
    return {key: value for key, value in entries.items() if value != 0}


def output(cell: Cell) -> Any:
    """See `Cell.output`."""
    new = {e: symbol(f"{s}_new") for s, e in zip(cell.states, cell.expressions[1:]) if e.args}
    return cell.expressions[0].xreplace(new)


def adjoint(cell: Cell) -> dict[str, sympy.Expr]:
    """See `Cell.adjoint`."""
    import sympy

    d_y, new = symbol("d_y"), dict(zip(cell.states, cell.expressions[1:]))
    lines = {f"D_{s}": symbol(f"d_{s}") + d_y * sympy.diff(cell.output, symbol(f"{s}_new")) for s in new}
    for name in cell.inputs:
        v = symbol(name)
        through_states = [symbol(f"D_{s}") * sympy.diff(e, v) for s, e in new.items()]
        lines[f"d_{name}_"] = d_y * sympy.diff(cell.output, v) + sympy.Add(*through_states)
    return lines


def derive(cell: Cell, which: str, rows: tuple[str, ...] | None = None, guard: bool = False) -> Assignments:
    """See `Cell.assignments`; ``"step_and_partials"`` has the partials of the outputs in ``rows``.

    Args:
        guard: for code that autograd differentiates, with spikes and `guarded` choices; else values only.
    """
    finish = guarded if guard else without_marks
    form = _derived(cell, which, rows)
    return Assignments.of(which, cell.name, form[0], {name: finish(e) for name, e in form[1].items()}, form[2])


def _derived(cell: Cell, which: str, rows: tuple[str, ...] | None) -> tuple[list[str], dict[str, Any], list[str]]:
    """Inputs, expressions and outputs of a form."""
    inputs, new_states = list(cell.inputs), dict(zip(cell.new_states, cell.expressions[1:]))
    new, incoming = ["y_new", *cell.new_states], [f"d_{o}" for o in cell.outputs]
    gradients, step = [f"d_{name}_" for name in cell.inputs], {"y_new": cell.output, **new_states}
    if which == "step":
        return inputs, step, new
    if which == "step_back":
        return inputs + incoming, {**new_states, **cell.adjoint}, gradients
    if which == "adjoint":
        known = {cell.output: symbol("y_new")} if cell.output.args else {}
        wanted = {name: value.xreplace(known) for name, value in cell.adjoint.items()}
        return inputs + new + incoming, wanted, gradients
    partials = {f"d_{o}_d_{name}": e for (o, name), e in cell.jacobian.items() if rows is None or o in rows}
    if which == "partials":
        return inputs, partials, list(partials)
    return inputs, step | partials, new + list(partials)


def compiled(form: Assignments, key: str) -> Callable[..., Any]:
    """The function on tensors."""
    source = _with_comment(form)
    filename = f"<longlag cell {form.owner}.{form.name} {key}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for tracebacks
    scope = {name: function.torch for name, function in LANGUAGE.items()}
    derived: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), scope, derived)
    return derived[form.name]


def reading(cell: Cell, expression: Any) -> Callable[..., Any]:
    """``f(**values)``: a source of U from all named values of a step, on tensors."""
    names = sorted(map(str, expression.free_symbols))
    form = Assignments.of("reads", cell.name, names, {"read": guarded(expression)}, ["read"])
    function = compiled(form, cell.key)
    return lambda **values: function(*(values[name] for name in names))[0]


def torch_source(cell: Cell) -> str:
    """The code of the reference engine, as text."""
    return "\n\n".join(_with_comment(derive(cell, which, guard=True)) for which in ("step", "step_back", "partials"))


def _with_comment(form: Assignments) -> str:
    return TORCH.function(form, f"{form.owner}, derived from its equations.")
