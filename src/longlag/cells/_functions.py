"""The functions that equations use, on SymPy expressions (tracing), on tensors and on numbers."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from longlag.cells._language import LANGUAGE, functions, tensors

__all__ = [
    "abs",
    "cos",
    "detach",
    "erf",
    "exp",
    "gelu",
    "log",
    "maximum",
    "minimum",
    "relu",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "spike",
    "sqrt",
    "tanh",
    "where",
]

Value = Any  # torch.Tensor, sympy.Expr or a number; SymPy's annotations are too general


def sigmoid(x: Value) -> Value:
    """σ(x) = 1 / (1 + e^−x), σ′ = σ (1 − σ)."""
    return _apply("sigmoid", x)


def tanh(x: Value) -> Value:
    """tanh x, tanh′ = 1 − tanh²."""
    return _apply("tanh", x)


def relu(x: Value) -> Value:
    """max(x, 0); the derivative at 0 is 0, as in torch."""
    return _apply("relu", x)


def exp(x: Value) -> Value:
    """e^x."""
    return _apply("exp", x)


def log(x: Value) -> Value:
    """The natural logarithm; NaN below 0."""
    return _apply("log", x)


def sqrt(x: Value) -> Value:
    """√x; the derivative at 0 is infinite."""
    return _apply("sqrt", x)


def softplus(x: Value) -> Value:
    """log(1 + e^x), softplus′ = σ; exact also above 20, where torch returns x."""
    return _apply("softplus", x)


def abs(x: Value) -> Value:
    """|x|; the derivative at 0 is 0, as in torch. Python's ``abs`` does the same."""
    return _apply("abs", x)


def maximum(x: Value, y: Value) -> Value:
    """The larger of two values; where they are equal, each has the derivative ½, as in torch."""
    return _apply("maximum", x, y)


def minimum(x: Value, y: Value) -> Value:
    """The smaller of two values; where they are equal, each has the derivative ½, as in torch."""
    return _apply("minimum", x, y)


def sin(x: Value) -> Value:
    """sin x."""
    return _apply("sin", x)


def cos(x: Value) -> Value:
    """cos x."""
    return _apply("cos", x)


def erf(x: Value) -> Value:
    """The error function, 2/√π ∫₀ˣ e^(−s²) ds."""
    return _apply("erf", x)


def gelu(x: Value) -> Value:
    """x Φ(x) with the normal distribution's Φ: torch's exact form."""
    return x * (1 + erf(x * math.sqrt(0.5))) / 2


def silu(x: Value) -> Value:
    """x σ(x)."""
    return x * sigmoid(x)


def where(condition: Any, x: Value, y: Value) -> Value:
    """x where the condition holds, else y; the gradient goes to the chosen branch only.

    Args:
        condition: a comparison, ``a > b``, ``a >= b``, ``a < b`` or ``a <= b``, or several joined by ``&`` and ``|``.
    """
    if isinstance(condition, Tensor):
        given = [value for value in (x, y) if isinstance(value, Tensor)]
        return torch.where(condition, *(tensors(x, y, given[0])[:2] if given else (x, y)))
    import sympy

    if isinstance(condition, sympy.And | sympy.Or):
        first, *rest = sorted(condition.args, key=sympy.default_sort_key)
        inner = where(type(condition)(*rest), x, y)
        return where(first, inner, y) if isinstance(condition, sympy.And) else where(first, x, inner)
    if isinstance(condition, sympy.logic.boolalg.BooleanAtom):  # a² ≥ 0
        return x if bool(condition) else y
    kinds = {sympy.StrictGreaterThan: 1, sympy.GreaterThan: 1, sympy.StrictLessThan: -1, sympy.LessThan: -1}
    if type(condition) not in kinds:
        raise TypeError(f"where: the condition must be a comparison (<, <=, >, >=) of arguments, got {condition!r}")
    a, b = condition.args[:: kinds[type(condition)]]
    strict = isinstance(condition, sympy.StrictGreaterThan | sympy.StrictLessThan)
    return functions()["where_greater" if strict else "where_at_least"](a, b, x, y)


# name -> slope(v, w): the surrogate derivative of a step
SURROGATES: Mapping[str, Callable[[Any, float], Any]] = {
    "atan": lambda v, w: 1 / (w * (1 + (math.pi / w * v) ** 2)),
    "sigmoid": lambda v, w: sigmoid(v / w) * (1 - sigmoid(v / w)) / w,
    "fast_sigmoid": lambda v, w: 1 / (1 + abs(v) / w) ** 2,
    "triangle": lambda v, w: relu(1 - abs(v) / w) / w,
    "rectangle": lambda v, w: where(abs(v) < w / 2, 1 / w + 0 * v, 0 * v),
    "gaussian": lambda v, w: exp(-((v / w) ** 2) / 2) / (w * math.sqrt(2 * math.pi)),
}


def spike(v: Value, surrogate: str = "atan", width: float = 1.0) -> Value:
    """1 where v > 0, else 0; the derivative is a surrogate of width w.

    ``"atan"``: 1/(w (1 + (π v/w)²)); ``"sigmoid"``: σ′(v/w)/w; ``"fast_sigmoid"``: 1/(1 + |v|/w)²;
    ``"triangle"``: max(0, 1 − |v|/w)/w; ``"rectangle"``: 1/w for |v| < w/2; ``"gaussian"``: the normal density with
    standard deviation w. All but ``"fast_sigmoid"`` (peak 1) have area 1.
    """
    if surrogate not in SURROGATES:
        choices = ", ".join(map(repr, SURROGATES))
        raise ValueError(f"spike: surrogate must be one of {choices}, got {surrogate!r}")
    if not isinstance(width, int | float) or not 0 < width < math.inf:
        raise ValueError(f"spike: width must be a positive number, got {width!r}")
    slope = SURROGATES[surrogate](v, float(width))
    return (
        LANGUAGE["spike"].torch(v, slope) if isinstance(v, Tensor) else _spike_with(surrogate, float(width))(v, slope)
    )


def detach(x: Value) -> Value:
    """x, a constant for all derivatives."""
    return x.detach() if isinstance(x, Tensor) else functions()["detach"](x)


def _apply(name: str, *values: Any) -> Any:
    if any(isinstance(value, Tensor) for value in values):
        return LANGUAGE[name].torch(*values)
    if all(isinstance(value, numbers.Real) for value in values):
        return float(LANGUAGE[name].torch(*(torch.tensor(float(value), dtype=torch.float64) for value in values)))
    return functions()[name](*values)


@functools.cache
def _spike_with(surrogate: str, width: float) -> Any:
    """The class of spikes with this surrogate: spike(v, slope), its derivative is the slope."""
    return type("spike", (functions()["spike"],), {"surrogate": f"{surrogate} {width:g}"})


def surrogates(expression: Any) -> set[str]:
    """The surrogates in an expression, as text."""
    return {node.surrogate for node in expression.atoms(functions()["spike"])}
