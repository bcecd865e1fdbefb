"""Writes the CPU kernels of a cell: its equations, printed as a Numba module that a person can read.

The module has two functions, ``forward`` and ``backward``, which run the rows first:last of a batch over all time
steps. Arrays that do not apply (no lengths, no reset, …) are empty.

Shapes: x (T, B, I); a (T, B, Gx, H), the net inputs W x + b, with U y added where both have the same gates; rec
(T, B, Gy, H), U y where they have not; states and outputs (T, B, H), initial and final ones (B, H). PW and PU are
packed matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longlag.cells import Cell
from longlag.cells._code import Printer

KNOWN = {"sigmoid", "tanh", "relu", "exp"}
HEAD = '''"""CPU kernels of the cell {name} in {dtype}{norm}, written by longlag from its equations. Safe to delete."""

import numpy as np
from numba import njit

from longlag.engines.cpu.functions import exp, relu, sigmoid, step, tanh
from longlag.engines.cpu.product import LANES, OPTIONS, broadcast, cube, load, multiply, square, store, total, width

number = np.{dtype}
lanes = LANES[number]
'''

NORMALISE = '''
@njit(**OPTIONS)
def normalise(a, gamma, beta, eps, r, out):
    """out = γ r + β, r = (a − μ)/√(v + ε); returns 1/√(v + ε)."""
    size = len(a)
    whole = size // lanes * lanes
    sums = broadcast(number(0))
    for unit in range(0, whole, lanes):
        sums = sums + load(a, unit)
    mean = total(sums)
    for unit in range(whole, size):
        mean += a[unit]
    mean /= number(size)
    sums = broadcast(number(0))
    for unit in range(0, whole, lanes):
        sums = sums + square(load(a, unit) - mean)
    variance = total(sums)
    for unit in range(whole, size):
        variance += square(a[unit] - mean)
    scale = number(1) / np.sqrt(variance / number(size) + eps)
    for unit in range(0, whole, lanes):
        value = (load(a, unit) - mean) * scale
        store(r, unit, value)
        store(out, unit, load(gamma, unit) * value + load(beta, unit))
    for unit in range(whole, size):
        r[unit] = (a[unit] - mean) * scale
        out[unit] = gamma[unit] * r[unit] + beta[unit]
    return scale


@njit(**OPTIONS)
def normalise_back(d, gamma, r, scale, dGamma, dBeta):
    """d, the gradient at γ r + β, becomes the gradient at a: (q − mean(q) − r·mean(q r))/√(v + ε), q = γ d."""
    size = len(d)
    whole = size // lanes * lanes
    sums = sums_along = broadcast(number(0))
    for unit in range(0, whole, lanes):
        value, direction = load(d, unit), load(r, unit)
        store(dGamma, unit, load(dGamma, unit) + value * direction)
        store(dBeta, unit, load(dBeta, unit) + value)
        value = value * load(gamma, unit)
        store(d, unit, value)
        sums = sums + value
        sums_along = sums_along + value * direction
    mean, along = total(sums), total(sums_along)
    for unit in range(whole, size):
        dGamma[unit] += d[unit] * r[unit]
        dBeta[unit] += d[unit]
        d[unit] *= gamma[unit]
        mean += d[unit]
        along += d[unit] * r[unit]
    mean /= number(size)
    along /= number(size)
    for unit in range(0, whole, lanes):
        store(d, unit, (load(d, unit) - mean - load(r, unit) * along) * scale)
    for unit in range(whole, size):
        d[unit] = (d[unit] - mean - r[unit] * along) * scale
'''

NET = """\
for b in range(first, last):
    a[t_a, b] = bias_x
multiply(x_flat, (t * B + first) * I, I, M, I, PW, a_flat, (t_a * B + first) * Gx * H, Gx * H, True, edge)
"""

RECURRENT = """\
if source.size > 0:  # what U reads is not simply the step before
    for b in range(first, last):
        fresh = n == 0 or (reverse and lengths.size > 0 and t == lengths[b] - 1)
        blank = (reset.size > 0 and reset[t, b]) or (lengths.size > 0 and t >= lengths[b])
        y_before = zero if blank else (y_0[b] if fresh else out[back, b])
        for j in range(H):
            source[t, b, j] = y_before[j] * mask[b, j] if mask.size > 0 else y_before[j]
heard = source_flat if source.size > 0 else (y_0_flat if n == 0 else out_flat)
at = t if source.size > 0 else (0 if n == 0 else back)
multiply(heard, (at * B + first) * H, H, M, H, PU, {rec}_flat, (t_a * B + first) * {G} * H, {G} * H, {add}, edge)
"""

BACK_THROUGH_U = """\
if mask.size == 0:
    multiply({d}_flat, (t * B + first) * {G} * H, {G} * H, M, {G} * H, PU, d_y_flat, first * H, H, True, edge)
else:
    multiply({d}_flat, (t * B + first) * {G} * H, {G} * H, M, {G} * H, PU, through_flat, 0, H, False, edge)
    for b in range(first, last):
        for j in range(H):
            d_y[b, j] += through[b - first, j] * mask[b, j]
"""

BACK_THROUGH_W = """\
if dx.size > 0:
    multiply(dA_flat, (t * B + first) * Gx * H, Gx * H, M, Gx * H, PW, dx_flat, (t * B + first) * I, I, False, edge)
"""


def source(cell: Cell, dtype: str, norm: bool) -> str:
    """The module's text."""
    for expression in (cell.output, *cell.expressions):
        for unknown in sorted({type(f).__name__ for f in expression.atoms(_function_class())} - KNOWN):
            raise ValueError(f"engine 'cpu' cannot print {unknown}(…) of cell {cell.name}; engine='reference' can")
    return _Writer(cell, dtype, norm).module()


class _Writer:
    extra: tuple[str, ...] = ()  # further arguments that are handed to the units

    def __init__(self, cell: Any, dtype: str, norm: bool) -> None:
        self.cell, self.dtype, self.norm = cell, dtype, norm
        self.only_y = [g for g in cell.gates if g not in cell.input_gates]
        self.same_gates = cell.input_gates == cell.recurrent_gates  # then U y is added into a
        self.own_rec = cell.dense and not self.same_gates
        self.y_back = "y" in cell.fed_back

    def module(self) -> str:
        head = HEAD.format(name=self.cell.name, dtype=self.dtype, norm=" with layer norm" if self.norm else "")
        parts = [head, NORMALISE if self.norm else "", self.units(), self.units_back(), self.forward(), self.backward()]
        return "\n".join(part for part in parts if part)

    # ------------------------------------------------------------------------------------ one row, all units
    def gate_terms(self, g: str) -> list[str]:
        """Names of the rows a gate's net input is the sum of."""
        if self.norm:
            return [f"n_{g}"]
        return self.raw_terms(g)

    def raw_terms(self, g: str) -> list[str]:
        terms = [f"a_{g}"] * (g in self.cell.input_gates)
        terms += [f"u_{g}"] * (self.own_rec and g in self.cell.recurrent_gates)
        return terms + [f"b_{g}"] * (g in self.only_y)

    def rows_in(self) -> list[str]:
        gates = [term for g in self.cell.gates for term in self.gate_terms(g)]
        return gates + [f"{name}_row" for name in self.cell.inputs[len(self.cell.gates) :]]

    def loops(self, body: list[str]) -> list[str]:
        """The body for whole vectors of units, then for the units that are left, one by one."""
        plain = [line.replace("LOAD(", "").replace(")@", "[unit]").replace("STORE ", "") for line in body]
        if any("**" in line for line in body):  # vectors have no general power
            return ["for unit in range(size):", *_indent(plain)]
        vector = []
        for line in body:
            if line.startswith("STORE "):
                target, _, value = line.removeprefix("STORE ").partition("[unit] = ")
                vector.append(f"store({target}, unit, {value})")
            else:
                vector.append(line.replace("LOAD(", "load(").replace(")@", ", unit)"))
        return [
            "for unit in range(0, size // lanes * lanes, lanes):",
            *_indent(vector),
            "for unit in range(size // lanes * lanes, size):",
            *_indent(plain),
        ]

    def loads(self) -> list[str]:
        gates = [f"{g} = {' + '.join(f'LOAD({term})@' for term in self.gate_terms(g))}" for g in self.cell.gates]
        return gates + [f"{name} = LOAD({name}_row)@" for name in self.cell.inputs[len(self.cell.gates) :]]

    def units(self) -> str:
        cell = self.cell
        lines = {**dict(zip(cell.new_states, cell.expressions[1:])), "y_new": cell.output}
        stores = [f"STORE {o}_new_row[unit] = {o}_new" for o in cell.outputs]
        arguments = ["size", *self.rows_in(), *(f"{o}_new_row" for o in cell.outputs)]
        return _function("units", arguments, self.loops([*self.loads(), *_print(lines), *stores]))

    def units_back(self) -> str:
        cell = self.cell
        known = {cell.output: _symbol("y_new")} if cell.output.args else {}
        lines = {name: value.xreplace(known) for name, value in cell.adjoint.items()}
        names = set().union(*(map(str, value.free_symbols) for value in lines.values()))
        new = [s for s in ("y_new", *cell.new_states) if s in names]
        body = [line for line in self.loads() if line.partition(" = ")[0] in names]
        body += [f"{s} = LOAD({s}_row)@" for s in new]
        body += ["d_y = LOAD(dOut_row)@ + LOAD(d_y_row)@" if self.y_back else "d_y = LOAD(dOut_row)@"]
        body += [f"d_{s} = LOAD(d_{s}_row)@" for s in cell.states]
        body += _print(lines)
        body += [f"STORE d_{name}_row[unit] = d_{name}_" for name in (*cell.gates, *cell.states)]
        if self.y_back:
            body += [f"STORE d_y_row[unit] = {'d_y_' if cell.reads_y else 'd_y * number(0)'}"]
        for p in cell.params:
            body += [f"sum_{p} = LOAD(d_{p}_row)@ + d_{p}_", f"STORE d_{p}_row[unit] = sum_{p}"]
        arguments = ["size", *self.rows_in(), *(f"{s}_row" for s in ("y_new", *cell.new_states)), "dOut_row"]
        arguments += [f"d_{o}_row" for o in cell.outputs if o != "y" or self.y_back]
        arguments += [f"d_{name}_row" for name in (*cell.gates, *cell.params)]
        return _function("units_back", arguments, self.loops(body))

    # ---------------------------------------------------------------------------------------------- over time
    def shared_arguments(self) -> list[str]:
        cell = self.cell
        names = ["x", "PW", "a", *(["PU", "source"] if cell.dense else []), *(["rec"] if self.own_rec else [])]
        names += ["bias_y"] if self.only_y else []
        names += [f"{s}_0" for s in cell.fed_back] + [f"{p}_all" for p in cell.params]
        names += ["gamma", "beta", "eps"] if self.norm else []
        return [*names, "mask", "lengths", "reset", *self.extra, "out", *(f"{s}_all" for s in cell.states)]

    def prologue(self) -> list[str]:
        lines = ["T, B, I = x.shape", "_, _, Gx, H = a.shape", "M = last - first", "zero = np.zeros(H, a.dtype)"]
        lines += ["edge = np.empty(M * width(a), a.dtype)"]
        if self.norm:
            lines += [f"normal = np.empty((2, {len(self.cell.gates)}, H), a.dtype)  # γ r + β, and r"]
            lines += ["sum_row = np.empty(H, a.dtype)"]
        return lines + [f"{s}_masked = np.empty(H, a.dtype)" for s in self.masked_rows()]

    def masked_rows(self) -> list[str]:
        """States whose fed-back value a mask multiplies: those of a local cell."""
        return [] if self.cell.dense else list(self.cell.fed_back)

    def before(self) -> list[str]:
        """What row b reads at step t from the step before."""
        cell = self.cell
        rows = {s: "out" if s == "y" else f"{s}_all" for s in cell.fed_back if s != "y" or cell.reads_y}
        lines = ["fresh = n == 0 or (reverse and lengths.size > 0 and t == lengths[b] - 1)"] if rows else []
        lines += ["blank = reset.size > 0 and reset[t, b]"] if rows else []
        for s, array in rows.items():
            zero = "zero" if s == "y" else f"zero[:{s}_0.shape[1]]"
            lines.append(f"{s}_row = {zero} if blank else ({s}_0[b] if fresh else {array}[back, b])")
        for s in self.masked_rows():
            lines += ["if mask.size > 0:", f"    for j in range(H): {s}_masked[j] = {s}_row[j] * mask[b, j]"]
            lines += [f"    {s}_row = {s}_masked"]
        return lines

    def gates(self) -> list[str]:
        """The gates' rows of step t, row b."""
        cell = self.cell
        lines = [f"a_{g} = a[t_a, b, {k}]" for k, g in enumerate(cell.input_gates)]
        if self.own_rec:
            lines += [f"u_{g} = rec[t_a, b, {k}]" for k, g in enumerate(cell.recurrent_gates)]
        lines += [f"b_{g} = bias_y[{k}]" for k, g in enumerate(self.only_y)]
        for k, g in enumerate(cell.gates if self.norm else ()):
            lines += [f"for j in range(H): sum_row[j] = {' + '.join(f'{r}[j]' for r in self.raw_terms(g))}"]
            lines += [f"scale_{g} = normalise(sum_row, gamma[{k}], beta[{k}], eps, normal[1, {k}], normal[0, {k}])"]
            lines += [f"n_{g} = normal[0, {k}]"]
        return lines + [f"{p}_row = {p}_all" for p in cell.params]

    def forward(self) -> str:
        cell = self.cell
        arguments = [
            *self.shared_arguments(),
            "bias_x",
            *(f"{s}_end" for s in cell.fed_back),
            "reverse",
            "first",
            "last",
        ]
        loop = ["t = T - 1 - n if reverse else n", "back = t + 1 if reverse else t - 1"]
        loop += ["t_a = t if a.shape[0] == T else 0  # nothing is kept where no gradient is wanted", *NET.splitlines()]
        if cell.dense:
            names = {"rec": "rec", "G": len(cell.recurrent_gates)} if self.own_rec else {"rec": "a", "G": "Gx"}
            loop += RECURRENT.format(add=not self.own_rec, **names).splitlines()
        body = ["if lengths.size > 0 and t >= lengths[b]:", "    out[t, b] = number(0)", "    continue"]
        body += [*self.before(), *self.gates()]
        new = ["out[t, b]", *(f"{s}_all[t, b]" for s in cell.states)]
        body += [f"units({', '.join(['H', *self.rows_in(), *new, *self.extra])})"]
        end = ["end = 0 if reverse else (lengths[b] - 1 if lengths.size > 0 else T - 1)"]
        end += [f"{s}_end[b] = {'out' if s == 'y' else f'{s}_all'}[end, b]" for s in cell.fed_back]
        flat = ["x", "a", *(["source", "y_0", "out"] if cell.dense else []), *(["rec"] if self.own_rec else [])]
        lines = [*self.prologue(), *_flat(flat), "for n in range(T):", *_indent(loop)]
        lines += ["    for b in range(first, last):"]
        lines += [*_indent(body, 2), *(["for b in range(first, last):", *_indent(end)] if cell.fed_back else [])]
        return _function("forward", arguments, lines)

    def backward(self) -> str:
        cell = self.cell
        both = ["dA", *(["dRec"] if self.own_rec else [])]
        given = ["dOut", *(f"d_{s}" for s in cell.fed_back), *both, "dx", *(f"d_{p}" for p in cell.params)]
        given += ["dGamma", "dBeta"] if self.norm else []
        body = [
            "if lengths.size > 0 and t >= lengths[b]:",
            *(f"    {d}[t, b] = number(0)" for d in both),
            "    continue",
        ]
        body += [*self.before(), *self.gates()]
        body += [f"d_{g}_row = dA[t, b, {k}]" for k, g in enumerate(cell.input_gates)]
        body += [f"d_{g}_row = dRec[t, b, {cell.recurrent_gates.index(g)}]" for g in self.only_y]
        rows = [*self.rows_in(), "out[t, b]", *(f"{s}_all[t, b]" for s in cell.states), "dOut[t, b]"]
        rows += [f"d_{o}[b]" for o in cell.outputs if o != "y" or self.y_back]
        rows += [f"d_{g}_row" for g in cell.gates] + [f"d_{p}[b]" for p in cell.params]
        body += [f"units_back({', '.join(['H', *rows, *self.extra])})"]
        for k, g in enumerate(cell.gates if self.norm else ()):
            body += [f"normalise_back(d_{g}_row, gamma[{k}], normal[1, {k}], scale_{g}, dGamma[b, {k}], dBeta[b, {k}])"]
        for k, g in enumerate(cell.recurrent_gates):
            if self.own_rec and g not in self.only_y:
                body += [f"dRec[t, b, {k}] = d_{g}_row"]
        for s in self.masked_rows():
            body += ["if mask.size > 0:", f"    for j in range(H): d_{s}[b, j] *= mask[b, j]"]
        lines = [*self.prologue()]
        lines += ["through = np.empty((M if mask.size > 0 else 0, H), a.dtype)"] if cell.dense else []
        lines += _flat([*both, "dx", *(["d_y", "through"] if cell.dense else [])])
        lines += ["for n in range(T - 1, -1, -1):", "    t = t_a = T - 1 - n if reverse else n"]
        lines += ["    back = t + 1 if reverse else t - 1", "    for b in range(first, last):", *_indent(body, 2)]
        if cell.dense:
            names = {"d": "dRec", "G": len(cell.recurrent_gates)} if self.own_rec else {"d": "dA", "G": "Gx"}
            lines += _indent(BACK_THROUGH_U.format(**names).splitlines())
        lines += _indent(BACK_THROUGH_W.splitlines())
        if cell.fed_back:
            lines += ["    if reset.size > 0:", "        for b in range(first, last):"]
            lines += ["            if reset[t, b] and (lengths.size == 0 or t < lengths[b]):"]
            lines += _indent([f"d_{s}[b] = number(0)" for s in cell.fed_back], 4)
        return _function("backward", [*self.shared_arguments(), *given, "reverse", "first", "last"], lines)


_print = Printer(number="number({})", powers={2: "square({})", 3: "cube({})"}).assignments


def _function_class() -> Any:
    import sympy

    return sympy.Function


def _symbol(name: str) -> Any:
    import sympy

    return sympy.Symbol(name, real=True)


def _indent(lines: Sequence[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def _flat(names: list[str]) -> list[str]:
    return [f"{name}_flat = {name}.reshape(-1)" for name in names]


def _function(name: str, arguments: list[str], lines: list[str]) -> str:
    return "\n".join(["", "@njit(**OPTIONS)", f"def {name}({', '.join(arguments)}):", *_indent(lines), ""])
