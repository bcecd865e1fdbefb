"""`@cell`: a recurrent cell written once, as equations; everything else is derived from them."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from longlag.cells import _derive, _javascript, _known
from longlag.cells._assignments import Assignments
from longlag.cells._declaration import Declaration, Names, declared
from longlag.cells._functions import surrogates
from longlag.cells._trace import source, trace

if TYPE_CHECKING:
    import sympy
    from torch import Tensor

Partials = dict[tuple[str, str], "Tensor | float"]  # (output, input) -> ∂output/∂input
_PRINTERS: dict[str, Callable[[Cell], str]] = {}  # engine -> function that prints a cell's code


def cell(
    function: Any = None,
    /,
    *,
    gates: Names = "",
    states: Names = "",
    params: Names | Mapping[str, float] = "",
    fixed: Mapping[str, float] | None = None,
    inputs: Names = "",
    noise: Names = "",
    dense: bool = True,
) -> Callable[[Callable[..., Any]], Cell]:
    """Turn a function of net inputs and previous states into a `Cell`.

    The function's arguments are the declared names and, if wanted, ``y``, the unit's previous output. It returns the
    new output, then the new states, per unit. All names are given in one string, or as a list.

    Args:
        gates: names of the net inputs ``W x(t) + U y(t−1) + b``, one row of ``W``, ``U`` and ``b`` per gate
            and unit. ``"n:x"`` has a row in ``W`` only, ``"m:y"`` a row in ``U`` only. ``"b:z"``: the row in ``U``
            reads the state ``z``; ``"n:x+sigmoid(r)*y"``: the row in ``U`` reads a product formed in the same step.
        states: names of the values that a unit passes to its next step besides its output.
        params: names of trainable numbers, one per unit; a mapping also gives their initial values (default 1).
        fixed: names and values of numbers that are not trained; a layer may replace the values.
        inputs: names of numbers that enter the equations at every step, as in ``layer(x, dt=dt)``.
        noise: the same, drawn by the layer from the standard normal distribution while it trains.
        dense: whether units read each other's outputs through ``U``. ``False``: a unit reads only its own past.

    >>> from longlag.cells import cell, sigmoid, tanh
    >>> @cell(gates="a z")
    ... def mine(a, z, y):
    ...     return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)
    >>> mine
    Cell(mine: gates a z)
    """
    if function is not None:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(f'cell {name}: write @cell(gates="…") with brackets, and name the net inputs there')

    def made(fn: Callable[..., Any]) -> Cell:
        owner = f"cell {fn.__name__}"
        return Cell(fn, declared(owner, gates, states, params, fixed or {}, inputs, noise, dense))

    return made


class Cell:
    """Pointwise equations of a recurrent unit, with derived functions.

    Attributes:
        inputs: names of all arguments in calling order: gates, then ``y`` if read, states, numbers per step, params.
        outputs: ``("y", *states)``.
        input_gates, recurrent_gates: the gates with a row in ``W``, in ``U``.
        sources: what the recurrent gates read, as expressions, each once; ``source_of``: gate -> its index. A source
            that names gates is formed in the same step, after these gates; see `formed`.
        reads_only_y: whether U reads nothing but the outputs of the step before, as in the cells of ``torch.nn``.
        fed_back: the values that the next step reads: ``y`` (if dense or read by the equations), then the states.
        params: trained and fixed numbers of a unit; ``fixed``: names of those that are not trained.
        per_step: names of the numbers per step, ``noise``: of those that a layer draws.
        initial_params: name -> initial value.
        surrogates: the surrogate derivatives of its spikes; empty if all derivatives are those of the equations.
        key: a hash of the equations: equal for equal equations, independent of the function's name.
    """

    def __init__(self, fn: Callable[..., Any], declaration: Declaration) -> None:
        self.name = self.__qualname__ = fn.__name__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__
        self.equations, self.declaration = fn, declaration
        self.gates = tuple(gate.name for gate in declaration.gates)
        self.states, self.params, self.dense = declaration.states, tuple(declaration.params), declaration.dense
        self.fixed, self.per_step, self.noise = declaration.fixed, declaration.per_step, declaration.noise
        self.initial_params = dict(declaration.params)
        self.input_gates = tuple(gate.name for gate in declaration.gates if gate.reads_x)
        self.recurrent_gates = tuple(gate.name for gate in declaration.gates if gate.source is not None)
        self.reads_y = "y" in inspect.signature(fn).parameters
        self.inputs = (*self.gates, *(["y"] if self.reads_y else []), *self.states, *self.per_step, *self.params)
        self.outputs = ("y", *self.states)
        self.new_states = tuple(f"{s}_new" for s in self.states)
        self._check_arguments()
        self.expressions = trace(self)
        sources = [
            (gate.name, source(self, gate.name, gate.source)) for gate in declaration.gates if gate.source is not None
        ]
        self._check_used([expression for _, expression in sources])
        # those formed from gates come last
        order = sorted(dict.fromkeys(e for _, e in sources), key=lambda e: any(self._names_gate(e)))
        self.sources, self.source_of = tuple(order), {gate: order.index(e) for gate, e in sources}
        self._check_phases()
        reads_y = self.reads_y or any("y" in map(str, e.free_symbols) for e in self.sources)
        self.fed_back = (*(["y"] if reads_y else []), *self.states)
        self.surrogates = tuple(sorted(set().union(*map(surrogates, (*self.expressions, *self.sources)))))
        self.reads_only_y = self.sources in ((), (_derive.symbol("y"),))
        self.key = self._key()
        self.made_from: Cell | None = None  # see `diagonal`
        self._assignments: dict[str, Assignments] = {}
        self._with_partials: dict[tuple[str, ...], Callable[..., tuple[dict[str, Tensor], Partials]]] = {}
        self.engine_memory: dict[Any, Any] = {}  # caches of the engines for this cell, released with it
        _known.remember(self)

    # ------------------------------------------------------------------------------------------ derived code
    def assignments(self, which: str) -> Assignments:
        """A derived function as plain data, from which every engine prints its code.

        ``"step"``: inputs -> y_new, the new states.
        ``"step_back"``: inputs, d_y, d_states -> gradients of the inputs, the vector-Jacobian product of ``"step"``.
        ``"adjoint"``: the same, given also the results of the step: inputs, y_new, new states, d_y, d_states.
        ``"partials"``: inputs -> all entries of `jacobian`.
        """
        if which not in _derive.FORMS:
            raise ValueError(f"cell {self.name}: assignments must be one of {list(_derive.FORMS)}, got {which!r}")
        if which not in self._assignments:
            self._assignments[which] = _derive.derive(self, which)
        return self._assignments[which]

    @cached_property
    def step(self) -> Callable[..., tuple[Tensor, ...]]:
        """``step(*inputs) -> (y, *states)`` on tensors."""
        return self._compile("step")

    @cached_property
    def step_back(self) -> Callable[..., tuple[Tensor, ...]]:
        """``step_back(*inputs, *d_outputs) -> d_inputs``: the vector-Jacobian product of `step`."""
        return self._compile("step_back")

    @cached_property
    def _partials(self) -> Callable[..., tuple[Any, ...]]:
        return self._compile("partials")

    def partials(self, *inputs: Tensor) -> Partials:
        """``{(output, input): ∂output/∂input}``, without those that are identically zero.

        A constant partial (∂n/∂a = 1) is a number.
        """
        return dict(zip(self.jacobian, self._partials(*inputs), strict=True))

    def with_partials(self, rows: tuple[str, ...]) -> Callable[..., tuple[dict[str, Tensor], Partials]]:
        """``f(*inputs) -> outputs by name, partials``: a step and its partials, common subexpressions once.

        Args:
            rows: the outputs whose partials are computed.

        >>> import torch
        >>> from longlag import cells
        >>> f = cells.net_feedback.with_partials(("n",))
        >>> outputs, partials = f(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0.5))
        >>> outputs["n"], partials["n", "a"], partials["n", "u"]
        (tensor(2.), 1, tensor(2.))
        """
        for row in rows:
            if row not in self.outputs:
                raise ValueError(f"cell {self.name}: rows must be among {self.outputs}, got {row!r}")
        if rows not in self._with_partials:
            function = self._compile("step_and_partials", rows)
            keys, n = [key for key in self.jacobian if key[0] in rows], len(self.outputs)

            def step_and_partials(*inputs: Tensor) -> tuple[dict[str, Tensor], Partials]:
                values = function(*inputs)
                return dict(zip(self.outputs, values)), dict(zip(keys, values[n:]))

            self._with_partials[rows] = step_and_partials
        return self._with_partials[rows]

    @cached_property
    def reads(self) -> tuple[tuple[tuple[str, ...], Callable[..., Tensor]], ...]:
        """For every source: the recurrent gates that read it, and the function of all named values that forms it."""
        return tuple(
            (tuple(gate for gate, k in self.source_of.items() if k == index), _derive.reading(self, expression))
            for index, expression in enumerate(self.sources)
        )

    @cached_property
    def jacobian(self) -> dict[tuple[str, str], sympy.Expr]:
        """The non-zero partial derivatives as SymPy expressions."""
        return _derive.jacobian(self)

    def source(self, engine: str = "torch") -> str:
        """The generated code as text. ``engine``: ``"torch"``, or an engine with a printer (`register_printer`)."""
        if engine not in _PRINTERS:
            raise ValueError(f"cell {self.name}: engine must be one of {list(_PRINTERS)}, got {engine!r}")
        return _PRINTERS[engine](self)

    def _key(self) -> str:
        text = repr((self.gates, self.input_gates, self.recurrent_gates, self.inputs, self.outputs))
        text += repr(self.expressions)
        if not self.reads_only_y or self.per_step:
            text += repr((self.sources, self.source_of, self.per_step))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def output(self) -> Any:
        """y as a function of the inputs and of the new states, ``c_new``, …, where these occur in it."""
        return _derive.output(self)

    @cached_property
    def adjoint(self) -> dict[str, sympy.Expr]:
        """The vector-Jacobian product by the chain rule, name -> expression, given ``c_new`` and d_y, d_c, …

        D_c = d_c + d_y ∂y/∂c_new; d_v_ = d_y ∂y/∂v + Σ_c D_c ∂c_new/∂v for every input v.
        """
        return _derive.adjoint(self)

    def _compile(self, which: str, rows: tuple[str, ...] | None = None) -> Callable[..., Any]:
        return _derive.compiled(_derive.derive(self, which, rows, guard=True), self.key)

    # ------------------------------------------------------------------------------------------------- checks
    def _check_arguments(self) -> None:
        arguments = set(inspect.signature(self.equations).parameters)
        for name in sorted(arguments - set(self.inputs)):
            raise ValueError(
                f"cell {self.name}: argument {name!r} is neither a gate, a state, a param, an input nor 'y'"
            )
        formed = " ".join(gate.source or "" for gate in self.declaration.gates)
        for name in self.inputs:
            if name not in arguments and not re.search(rf"\b{name}\b", formed):
                role = self.declaration.role(name)
                raise ValueError(f"cell {self.name}: {role} {name!r} is not an argument of the function")

    def _check_used(self, sources: list[sympy.Expr]) -> None:
        used, read = (set().union(*(e.free_symbols for e in each)) for each in (self.expressions, sources))
        for name in self.inputs:
            if _derive.symbol(name) not in (used if name == "y" else used | read):
                raise ValueError(
                    f"cell {self.name}: {self.declaration.role(name)} {name!r} is not used by its equations"
                )

    def _names_gate(self, expression: sympy.Expr) -> list[str]:
        return [gate for gate in self.gates if _derive.symbol(gate) in expression.free_symbols]

    def _check_phases(self) -> None:
        late = {gate for gate, k in self.source_of.items() if self._names_gate(self.sources[k])}
        for gate, k in self.source_of.items():
            for other in self._names_gate(self.sources[k]):
                if other in late:
                    raise ValueError(
                        f"cell {self.name}: gate {gate!r} reads a product with the gate {other!r}, which itself reads "
                        "a product formed in the same step; one such product can be formed per step"
                    )

    # ---------------------------------------------------------------------------------------------- as an object
    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Evaluate the equations as written, on tensors."""
        return self.equations(*args, **kwargs)

    def __repr__(self) -> str:
        parts = {"gates": self.gates, "states": self.states, "inputs": self.declaration.roles["input"]}
        parts |= {"noise": self.noise, "params": self.declaration.roles["param"], "fixed": self.fixed}
        text = ", ".join(f"{role} {' '.join(names)}" for role, names in parts.items() if names)
        text += "" if self.dense else ", local"
        return f"Cell({self.name}: {text}{''.join(f', surrogate {s}' for s in self.surrogates)})"

    def __deepcopy__(self, memo: object) -> Cell:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        from longlag.cells._local import diagonal

        return self.name if self.made_from is None else (diagonal, (self.made_from,))


def register_printer(engine: str, write: Callable[[Cell], str]) -> None:
    """Let ``cell.source(engine)`` return ``write(cell)``."""
    if engine in _PRINTERS:
        raise ValueError(f"register_printer: engine {engine!r} has a printer already")
    _PRINTERS[engine] = write


register_printer("torch", _derive.torch_source)
register_printer("js", _javascript.source)
