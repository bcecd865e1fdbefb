"""Cells from text that is read, never executed: the playground's typed cells."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable
from typing import Any

from longlag.cells import _functions
from longlag.cells._cell import Cell, cell
from longlag.cells._declaration import Gate
from longlag.cells._language import PUBLIC
from longlag.cells._trace import BRANCHES, replacement

LONGEST = 4000  # characters of a text
LARGEST = 1000  # operations of a cell, written out: deriving takes time and memory that grow with them
STEEPEST = 16  # exponent: powers are printed as products
SHAPE = '@cell(gates="…") above one function: assignments, then return'
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.Invert: operator.invert, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip


def from_text(text: str) -> Cell:
    """A cell from the text of its definition, which is read and not executed: text from anywhere is safe.

    The text is that of a Python file: ``@cell(…)`` with literals above a function of assignments and one
    ``return``, made of the names and functions of the language, numbers and ``+ - * / **``.

    >>> from longlag.cells import from_text
    >>> from_text('''
    ... @cell(gates="a z")
    ... def mine(a, z, y):
    ...     return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)
    ... ''')
    Cell(mine: gates a z)
    """
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
        got = f"{len(text)} characters" if isinstance(text, str) else repr(text)
        raise ValueError(f"from_text: text must have 1 to {LONGEST} characters, got {got}")
    try:
        body = ast.parse(inspect.cleandoc(text)).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise ValueError(f"from_text: text must be Python, got {where}{getattr(error, 'msg', 'too deep')}") from None
    functions = [node for node in body if not isinstance(node, ast.ImportFrom)]  # `from longlag.cells import …`
    if len(functions) != 1 or not isinstance(functions[0], ast.FunctionDef):
        raise ValueError(f"from_text: text must be {SHAPE}, got {_kinds(functions)}")
    function = functions[0]
    try:
        return cell(**_options(function))(_Equations(function))
    except RecursionError:
        raise ValueError(f"cell {function.name}: its equations are nested too deeply") from None


def _kinds(nodes: list[Any]) -> str:
    return ", ".join(f"line {node.lineno}: {type(node).__name__}" for node in nodes) or "nothing"


def _options(function: ast.FunctionDef) -> dict[str, Any]:
    """The arguments of ``@cell``, literals; what gates read is checked before anything evaluates these expressions."""
    name, decorators = function.name, function.decorator_list
    call = decorators[0] if len(decorators) == 1 else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "cell"):
        raise ValueError(f"cell {name}: text must be {SHAPE}")
    allowed = [p for p in inspect.signature(cell).parameters if p != "function"]
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg not in allowed:
            raise ValueError(f"cell {name}: the arguments of @cell are {', '.join(allowed)}; got {keyword.arg!r}")
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            got = ast.unparse(keyword.value)
            raise ValueError(f"cell {name}: {keyword.arg} must be a literal, got {got}") from None
    if call.args or "gates" not in options:
        raise ValueError(f'cell {name}: write @cell(gates="…") and name the net inputs there')
    if not isinstance(options.get("dense", True), bool):
        raise ValueError(f"cell {name}: dense must be True or False, got {options['dense']!r}")
    gates = options["gates"]
    if not isinstance(gates, str | list | tuple):
        raise ValueError(f"cell {name}: gates must be names in a string or a list, got {gates!r}")
    for text in gates.split() if isinstance(gates, str) else gates:
        source = Gate.parsed(str(text), True).source
        try:
            _check(name, ast.parse(source or "y", mode="eval").body)
        except SyntaxError:
            raise ValueError(f"cell {name}: gate {text!r} is no expression") from None
    return options


def _check(owner: str, node: ast.AST) -> None:
    """Refuse what is not an expression of the language."""
    fine = isinstance(node, ast.Name | ast.Constant | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call | ast.Tuple)
    if isinstance(node, ast.Constant):
        fine = isinstance(node.value, int | float | str) and not isinstance(node.value, bool)
    if isinstance(node, ast.Name):
        fine = re.fullmatch(r"[a-zA-Z]\w*", node.id) is not None
    if isinstance(node, ast.Call):
        fine = isinstance(node.func, ast.Name) and not node.keywords
        name = ast.unparse(node.func)
        if not fine or name not in PUBLIC:
            use = replacement(name.rpartition(".")[2])
            raise ValueError(
                f"cell {owner}: line {node.lineno}: {name} is not a function of the language"
                + (f", use {use}" if use else f" ({', '.join(PUBLIC)})")
            )
    if isinstance(node, ast.BoolOp | ast.IfExp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        raise ValueError(f"cell {owner}: equations do not branch by {BRANCHES}")
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        fine = type(node.op) in OPERATORS
    if isinstance(node, ast.Compare):
        fine = len(node.ops) == 1 and type(node.ops[0]) in OPERATORS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        if not (isinstance(exponent, ast.Constant) and isinstance(exponent.value, int | float)):
            raise ValueError(f"cell {owner}: ** needs a constant exponent, got {ast.unparse(node.right)}")
        if not exponent.value <= STEEPEST:
            raise ValueError(f"cell {owner}: exponents go up to {STEEPEST}, got {exponent.value}")
    if not fine:
        raise ValueError(
            f"cell {owner}: {ast.unparse(node)} ({type(node).__name__}) is not in the language of cells: names, "
            "numbers, + - * / **, comparisons in where(…), and its functions"
        )
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.operator | ast.unaryop | ast.cmpop | ast.expr_context):
            if isinstance(node, ast.Call) and child is node.func:
                continue
            _check(owner, child)


class _Equations:
    """A function of equations, evaluated node by node from its text."""

    def __init__(self, function: ast.FunctionDef) -> None:
        a = function.args
        if a.vararg or a.kwarg or a.posonlyargs or a.kwonlyargs or a.defaults:
            raise ValueError(f"cell {function.name}: arguments must be plain names, got {ast.unparse(a)}")
        self.__name__, self.__doc__ = function.name, ast.get_docstring(function)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(arg.arg, kind) for arg in a.args])
        self.lines = [self._line(node) for node in function.body[1 if self.__doc__ is not None else 0 :]]
        if not self.lines or self.lines[-1][0]:
            raise ValueError(f"cell {function.name}: its last line must be return")
        if not all(targets for targets, _ in self.lines[:-1]):
            raise ValueError(f"cell {function.name}: return must come last and once")
        self._count(len(function.args.args))

    def _line(self, node: ast.stmt) -> tuple[list[str], ast.expr]:
        """The names that a line assigns, none for the return, and what."""
        if isinstance(node, ast.Return) and node.value is not None:
            _check(self.__name__, node.value)
            return [], node.value
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if all(isinstance(name, ast.Name) for name in names):
                _check(self.__name__, node.value)
                return [name.id for name in names if isinstance(name, ast.Name)], node.value
        raise ValueError(
            f"cell {self.__name__}: a line is an assignment of names or return, got line {node.lineno}: "
            f"{ast.unparse(node).splitlines()[0]}"
        )

    def _count(self, arguments: int) -> None:
        """Refuse equations that grow beyond bounds when names are written out."""
        sizes: dict[str, int] = {}
        for targets, value in self.lines:
            size = sum(sizes.get(n.id, 1) if isinstance(n, ast.Name) else 1 for n in ast.walk(value))
            sizes |= dict.fromkeys(targets, size)
            if size > LARGEST:
                raise ValueError(
                    f"cell {self.__name__}: the equations have more than {LARGEST} operations when written out"
                )

    def __call__(self, *args: Any, **named: Any) -> Any:
        scope = dict(self.__signature__.bind(*args, **named).arguments)
        for targets, node in self.lines:
            value = self._value(node, scope)
            if not targets:
                return value
            if len(targets) == 1 and not isinstance(value, tuple):
                value = (value,)
            if not isinstance(value, tuple) or len(value) != len(targets):
                raise TypeError(f"line {node.lineno} must give {len(targets)} values")
            scope |= zip(targets, value)
        return None

    def _value(self, node: ast.AST, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Name):
            if node.id not in scope:
                raise TypeError(f"line {node.lineno}: {node.id!r} is not defined")
            return scope[node.id]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(self._value(element, scope) for element in node.elts)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return getattr(_functions, node.func.id)(*(self._value(argument, scope) for argument in node.args))
        try:
            if isinstance(node, ast.UnaryOp):
                return OPERATORS[type(node.op)](self._value(node.operand, scope))
            if isinstance(node, ast.Compare):
                return OPERATORS[type(node.ops[0])](
                    self._value(node.left, scope), self._value(node.comparators[0], scope)
                )
            assert isinstance(node, ast.BinOp)
            left, right = self._value(node.left, scope), self._value(node.right, scope)
            if isinstance(node.op, ast.Pow) and isinstance(left, int):
                left = float(left)  # integers would grow without bound
            return OPERATORS[type(node.op)](left, right)
        except (ArithmeticError, ValueError) as error:
            raise TypeError(f"line {getattr(node, 'lineno', 1)}: {ast.unparse(node)}: {error}") from None
