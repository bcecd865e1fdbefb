"""`@cell`: a recurrent cell written once, as equations; everything else is derived from them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from longlag.cells import _code, _known, _language

if TYPE_CHECKING:
    import sympy
    from torch import Tensor

PRINTERS: dict[str, Callable[[Cell], str]] = {}  # engine -> how it writes a cell; engines enter themselves
_LANGUAGE = "sigmoid, tanh, relu, exp, + - * / and ** with a constant exponent"


def cell(
    *, gates: str, states: str = "", params: str | Mapping[str, float] = "", dense: bool = True
) -> Callable[[Callable[..., Any]], Cell]:
    """Turn a function of net inputs and previous states into a `Cell`.

    The function takes its gates, states and params by name, and ``y``, the unit's previous output, if it names
    it. It returns the new output, then the new states, per unit.

    Args:
        gates: names of the net inputs ``W x(t) + U y(t−1) + b``, one row of ``W``, ``U`` and ``b`` per gate
            and unit. ``"n:x"`` has a row in ``W`` only, ``"m:y"`` a row in ``U`` only.
        states: names of what a unit carries to the next step besides its output.
        params: names of the trainable numbers each unit owns; a mapping also gives their initial values
            (1 otherwise).
        dense: whether units see each other's outputs through ``U``. ``False``: feedback is local.

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
    """Pointwise equations of a recurrent unit, and what follows from them.

    Attributes:
        inputs: names of all arguments in calling order: gates, then ``y`` if read, states, params.
        outputs: ``("y", *states)``.
        input_gates, recurrent_gates: the gates with a row in ``W``, in ``U``.
        fed_back: what the next step reads: ``y`` (if dense or read by the equations), then the states.
        initial_params: name -> initial value.
        key: a name for the equations' content: equal for equal equations, whatever the functions are called.
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
        self.engine_memory: dict[Any, Any] = {}  # what engines have worked out for this cell, released with it
        _known.remember(self)

    # ------------------------------------------------------------------------------------------ derived code
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

    def partials(self, *inputs: Tensor) -> dict[tuple[str, str], Tensor | float]:
        """``{(output, input): ∂output/∂input}``, without those that are identically zero.

        A partial that depends on nothing (∂n/∂a = 1) is a number.
        """
        return dict(zip(self.jacobian, self._partials(*inputs), strict=True))

    @cached_property
    def jacobian(self) -> dict[tuple[str, str], sympy.Expr]:
        """The non-zero partial derivatives as SymPy expressions."""
        import sympy

        entries = {
            (output, name): sympy.diff(expression, symbol)
            for output, expression in zip(self.outputs, self.expressions)
            for name, symbol in zip(self.inputs, self._symbols)
        }
        return {key: value for key, value in entries.items() if value != 0}

    def source(self, engine: str = "torch") -> str:
        """The generated code, to be read. ``engine``: ``"torch"``, or the name of an engine that prints its own."""
        if engine == "torch":
            return "\n\n".join(self._torch_source(name) for name in ("step", "step_back", "partials"))
        if engine not in PRINTERS:
            raise ValueError(f"cell {self.name}: engine must be one of {['torch', *PRINTERS]}, got {engine!r}")
        return PRINTERS[engine](self)

    def _key(self) -> str:
        text = repr((self.gates, self.input_gates, self.recurrent_gates, self.inputs, self.outputs))
        return hashlib.sha256((text + repr(self.expressions)).encode()).hexdigest()[:16]

    @cached_property
    def output(self) -> Any:
        """y as a function of the inputs and of the new states, ``c_new``, …, where these occur in it."""
        import sympy

        new = {e: sympy.Symbol(f"{s}_new", real=True) for s, e in zip(self.states, self.expressions[1:]) if e.args}
        return self.expressions[0].xreplace(new)

    @cached_property
    def adjoint(self) -> dict[str, sympy.Expr]:
        """The vector-Jacobian product by the chain rule, name -> expression, given ``c_new`` and d_y, d_c, …

        D_c = d_c + d_y ∂y/∂c_new; d_v_ = d_y ∂y/∂v + Σ_c D_c ∂c_new/∂v for every input v.
        """
        import sympy

        symbol = functools.partial(sympy.Symbol, real=True)
        d_y, new = symbol("d_y"), dict(zip(self.states, self.expressions[1:]))
        lines = {f"D_{s}": symbol(f"d_{s}") + d_y * sympy.diff(self.output, symbol(f"{s}_new")) for s in new}
        for name, v in zip(self.inputs, self._symbols):
            through_states = [symbol(f"D_{s}") * sympy.diff(e, v) for s, e in new.items()]
            lines[f"d_{name}_"] = d_y * sympy.diff(self.output, v) + sympy.Add(*through_states)
        return lines

    def _torch_source(self, which: str) -> str:
        doc = f'"""{self.name}, derived from its equations."""'
        arguments, new_states = list(self.inputs), dict(zip(self.new_states, self.expressions[1:]))
        if which == "step":
            results, lines = ["y_new", *self.new_states], {"y_new": self.output, **new_states}
        elif which == "step_back":
            arguments += [f"d_{o}" for o in self.outputs]
            results, lines = [f"d_{name}_" for name in self.inputs], {**new_states, **self.adjoint}
        else:
            lines = {f"d_{o}_d_{name}": value for (o, name), value in self.jacobian.items()}
            results = list(lines)
        code = _code.Printer().assignments(lines)
        return _code.function(which, arguments, [doc, *code], results)

    def _compile(self, which: str) -> Callable[..., Any]:
        source = self._torch_source(which)
        filename = f"<longlag cell {self.name}.{which} {self.key}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)  # for tracebacks
        scope = {name: getattr(_language, name) for name in (*_language.NAMES, "step")}
        function_scope: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), scope, function_scope)
        return function_scope[which]

    # ------------------------------------------------------------------------------------------- tracing
    @cached_property
    def _symbols(self) -> tuple[sympy.Symbol, ...]:
        import sympy

        return tuple(sympy.Symbol(name, real=True) for name in self.inputs)

    def _trace(self) -> tuple[sympy.Expr, ...]:
        import sympy
        from sympy.core.parameters import distribute

        try:
            with distribute(False):  # tanh((u n + a)/2) stays what it is: its argument can be found again
                returned = self.equations(**dict(zip(self.inputs, self._symbols)))
        except (TypeError, AttributeError) as error:
            raise TypeError(
                f"cell {self.name}: its equations must use only {_LANGUAGE} on "
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

        known = tuple(_language.functions()[name] for name in _language.NAMES)
        for node in sympy.preorder_traversal(expression):
            fine = node.is_Symbol or node.is_Add or node.is_Mul or isinstance(node, known)
            fine = fine or (node.is_Number and node.is_finite) or (node.is_Pow and node.args[1].is_Number)
            if not fine:
                arguments = ", ".join(sorted(str(s) for s in node.free_symbols)) or "constants"
                raise TypeError(
                    f"cell {self.name}: {output} uses {node} on {arguments}, which is not differentiable or not "
                    f"in the language of cells ({_LANGUAGE})"
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
            if name in (*_language.NAMES, "step"):
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
