"""The functions of the language of cells. Each works on SymPy expressions (tracing) and on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    import sympy

Value = TypeVar("Value", bound="torch.Tensor | sympy.Expr")


@dataclass(frozen=True)
class Function:
    """A function of one argument.

    Attributes:
        derivative: the SymPy derivative, from the applied function f(x); it may name other functions of the language.
        torch: the function on tensors.
        public: whether equations may use it; the others occur in derivatives only.
    """

    derivative: Callable[[Any], Any]
    torch: Callable[[torch.Tensor], torch.Tensor]
    public: bool = True


LANGUAGE: Mapping[str, Function] = {
    "sigmoid": Function(lambda s: s * (1 - s), torch.sigmoid),
    "tanh": Function(lambda s: 1 - s**2, torch.tanh),
    "relu": Function(lambda s: functions()["step"](s.args[0]), torch.relu),
    "exp": Function(lambda s: s, torch.exp),
    "step": Function(lambda s: 0 * s, lambda x: (x > 0).to(x.dtype), public=False),
}
PUBLIC = tuple(name for name, function in LANGUAGE.items() if function.public)
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


def _apply(name: str, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return LANGUAGE[name].torch(x)
    return functions()[name](x)


@functools.cache
def functions() -> dict[str, Any]:
    """The SymPy side of the language: name -> function class with its derivative."""
    import sympy  # here and not above: `import longlag` must not load SymPy

    def define(name: str, function: Function) -> Any:
        return type(name, (sympy.Function,), {"fdiff": lambda self, argindex=1: function.derivative(self)})

    return {name: define(name, function) for name, function in LANGUAGE.items()}
