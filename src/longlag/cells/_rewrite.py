"""Expressions rewritten for those who print them: for autograd, or as values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longlag.cells._language import functions


def without_marks(expression: Any) -> Any:
    """The values of an expression: a spike as a step, nothing detached."""
    f = functions()
    kinds = {f["spike"]: lambda v, slope: f["step"](v), f["detach"]: lambda x: x}

    def change(node: Any, parts: list[Any]) -> Any:
        kind = next((kind for kind in kinds if isinstance(node, kind)), None)
        return kinds[kind](*parts) if kind else None

    return _rebuilt(expression, change)


def guarded(expression: Any) -> Any:
    """The expression for autograd, which would multiply an infinite derivative in a branch that is not chosen by 0.

    A branch reads every symbol v through a choice of v or, where the branch is not chosen, v as a constant.
    """
    f = functions()

    def read_through(branch: Any, gate: Callable[[Any], Any]) -> Any:
        return branch.xreplace({v: gate(v) for v in branch.free_symbols}) if branch.args else branch

    def change(node: Any, parts: list[Any]) -> Any:
        if type(node) not in (f["where_greater"], f["where_at_least"]):
            return None
        a, b, x, y = parts
        x = read_through(x, lambda v: node.func(a, b, v, f["detach"](v)))
        return node.func(a, b, x, read_through(y, lambda v: node.func(a, b, f["detach"](v), v)))

    return _rebuilt(expression, change)


def _rebuilt(expression: Any, change: Callable[[Any, list[Any]], Any]) -> Any:
    """The expression with ``change(node, parts)`` for every node, from the leaves up; None: as it is."""
    from sympy.core.parameters import distribute

    def walk(node: Any) -> Any:
        if not node.args:
            return node
        parts = [walk(part) for part in node.args]
        if (new := change(node, parts)) is not None:
            return new
        return node if all(a is b for a, b in zip(parts, node.args)) else node.func(*parts)

    with distribute(False):
        return walk(expression)
