"""`@cell`: a recurrent cell written once, as equations; everything else is derived from them."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from longlag.cells import _derive, _known
from longlag.cells._assignments import Assignments
from longlag.cells._language import GRAMMAR, LANGUAGE, PUBLIC, functions

if TYPE_CHECKING:
    import sympy
    from torch import Tensor

Partials = dict[tuple[str, str], "Tensor | float"]  # (output, input) -> ∂output/∂input
_PRINTERS: dict[str, Callable[[Cell], str]] = {}  # engine -> function that prints a cell's code


def cell(
    *, gates: str, states: str = "", params: str | Mapping[str, float] = "", dense: bool = True
) -> Callable[[Callable[..., Any]], Cell]:
    """Turn a function of net inputs and previous states into a `Cell`.

    The function's arguments are gates, states and params by name and, if wanted, ``y``, the unit's previous output. It
    returns the new output, then the new states, per unit.

    Args:
        gates: names of the net inputs ``W x(t) + U y(t−1) + b``, one row of ``W``, ``U`` and ``b`` per gate
            and unit. ``"n:x"`` has a row in ``W`` only, ``"m:y"`` a row in ``U`` only.
        states: names of the values that a unit passes to its next step besides its output.
        params: names of trainable numbers, one per unit; a mapping also gives their initial values (default 1).
        dense: whether units read each other's outputs through ``U``. ``False``: a unit reads only its own past.

    >>> from longlag.cells import cell, sigmoid, tanh
    >>> @cell(gates="a z")
    ... def mine(a, z, y):
    ...     return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)
    >>> mine
    Cell(mine: gates a z)
    """
    initial = dict.fromkeys(params.split(), 1.0) if isinstance(params, str) else dict(params)
    return lambda fn: Cell(fn, gates.split(), states.split(), initial, dense)


class Cell:
    """Pointwise equations of a recurrent unit, with derived functions.

    Attributes:
        inputs: names of all arguments in calling order: gates, then ``y`` if read, states, params.
        outputs: ``("y", *states)``.
        input_gates, recurrent_gates: the gates with a row in ``W``, in ``U``.
        fed_back: the values that the next step reads: ``y`` (if dense or read by the equations), then the states.
        initial_params: name -> initial value.
        key: a hash of the equations: equal for equal equations, independent of the function's name.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        gates: list[str],
        states: list[str],
        params: dict[str, float],
        dense: bool,
    ) -> None:
        self.name = self.__qualname__ = fn.__name__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__
        self.equations = fn
        marks = [gate.partition(":") for gate in gates]
        self.gates = tuple(name for name, _, _ in marks)
        self.states, self.params, self.dense = tuple(states), tuple(params), dense
        self.initial_params = params
        self.input_gates = tuple(name for name, _, mark in marks if mark != "y")
        self.recurrent_gates = tuple(name for name, _, mark in marks if mark != "x") if dense else ()
        self._check_names([mark for _, _, mark in marks])
        self.reads_y = "y" in inspect.signature(fn).parameters
        self.inputs = (*self.gates, *(["y"] if self.reads_y else []), *self.states, *self.params)
        self.outputs = ("y", *self.states)
        self.new_states = tuple(f"{s}_new" for s in self.states)
        self.fed_back = (*(["y"] if dense or self.reads_y else []), *self.states)
        self._check_arguments()
        self.expressions = self._trace()
        self.key = self._key()
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
        return self._compile(self.assignments("step"))

    @cached_property
    def step_back(self) -> Callable[..., tuple[Tensor, ...]]:
        """``step_back(*inputs, *d_outputs) -> d_inputs``: the vector-Jacobian product of `step`."""
        return self._compile(self.assignments("step_back"))

    @cached_property
    def _partials(self) -> Callable[..., tuple[Any, ...]]:
        return self._compile(self.assignments("partials"))

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
            function = self._compile(_derive.derive(self, "step_and_partials", rows))
            keys, n = [key for key in self.jacobian if key[0] in rows], len(self.outputs)

            def step_and_partials(*inputs: Tensor) -> tuple[dict[str, Tensor], Partials]:
                values = function(*inputs)
                return dict(zip(self.outputs, values)), dict(zip(keys, values[n:]))

            self._with_partials[rows] = step_and_partials
        return self._with_partials[rows]

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
        return hashlib.sha256((text + repr(self.expressions)).encode()).hexdigest()[:16]

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

    def _compile(self, form: Assignments) -> Callable[..., Any]:
        return _derive.compiled(form, self.key)

    # ------------------------------------------------------------------------------------------- tracing
    @cached_property
    def _symbols(self) -> tuple[sympy.Symbol, ...]:
        return tuple(map(_derive.symbol, self.inputs))

    def _trace(self) -> tuple[sympy.Expr, ...]:
        import sympy
        from sympy.core.parameters import distribute

        try:
            with distribute(False):  # tanh((u n + a)/2) is not expanded, so that its argument can be recognised
                returned = self.equations(**dict(zip(self.inputs, self._symbols)))
        except (TypeError, AttributeError) as error:
            raise TypeError(
                f"cell {self.name}: its equations must use only {GRAMMAR} on "
                f"{', '.join(self.inputs)}; tracing them failed: {error}"
            ) from error
        values = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
        if len(values) != len(self.outputs):
            wanted = ", ".join(("the output y", *(f"the new {s}" for s in self.states)))
            raise ValueError(f"cell {self.name}: must return {len(self.outputs)} values ({wanted}), got {len(values)}")
        expressions = tuple(sympy.sympify(value) for value in values)
        for output, expression in zip(self.outputs, expressions):
            self._check_expression(output, expression)
            if not expression.free_symbols:
                raise ValueError(f"cell {self.name}: {output} must depend on an argument, got {expression}")
        used = set().union(*(expression.free_symbols for expression in expressions))
        for name, symbol in zip(self.inputs, self._symbols):
            if symbol not in used:
                raise ValueError(f"cell {self.name}: {self._role(name)} {name!r} is not used by its equations")
        return expressions

    def _check_expression(self, output: str, expression: sympy.Expr) -> None:
        import sympy

        known = tuple(functions()[name] for name in PUBLIC)
        for node in sympy.preorder_traversal(expression):
            fine = node.is_Symbol or node.is_Add or node.is_Mul or isinstance(node, known)
            fine = fine or (node.is_Number and node.is_finite) or (node.is_Pow and node.args[1].is_Number)
            if not fine:
                arguments = ", ".join(sorted(str(s) for s in node.free_symbols)) or "constants"
                raise TypeError(
                    f"cell {self.name}: {output} uses {node} on {arguments}, which is not differentiable or not "
                    f"in the language of cells ({GRAMMAR})"
                )

    def _check_names(self, marks: list[str]) -> None:
        names = [*self.gates, *self.states, *self.params]
        if not self.gates:
            raise ValueError(f"cell {self.name}: gates must name at least one net input, got none")
        for name in names:
            if not re.fullmatch(r"[a-zA-Z]\w*", name) or name == "y" or re.match(r"d_|D_|.*_new$", name):
                raise ValueError(
                    f"cell {self.name}: {name!r} cannot name an argument "
                    "(a Python name, not 'y', 'd_…', 'D_…' or '…_new')"
                )
            if name in LANGUAGE:
                raise ValueError(f"cell {self.name}: {name!r} is a function's name and cannot name an argument")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"cell {self.name}: {name!r} is declared {names.count(name)} times")
        for name, mark in zip(self.gates, marks):
            if mark not in ("", "x", "y"):
                raise ValueError(f"cell {self.name}: gate {name!r} must be marked ':x' or ':y', got ':{mark}'")
            if mark == "y" and not self.dense:
                raise ValueError(f"cell {self.name}: gate {name!r} is recurrent-only, but dense=False has no U")
        if not self.input_gates:
            raise ValueError(f"cell {self.name}: no gate reads x(t) through W")
        if self.dense and not self.recurrent_gates:
            raise ValueError(f"cell {self.name}: no gate reads y(t−1) through U; say dense=False")

    def _check_arguments(self) -> None:
        arguments = set(inspect.signature(self.equations).parameters)
        for name in sorted(arguments - set(self.inputs)):
            raise ValueError(f"cell {self.name}: argument {name!r} is neither a gate, a state, a param nor 'y'")
        for name in self.inputs:
            if name not in arguments:
                raise ValueError(f"cell {self.name}: {self._role(name)} {name!r} is not an argument of the function")

    def _role(self, name: str) -> str:
        roles = {"gate": self.gates, "state": self.states, "param": self.params}
        return next((role for role, names in roles.items() if name in names), "argument")

    # ---------------------------------------------------------------------------------------------- as an object
    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Evaluate the equations as written, on tensors."""
        return self.equations(*args, **kwargs)

    def __repr__(self) -> str:
        parts = {"gates": self.gates, "states": self.states, "params": self.params}
        text = ", ".join(f"{role} {' '.join(names)}" for role, names in parts.items() if names)
        return f"Cell({self.name}: {text}{'' if self.dense else ', local'})"

    def __deepcopy__(self, memo: object) -> Cell:
        return self

    def __reduce__(self) -> str:
        return self.name


def register_printer(engine: str, write: Callable[[Cell], str]) -> None:
    """Let ``cell.source(engine)`` return ``write(cell)``."""
    if engine in _PRINTERS:
        raise ValueError(f"register_printer: engine {engine!r} has a printer already")
    _PRINTERS[engine] = write


register_printer("torch", _derive.torch_source)
