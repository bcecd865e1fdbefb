"""The equations of a group of units, printed as functions of numbers or SIMD vectors; and its rows of units.

A group keeps one row of numbers, one number per unit, for every value of a step: net inputs, the past, results,
partials, errors. `Rows` says which row holds what.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from longlag.cells import Assignments, sigmoid, without_marks
from longlag.engines.cpu.codegen.generate import NUMBA, executed, imports
from longlag.engines.cpu.realtime.network import Group

HEAD = '''"""Real-time learning of the cell {name} in {dtype}, written by longlag. Safe to delete.

Every value is a number or a SIMD vector, of as many units as the vector has lanes.
"""

import numpy as np
from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE
{imports}from longlag.engines.cpu.simd.product import cube, square

number = np.{dtype}
'''


class Rows:
    """A group's rows by name, and its equations as assignments.

    Row names: a gate g holds its net input, a part q of the loop its past, ``new q`` the new value, ``echo g`` = σ(g),
    ``q/v`` = ∂q/∂v, ``d y`` an error, ``net g`` the error of a net input, ``past q`` of a part of the past, ``of p`` of
    a param. With the rule "snap", ``own g`` holds the weights u_g of units from themselves, and ∂q/∂y is the derivative
    through these, too: ∂q/∂y + Σ_g u_g ∂q/∂net_g.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        cell, loop = group.cell, group.loop
        self.own = cell.recurrent_gates if group.rule == "snap" else ()
        self.jacobian = self._through_own_weights() if self.own else cell.jacobian
        wanted = [key for key in self.jacobian if key[0] in ("y", *loop)]
        self.partials = {key: f"{key[0]}/{key[1]}" for key in wanted if self.jacobian[key].free_symbols}
        self.past = tuple(q for q in loop if ("y", q) in self.jacobian)
        new = [f"new {q}" for q in cell.outputs]
        echoes = [f"echo {g}" for g in group.echoes]
        errors = ["d y", *(f"net {g}" for g in cell.gates), *(f"past {q}" for q in self.past)]
        errors += [f"of {p}" for p in cell.params]
        names = [*cell.gates, *loop, *(f"own {g}" for g in self.own), *new, *echoes, *self.partials.values(), *errors]
        self.at = {name: k for k, name in enumerate(names)}
        self.count = len(names)

    def _through_own_weights(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = dict(self.group.cell.jacobian)
        for q in self.group.cell.outputs:
            total = found.get((q, "y"), _zero())
            for g in self.own:
                total = total + found.get((q, g), 0) * _symbol(f"_u_{g}")
            if total != 0:
                found[q, "y"] = total
        return found

    @cached_property
    def unit(self) -> Assignments:
        """Net inputs, past, own weights, params -> new values, echoes, partials."""
        cell = self.group.cell
        read = [*cell.gates, *self.group.loop, *(f"_u_{g}" for g in self.own), *cell.params]
        wanted = dict(zip(("y_new", *cell.new_states), cell.expressions))
        wanted |= {f"echo_{g}": sigmoid(_symbol(g)) for g in self.group.echoes}
        wanted |= {_name(key): self.jacobian[key] for key in self.partials}
        wanted = {name: without_marks(value) for name, value in wanted.items()}
        return Assignments.of("unit", cell.name, read, wanted, list(wanted))

    @cached_property
    def back(self) -> Assignments:
        """d y, partials of y -> errors of net inputs, of the past, of params."""
        cell, d_y = self.group.cell, _symbol("d_y")
        wanted = {f"d_{v}_": d_y * self._partial("y", v) for v in (*cell.gates, *self.past, *cell.params)}
        read = [_name(key) for key in self.partials if key[0] == "y"]
        return Assignments.of("back", cell.name, ["d_y", *read], wanted, list(wanted))

    @cached_property
    def back_rows(self) -> list[int]:
        """Rows that `back` reads."""
        return [self.at["d y"], *(self.at[name] for key, name in self.partials.items() if key[0] == "y")]

    def trace(self, name: str) -> Assignments:
        """E_q ← Σ_r (∂q/∂r) E_r + (∂q/∂name) source for every part q; reads E, the source, `trace_rows`."""
        loop, cell = self.group.loop, self.group.cell
        E = {q: _symbol(f"E_{q}") for q in loop}
        wanted = {}
        for q in loop:
            past = sum((self._partial(q, r) * E[r] for r in loop), start=_zero())
            wanted[f"new_{q}"] = past + self._partial(q, name) * _symbol("source")
            if self.own and (q, name) not in cell.jacobian:  # not reached in one step: it stays 0
                wanted[f"new_{q}"] = E[q]
        read = [f"E_{q}" for q in loop]
        known = [_name(key) for key in self._read_by_trace(name)]
        return Assignments.of(f"trace_{name}", cell.name, [*read, "source", *known], wanted, list(wanted))

    def trace_rows(self, name: str) -> list[int]:
        """Rows of the partials that ``trace(name)`` reads."""
        return [self.at[self.partials[key]] for key in self._read_by_trace(name)]

    def _read_by_trace(self, name: str) -> list[tuple[str, str]]:
        return [key for key in self.partials if key[0] in self.group.loop and key[1] in (*self.group.loop, name)]

    def still(self, name: str) -> bool:
        """Whether a source of 0 leaves the trace as it is: E_q ← E_q."""
        loop = self.group.loop
        return all(self._partial(q, r) == (1 if q == r else 0) for q in loop for r in loop)

    @cached_property
    def learn(self) -> Assignments:
        """Gradient, error of the net input, source, errors of the past, their traces -> gradient."""
        d, E = ([_symbol(f"{letter}_{q}") for q in self.past] for letter in ("d", "E"))
        value = _symbol("g") + _symbol("net") * _symbol("source") + sum((a * b for a, b in zip(d, E)), start=_zero())
        names = ["g", "net", "source", *map(str, d), *map(str, E)]
        return Assignments.of("learn", self.group.cell.name, names, {"new": value}, ["new"])

    def bound(self, param: str) -> list[Assignments]:
        """What the equations read for the trained number of a param, and the derivative of that."""
        found = dict(zip(self.group.cell.params, self.group.bounds)).get(param)
        if found is None:
            return []
        step, partial = found.expressions[0], found.jacobian["y", found.gates[0]]
        value = Assignments.of(f"bound_{param}", found.name, found.gates, {"y": step}, ["y"])
        return [value, Assignments.of(f"slope_{param}", found.name, found.gates, {"d": partial}, ["d"])]

    @property
    def forms(self) -> list[Assignments]:
        traced = [*self.group.traced, *self.group.cell.params] if self.group.loop else []
        bounds = [form for param in self.group.cell.params for form in self.bound(param)]
        return [self.unit, self.back, self.learn, *map(self.trace, traced), *bounds]

    def source(self, dtype: str) -> str:
        """The generated module."""
        text = "".join(f"\n\n@njit(**INLINE)\n{NUMBA.function(form)}" for form in self.forms)
        return HEAD.format(name=self.group.cell.name, dtype=dtype, imports=imports(text)) + text

    def functions(self, dtype: str) -> dict[str, Any]:
        """The functions by name, jitted."""
        return executed(self.source(dtype), f"<longlag {self.group.cell.name} in real time>")

    def _partial(self, out: str, name: str) -> Any:
        """∂out/∂name: a number, or the symbol of the row that holds its values."""
        value: Any = self.jacobian.get((out, name), _zero())
        return _symbol(_name((out, name))) if value.free_symbols else value


def _name(key: tuple[str, str]) -> str:
    return f"d_{key[0]}_d_{key[1]}"


def _symbol(name: str) -> Any:
    import sympy

    return sympy.Symbol(name, real=True)


def _zero() -> Any:
    import sympy

    return sympy.Integer(0)
