"""The language of cells: every function with its derivatives and its form on tensors. See `_functions` for users."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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


def tensors(*values: Any) -> list[Tensor]:
    """The values as tensors of one dtype and device; at least one is a tensor."""
    like = next(value for value in values if isinstance(value, Tensor))
    return [v if isinstance(v, Tensor) else torch.full((), v, dtype=like.dtype, device=like.device) for v in values]


def _above(x: Any, y: Any) -> Tensor:
    x, y = tensors(x, y)
    return (x > y).to(x.dtype) + 0.5 * (x == y).to(x.dtype)


def _chosen(condition: Tensor, a: Any, b: Any, x: Any, y: Any) -> Tensor:
    *_, x, y = tensors(a, b, x, y)
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
        lambda x, y: torch.maximum(*tensors(x, y)),
    ),
    "minimum": Function(
        (lambda s: _of("above", *reversed(s.args)), lambda s: _of("above", *s.args)),
        lambda x, y: torch.minimum(*tensors(x, y)),
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
COMPOSED = ("gelu", "silu", "where", "spike", "detach")  # written in terms of others, in `_functions`
PUBLIC = (*(name for name, function in LANGUAGE.items() if function.public), *COMPOSED)
GRAMMAR = f"{', '.join(PUBLIC)}, + - * / and ** with a constant exponent"


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
