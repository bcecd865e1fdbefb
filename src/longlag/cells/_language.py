"""The functions of the language of cells. Each works on SymPy expressions (tracing) and on tensors."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Value = Any  # torch.Tensor, sympy.Expr or a number; SymPy's annotations are too general


@dataclass(frozen=True)
class Function:
    """A function of the language.

    Attributes:
        derivatives: for every argument the SymPy derivative, from the applied function f(x, …); it may name other
            functions of the language. ``None``: the function has a rule of its own, see `functions`.
        torch: the function on tensors; an argument may be a number.
        public: whether it is listed in messages; the others occur in derivatives, or under another name.
    """

    derivatives: tuple[Callable[[Any], Any], ...] | None
    torch: Callable[..., Tensor]
    public: bool = True


def _of(name: str, *arguments: Any) -> Any:
    return functions()[name](*arguments)


def _tensors(*values: Any) -> list[Tensor]:
    """The values as tensors of one dtype and device; at least one is a tensor."""
    like = next(value for value in values if isinstance(value, Tensor))
    return [v if isinstance(v, Tensor) else torch.full((), v, dtype=like.dtype, device=like.device) for v in values]


def _above(x: Any, y: Any) -> Tensor:
    x, y = _tensors(x, y)
    return (x > y).to(x.dtype) + 0.5 * (x == y).to(x.dtype)


def _chosen(condition: Tensor, a: Any, b: Any, x: Any, y: Any) -> Tensor:
    *_, x, y = _tensors(a, b, x, y)
    return torch.where(condition, x, y)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))  # torch's softplus returns x above 20, 2e-9 off


def _spike(v: Tensor, slope: Tensor) -> Tensor:
    # the last term is 0; its first and second derivatives are the slope and the slope's derivative
    return (v > 0).to(v.dtype) + 0.5 * (slope + slope.detach()) * (v - v.detach())


def _detach(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


LANGUAGE: Mapping[str, Function] = {
    "sigmoid": Function((lambda s: s * (1 - s),), torch.sigmoid),
    "tanh": Function((lambda s: 1 - s**2,), torch.tanh),
    "relu": Function((lambda s: _of("step", s.args[0]),), torch.relu),
    "exp": Function((lambda s: s,), torch.exp),
    "log": Function((lambda s: 1 / s.args[0],), torch.log),
    "sqrt": Function((lambda s: 1 / (2 * s),), torch.sqrt),
    "softplus": Function((lambda s: _of("sigmoid", s.args[0]),), _softplus),
    "abs": Function((lambda s: _of("sign", s.args[0]),), torch.abs),
    "maximum": Function(
        (lambda s: _of("above", *s.args), lambda s: _of("above", *reversed(s.args))),
        lambda x, y: torch.maximum(*_tensors(x, y)),
    ),
    "minimum": Function(
        (lambda s: _of("above", *reversed(s.args)), lambda s: _of("above", *s.args)),
        lambda x, y: torch.minimum(*_tensors(x, y)),
    ),
    "sin": Function((lambda s: _of("cos", s.args[0]),), torch.sin),
    "cos": Function((lambda s: -_of("sin", s.args[0]),), torch.cos),
    "erf": Function((lambda s: 2 / math.sqrt(math.pi) * _of("exp", -(s.args[0] ** 2)),), torch.erf),
    # of derivatives
    "step": Function((lambda s: 0 * s,), lambda x: (x > 0).to(x.dtype), public=False),
    "sign": Function((lambda s: 0 * s,), torch.sign, public=False),
    "above": Function((lambda s: 0 * s, lambda s: 0 * s), _above, public=False),
    # with rules of their own
    "where_greater": Function(None, lambda a, b, x, y: _chosen(a > b, a, b, x, y), public=False),
    "where_at_least": Function(None, lambda a, b, x, y: _chosen(a >= b, a, b, x, y), public=False),
    "spike": Function(None, _spike, public=False),
    "detach": Function(None, _detach, public=False),
}
COMPOSED = ("gelu", "silu", "where", "spike", "detach")  # public names that are written in terms of others
PUBLIC = (*(name for name, function in LANGUAGE.items() if function.public), *COMPOSED)
GRAMMAR = f"{', '.join(PUBLIC)}, + - * / and ** with a constant exponent"


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
        tensors = [v for v in (x, y) if isinstance(v, Tensor)]
        return torch.where(condition, *(_tensors(x, y, tensors[0])[:2] if tensors else (x, y)))
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
    return _of("where_greater" if strict else "where_at_least", a, b, x, y)


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
    return _spike(v, slope) if isinstance(v, Tensor) else _spike_with(surrogate, float(width))(v, slope)


def detach(x: Value) -> Value:
    """x, a constant for all derivatives."""
    return _detach(x) if isinstance(x, Tensor) else _of("detach", x)


def _apply(name: str, *values: Any) -> Any:
    if any(isinstance(value, Tensor) for value in values):
        return LANGUAGE[name].torch(*values)
    if all(isinstance(value, numbers.Real) for value in values):
        return float(LANGUAGE[name].torch(*(torch.tensor(float(value), dtype=torch.float64) for value in values)))
    return _of(name, *values)


# --------------------------------------------------------------------------------------------------------- SymPy
@functools.cache
def functions() -> dict[str, Any]:
    """The SymPy side of the language: name -> function class with its derivative."""
    import sympy  # here and not above: `import longlag` must not load SymPy

    def choice(self: Any, s: Any) -> Any:
        a, b, x, y = self.args
        dx, dy = x.diff(s), y.diff(s)
        return dx if dx == dy else self.func(a, b, dx, dy)  # a choice of derivatives: no 0 · ∞ of the other branch

    own = {
        "where_greater": choice,
        "where_at_least": choice,
        "spike": lambda self, s: self.args[1] * self.args[0].diff(s),
        "detach": lambda self, s: sympy.S.Zero,
    }

    def define(name: str, function: Function) -> Any:
        if function.derivatives is None:
            return type(name, (sympy.Function,), {"_eval_derivative": own[name]})
        rules = function.derivatives
        return type(name, (sympy.Function,), {"fdiff": lambda self, argindex=1: rules[argindex - 1](self)})

    return {name: define(name, function) for name, function in LANGUAGE.items()}


@functools.cache
def _spike_with(surrogate: str, width: float) -> Any:
    """The class of spikes with this surrogate: spike(v, slope), its derivative is the slope."""
    return type("spike", (functions()["spike"],), {"surrogate": f"{surrogate} {width:g}"})


def surrogates(expression: Any) -> set[str]:
    """The surrogates in an expression, as text."""
    return {node.surrogate for node in expression.atoms(functions()["spike"])}


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
