"""The functions a cell may use. Each works on SymPy expressions (tracing) and on tensors (evaluation)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    import sympy

Value = TypeVar("Value", bound="torch.Tensor | sympy.Expr")

NAMES = ("sigmoid", "tanh", "relu", "exp")


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


def step(x: torch.Tensor) -> torch.Tensor:
    """1 where x > 0, else 0: the derivative of relu."""
    return (x > 0).to(x.dtype)


def _apply(name: str, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return getattr(torch, name)(x)
    return functions()[name](x)


@functools.cache
def functions() -> dict[str, Any]:
    """The SymPy side of the language: name -> function class with its derivative."""
    import sympy  # here and not above: `import longlag` must not pay for it

    def define(name: str, derivative: Any) -> Any:
        return type(name, (sympy.Function,), {"fdiff": lambda self, argindex=1: derivative(self)})

    step_ = define("step", lambda s: sympy.Integer(0))
    return {
        "sigmoid": define("sigmoid", lambda s: s * (1 - s)),
        "tanh": define("tanh", lambda s: 1 - s**2),
        "relu": define("relu", lambda s: step_(s.args[0])),
        "exp": define("exp", lambda s: s),
        "step": step_,
    }
