"""Tracing: a cell's function called with symbols, and messages for what is not in the language."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from longlag.cells import _derive
from longlag.cells._language import GRAMMAR, LANGUAGE, PUBLIC, functions

if TYPE_CHECKING:
    import sympy

    from longlag.cells._cell import Cell

# a function that users try -> what the language has
NEAREST = {
    "max": "maximum", "amax": "maximum", "fmax": "maximum", "min": "minimum", "amin": "minimum", "fmin": "minimum",
    "clamp": "minimum(maximum(x, low), high)", "clip": "minimum(maximum(x, low), high)",
    "fabs": "abs", "absolute": "abs", "Abs": "abs", "Max": "maximum", "Min": "minimum", "Piecewise": "where",
    "pow": "**", "power": "**", "square": "x**2", "rsqrt": "1/sqrt(x)", "reciprocal": "1/x",
    "log1p": "log(1 + x)", "expm1": "exp(x) - 1", "expit": "sigmoid", "logsigmoid": "-softplus(-x)",
    "logaddexp": "maximum(x, y) + softplus(-abs(x - y))", "tan": "sin(x)/cos(x)", "atan": "tanh or another sigmoid",
    "sinh": "(exp(x) - exp(-x))/2", "cosh": "(exp(x) + exp(-x))/2", "softsign": "x/(1 + abs(x))",
    "sign": "where(x > 0, 1, -1)", "heaviside": "where(x > 0, 1, 0), or spike for a surrogate derivative",
    "hardtanh": "minimum(maximum(x, -1), 1)", "leaky_relu": "where(x > 0, x, 0.01*x)",
    "elu": "where(x > 0, x, exp(x) - 1)", "stop_gradient": "detach", "float": "the argument itself",
    "matmul": "a gate, which is a matrix product", "mm": "a gate, which is a matrix product",
    "dot": "a gate, which is a matrix product", "linear": "a gate, which is a matrix product",
}  # fmt: skip
BRANCHES = "if, and, or, not and chained comparisons: use where(a > b, x, y)"


def trace(cell: Cell) -> tuple[sympy.Expr, ...]:
    """The cell's outputs as SymPy expressions."""
    import sympy

    returned = run(cell, lambda: cell.equations(**dict(zip(cell.inputs, map(_derive.symbol, cell.inputs)))))
    values = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    if len(values) != len(cell.outputs):
        wanted = ", ".join(("the output y", *(f"the new {s}" for s in cell.states)))
        raise ValueError(f"cell {cell.name}: must return {len(cell.outputs)} values ({wanted}), got {len(values)}")
    expressions = tuple(of_language(value) for value in values)
    for output, expression in zip(cell.outputs, expressions):
        check(cell, output, expression)
        if not expression.free_symbols:
            raise ValueError(f"cell {cell.name}: {output} must depend on an argument, got {sympy.sympify(expression)}")
    return expressions


def source(cell: Cell, gate: str, text: str) -> sympy.Expr:
    """What the row of a gate in U reads, as an expression."""
    from longlag import cells

    scope: dict[str, Any] = {name: getattr(cells, name) for name in PUBLIC}
    scope |= {name: _derive.symbol(name) for name in ("y", *cell.inputs)}
    what = f"gate {gate!r} must read x, y, a state or an expression of them, as in 'n:x+sigmoid(r)*y'"
    try:
        names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    except SyntaxError as error:
        raise ValueError(f"cell {cell.name}: {what}, got {text!r}") from error
    for name in sorted(names - scope.keys()):
        raise ValueError(f"cell {cell.name}: {what}; {name!r} in {text!r} is not declared")
    expression = of_language(run(cell, lambda: eval(text, {"__builtins__": {}}, scope)))
    check(cell, f"what gate {gate!r} reads", expression)
    return expression


def run(cell: Cell, function: Callable[[], Any]) -> Any:
    """The result of a function on symbols."""
    from sympy.core.parameters import distribute

    try:
        with distribute(False):  # tanh((u n + a)/2) is not expanded, so that its argument can be recognised
            return function()
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"cell {cell.name}: its equations must use only {GRAMMAR} on "
            f"{', '.join(cell.inputs)}; {_hint(error)}tracing them failed: {error}"
        ) from error


def of_language(value: Any) -> Any:
    """A traced value as an expression of the language: Python's ``abs`` makes SymPy's."""
    import sympy

    expression = sympy.sympify(value)
    return expression.replace(sympy.Abs, functions()["abs"]) if isinstance(expression, sympy.Expr) else expression


def check(cell: Cell, what: str, expression: sympy.Expr) -> None:
    """Refuse an expression that is not in the language."""
    import sympy

    known = tuple(functions()[name] for name in LANGUAGE)
    for node in sympy.preorder_traversal(expression):
        fine = node.is_Symbol or getattr(node, "is_Add", False) or getattr(node, "is_Mul", False)
        fine = fine or isinstance(node, known)
        fine = fine or (node.is_Number and node.is_finite) or (node.is_Pow and node.args[1].is_Number)
        if not fine:
            arguments = ", ".join(sorted(str(s) for s in node.free_symbols)) or "constants"
            kind = type(node).__name__
            hint = f"; {kind}: use {replacement(kind)}" if replacement(kind) else ""
            if isinstance(node, sympy.logic.boolalg.Boolean):
                hint = "; a comparison: use where(a > b, x, y)"
            raise TypeError(
                f"cell {cell.name}: {what} uses {node} on {arguments}, which is not differentiable or not "
                f"in the language of cells ({GRAMMAR}){hint}"
            )


def replacement(name: str) -> str:
    """What the language has in place of a function that users try, or nothing."""
    return f"longlag.cells.{name}" if name in PUBLIC else NEAREST.get(name, "")


def _hint(error: BaseException) -> str:
    """What to use in place of the operation that failed, from the text of that expression."""
    text, scope = next(_failed(error.__traceback__), ("", {}))
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        node = None
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.BinOp) and isinstance(called.op, ast.MatMult):
        return f"@: use {replacement('matmul')}; "
    if isinstance(called, ast.Attribute):
        owner = scope.get(getattr(called.value, "id", ""))
        ours = getattr(owner, "__name__", "").startswith("longlag")  # a function of ours, called wrongly
        name = "" if ours and called.attr in PUBLIC else called.attr
    else:
        name = getattr(called, "id", "")
        name = "" if name in PUBLIC else name
    if called is not None and replacement(name):
        return f"{ast.unparse(called)}: use {replacement(name)}; "
    return f"{BRANCHES}; " if "truth value" in str(error) else ""


def _failed(traceback: TracebackType | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The source text of the failing expression and its names, in the first frame outside longlag."""
    while traceback is not None:
        frame, code = traceback.tb_frame, traceback.tb_frame.f_code
        if not str(frame.f_globals.get("__name__", "")).startswith("longlag.cells._"):
            line, end, start, stop = list(code.co_positions())[traceback.tb_lasti // 2]
            if line is not None and line == end:
                # columns count bytes
                text = linecache.getline(code.co_filename, line).encode()[start:stop].decode(errors="ignore")
                yield text, frame.f_globals | frame.f_locals
        traceback = traceback.tb_next
