"""Cells as JavaScript modules: the step and its derivatives, for arrays of units."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from longlag.cells import _derive
from longlag.cells._assignments import Assignments
from longlag.cells._printer import Printer
from longlag.cells._rewrite import without_marks

if TYPE_CHECKING:
    from longlag.cells._cell import Cell

# the language of cells, as far as values and derivatives without marks name it
DEFINITIONS = {
    "sigmoid": "(x) => 1 / (1 + Math.exp(-x))",
    "tanh": "Math.tanh",
    "relu": "(x) => Math.max(x, 0)",
    "exp": "Math.exp",
    "log": "Math.log",
    "sqrt": "Math.sqrt",
    "softplus": "(x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)))",
    "abs": "Math.abs",
    "maximum": "Math.max",
    "minimum": "Math.min",
    "sin": "Math.sin",
    "cos": "Math.cos",
    # 2/√π e^(−x²) Σ 2ⁿ x^(2n+1)/(2n + 1)!!: all terms have one sign, so that nothing cancels; erf(6) = 1 − 2e-17
    "erf": "(x) => { if (!(Math.abs(x) < 6)) return Math.sign(x); let term = x, sum = x; "
    "for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= 2 * x * x / (2 * n + 1); "
    "return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum; }",
    "step": "(x) => x > 0 ? 1 : 0",
    "sign": "Math.sign",
    "above": "(x, y) => x > y ? 1 : x === y ? 0.5 : 0",
    "where_greater": "(a, b, x, y) => a > b ? x : y",
    "where_at_least": "(a, b, x, y) => a >= b ? x : y",
}
# words that Python allows as names and JavaScript does not
RESERVED = re.compile(
    r"arguments|await|case|catch|const|debugger|default|delete|do|enum|eval|export|extends|false|"
    r"function|implements|instanceof|interface|let|new|null|package|private|protected|public|static|"
    r"super|switch|this|throw|true|typeof|var|void|yield"
)
JAVASCRIPT = Printer("JavaScript", {name: f"${name}" for name in DEFINITIONS}, line="const {} = {};")


def source(cell: Cell) -> str:
    """An ES module.

    ``cell`` describes the cell. ``step``, ``partials`` and ``adjoint`` are the forms of `Cell.assignments`, and
    ``source_0``, … form what U reads (``read``) and its partials. All are called as ``f(n, given, found)``: n units,
    arrays of the inputs and arrays of the results by name. Own names contain ``$``, which no name in Python does.
    """
    forms = [cell.assignments(which) for which in ("step", "partials", "adjoint")] + _sources(cell)
    functions = [_function(form) for form in forms]
    used = [name for name in DEFINITIONS if any(f"${name}(" in text for text in functions)]
    lines = [f"// {cell.name}, derived from its equations."]
    lines += [f"const ${name} = {DEFINITIONS[name]};" for name in used]
    lines += [f"export const cell = {json.dumps(description(cell), ensure_ascii=False)};"]
    return "\n".join([*lines, *functions, ""])


def description(cell: Cell) -> dict[str, Any]:
    """What a program needs to know to call a cell's functions, as plain data."""
    reads = [
        {"gates": [gate for gate, k in cell.source_of.items() if k == index], "names": form.inputs}
        for index, form in enumerate(_sources(cell))
    ]
    doc = inspect.getdoc(cell) or ""
    return {
        "name": cell.name,
        "about": doc.partition("\n\n")[0].replace("\n", " "),
        "equations": [line for line in doc.splitlines() if re.match(r"\w+(\(t\))? = ", line)],
        "gates": cell.gates,
        "input_gates": cell.input_gates,
        "states": cell.states,
        "fed_back": cell.fed_back,
        "per_step": cell.per_step,
        "noise": cell.noise,
        "params": cell.initial_params,
        "fixed": cell.fixed,
        "dense": cell.dense,
        "inputs": cell.inputs,
        "sources": reads,
        "partials": list(cell.jacobian),
        "memories": _memories(cell),
        "surrogates": cell.surrogates,
    }


def _memories(cell: Cell) -> list[str]:
    """What a unit keeps a known part of: v(t) = k v(t−1) + written, where neither reads v(t−1) directly."""
    kept = {v: cell.jacobian[v, v] for v in cell.fed_back if (v, v) in cell.jacobian}
    return [v for v, k in kept.items() if _derive.symbol(v) not in k.free_symbols]


def _sources(cell: Cell) -> list[Assignments]:
    forms = []
    for k, expression in enumerate(cell.sources):
        names = sorted(map(str, expression.free_symbols))
        wanted = {"read": expression} | {f"d_read_d_{v}": expression.diff(_derive.symbol(v)) for v in names}
        wanted = {name: without_marks(value) for name, value in wanted.items()}
        forms.append(Assignments.of(f"source_{k}", cell.name, names, wanted, list(wanted)))
    return forms


def _function(form: Assignments) -> str:
    import sympy

    names = [name for name in {*form.inputs, *(name for name, _ in form.lines)} if RESERVED.fullmatch(name)]
    renamed = {_derive.symbol(name): sympy.Symbol(f"{name}$own") for name in names}
    word = {str(old): str(new) for old, new in renamed.items()}
    lines = tuple((word.get(name, name), value.xreplace(renamed)) for name, value in form.lines)
    arrays = [f"{v}$ = $given.{v}" for v in form.inputs] + [f"{v}$ = $found.{v}" for v in form.outputs]
    body = [f"const {word.get(name, name)} = {name}$[$k];" for name in form.inputs]
    body += JAVASCRIPT.lines(Assignments(form.name, form.owner, form.inputs, lines, form.outputs))
    body += [f"{name}$[$k] = {word.get(name, name)};" for name in form.outputs]
    return "\n".join(
        [
            f"export function {form.name}($n, $given, $found) {{",
            f"  const {', '.join(arrays)};",
            "  for (let $k = 0; $k < $n; $k++) {",
            *(f"    {line}" for line in body),
            "  }",
            "}",
        ]
    )
