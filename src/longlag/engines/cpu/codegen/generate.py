"""Writes the CPU kernels of a cell: its equations, printed as two Numba functions and compiled into the time loops.

Only the pointwise equations are generated text, to be read with ``cell.source("cpu")``. The loops over time, rows and
units around them are the same for all cells (`forward`, `backward`, `rows`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from longlag.cells import Assignments, Cell, Printer, without_marks
from longlag.engines.cpu.codegen.structure import Structure
from longlag.engines.cpu.codegen.words import LAYOUT as LAYOUT
from longlag.engines.cpu.codegen.words import PACK as PACK
from longlag.engines.cpu.codegen.words import ROWS as ROWS
from longlag.engines.cpu.codegen.words import SUM_U as SUM_U
from longlag.engines.cpu.codegen.words import SUM_W as SUM_W
from longlag.engines.cpu.codegen.words import names as names

# functions of the language of cells, by their module in `simd`
FUNCTIONS = {
    "functions": ("exp", "relu", "sigmoid", "step", "tanh"),
    "choices": ("above", "abs", "maximum", "minimum", "sign", "sqrt", "where_at_least", "where_greater"),
    "elementary": ("cos", "erf", "log", "sin", "softplus"),
}
NUMBA = Printer(
    "engine 'cpu'",
    {name: name for names in FUNCTIONS.values() for name in names},
    number="number({})",
    powers={2: "square({})", 3: "cube({})"},
    hint="; engine='reference' can",
)

HEAD = '''"""Equations of one unit of the cell {name} in {dtype}{norm}, written by longlag. Safe to delete.

Every value is a number or a SIMD vector, of as many units as the vector has lanes. The loops around the functions are
those of longlag.engines.cpu.codegen: `rows` (units), `forward` and `backward` (rows of a batch, time).
"""

import numpy as np
from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE
{imports}from longlag.engines.cpu.simd.product import cube, square

number = np.{dtype}
'''


def structure(cell: Any, norm: bool) -> Structure:
    """The structure of a cell, or of units in blocks."""
    return Structure.of(cell, norm) if isinstance(cell, Cell) else cell.structure(norm)


def scratch(cell: Any, norm: bool) -> int:
    """Rows of H numbers that each thread needs, besides (H + tile width) numbers for each row of its products."""
    return structure(cell, norm).scratch_rows


def source(cell: Cell, dtype: str, norm: bool) -> str:
    """The generated module."""
    forms = (unit(cell, norm), unit_back(cell, norm), *reads(cell, norm), *reads_back(cell, norm))
    functions = [f"\n\n@njit(**INLINE)\n{NUMBA.function(form)}" for form in forms]
    text = "".join(functions)
    head = HEAD.format(name=cell.name, dtype=dtype, norm=" with layer norm" if norm else "", imports=imports(text))
    return head + text


def imports(text: str) -> str:
    """The lines that import the functions of the language of cells which a text calls."""
    called, lines = set(re.findall(r"\w+(?=\()", text)), ""
    for module, known in FUNCTIONS.items():
        if used := ", ".join(name for name in known if name in called):
            lines += f"from longlag.engines.cpu.simd.{module} import {used}\n"
    return lines


def kernel(cell: Any, dtype: str, norm: bool, part: str) -> tuple[str, Callable[..., None]]:
    """The generated module, and ``forward`` or ``backward`` of the cell, ready to be compiled."""
    if not isinstance(cell, Cell):  # LSTM-1997 writes its own units
        return cell.kernel(dtype, part)
    text = source(cell, dtype, norm)
    forms = [unit(cell, norm), *reads(cell, norm)]
    if part == "backward":
        forms = [unit_back(cell, norm), *reads_back(cell, norm)]
    scope = executed(text, f"<longlag {cell.name}>")
    return text, plugged(Structure.of(cell, norm), scope, forms, dtype, part)


def plugged(
    structure: Structure, scope: dict[str, Any], forms: Sequence[Assignments], dtype: str, part: str
) -> Callable[..., None]:
    """Pointwise functions in the time loop of a part: that of the units, then those of what U reads."""
    import numpy as np

    from longlag.engines.cpu.codegen import backward, forward, rows  # these load Numba

    number = getattr(np, dtype)
    functions = [rows.over_units(scope[f.name], number, vectors=not NUMBA.uses_power(f)) for f in forms]
    loop = forward.forward if part == "forward" else backward.backward
    return loop(structure, functions[0], number, functions[1:])


def executed(text: str, filename: str) -> dict[str, Any]:
    """The names that a generated module defines."""
    scope: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), scope)
    return scope


def unit(cell: Cell, norm: bool) -> Assignments:
    """``unit``: net inputs, previous y and states, params -> y, states; the order of rows in `forward`."""
    form = cell.assignments("step")
    inputs, sums = _net_inputs(cell, norm)
    others = _others(cell, norm)
    return replace(form, name="unit", inputs=(*inputs, *others), lines=sums + form.lines)


def unit_back(cell: Cell, norm: bool) -> Assignments:
    """``unit_back``: the adjoint of ``unit``, with the order of rows in `backward`.

    The gradient of y is the sum of two: that of the layer's output, and that of the next step. Gradients of params are
    added to the sums over earlier rows and steps.
    """
    form, (inputs, sums) = cell.assignments("adjoint"), _net_inputs(cell, norm)
    fed_back, others, reads_y = "y" in cell.fed_back, _others(cell, norm), Structure.of(cell, norm).reads_y
    y = (("d_y", _symbol("_d_out") + _symbol("_d_next")),) if fed_back else (("d_y", _symbol("_d_out")),)
    read = (*inputs, *others, "y_new", *cell.new_states, "_d_out", *["_d_next"] * fed_back)
    read += (*(f"d_{s}" for s in cell.states), *(f"_sum_{p}" for p in cell.params))
    lines = sums + y + form.lines
    lines += tuple((f"_new_sum_{p}", _symbol(f"_sum_{p}") + _symbol(f"d_{p}_")) for p in cell.params)
    gates = (*cell.input_gates, *(g for g in cell.gates if g not in cell.input_gates))
    if reads_y and not cell.reads_y:  # what U reads adds to it
        lines += (("d_y_", _zero()),)
    results = (*(f"d_{g}_" for g in gates), *["d_y_"] * reads_y, *(f"d_{s}_" for s in cell.states))
    results += (*(f"d_{m}_" for m in cell.per_step), *(f"_new_sum_{p}" for p in cell.params))
    return replace(form, name="unit_back", inputs=read, lines=lines, outputs=results)


def reads(cell: Cell, norm: bool) -> list[Assignments]:
    """``reads_0``, …: what U reads, for cells where that is more than y; the order of rows in `sources`."""
    found = []
    for k, (source, read) in enumerate(zip(Structure.of(cell, norm).sources, cell.sources)):
        inputs, sums = _net_inputs(cell, norm) if source.late else ((), ())
        form = Assignments.of(f"reads_{k}", cell.name, (), {"read": without_marks(read)}, ["read"])
        found.append(replace(form, inputs=(*inputs, *_others(cell, norm)), lines=sums + form.lines))
    return found


def reads_back(cell: Cell, norm: bool) -> list[Assignments]:
    """``reads_back_0``, …: adds the gradient of what U reads to the gradients of what it is formed from."""
    import sympy

    structure = Structure.of(cell, norm)
    names, found = (*cell.gates, "y", *cell.states, *cell.per_step, *cell.params), []
    for k, (source, read) in enumerate(zip(structure.sources, cell.sources)):
        inputs, sums = _net_inputs(cell, norm) if source.late else ((), ())
        formed = [names[place] for place in source.targets]
        slopes = {f"new_{name}": without_marks(sympy.diff(read, _symbol(name))) for name in formed}
        wanted = {name: _symbol(f"_to_{name[4:]}") + _symbol("_d_read") * value for name, value in slopes.items()}
        form = Assignments.of(f"reads_back_{k}", cell.name, (), wanted, list(wanted))
        read_too = (*inputs, *_others(cell, norm), "_d_read", *(f"_to_{name}" for name in formed))
        found.append(replace(form, inputs=read_too, lines=sums + form.lines))
    return found


def _others(cell: Cell, norm: bool) -> tuple[str, ...]:
    """What a step reads besides its net inputs: y, if anything reads it, states, numbers, params."""
    y = ("y",) if Structure.of(cell, norm).reads_y else ()
    return (*y, *cell.states, *cell.per_step, *cell.params)


def _zero() -> Any:
    import sympy

    return sympy.Integer(0)


def _net_inputs(cell: Cell, norm: bool) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Names of the rows whose sums are the gates' net inputs, in the order of `view.net_inputs_for`; and these sums."""
    if norm or not Structure.of(cell, norm).separate:
        return cell.gates, ()
    from_W = {g: f"_W_{g}" if g in cell.recurrent_gates else g for g in cell.input_gates}
    only_U = [g for g in cell.gates if g not in cell.input_gates]
    terms = {g: [from_W[g], f"_U_{g}"] for g in cell.input_gates if g in cell.recurrent_gates}
    terms |= {g: [f"_U_{g}", f"_b_{g}"] for g in only_U}
    names = (*from_W.values(), *(f"_U_{g}" for g in cell.recurrent_gates), *(f"_b_{g}" for g in only_U))
    return names, tuple((g, _symbol(one) + _symbol(other)) for g, (one, other) in terms.items())


def _symbol(name: str) -> Any:
    import sympy

    return sympy.Symbol(name, real=True)
