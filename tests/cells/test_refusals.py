"""A cell that is not well formed is refused when it is defined, with a message that names the argument."""

import math

import numpy as np
import pytest
import sympy
import torch

from longlag.cells import cell, exp, relu, sigmoid, tanh

LANGUAGE = "sigmoid, tanh, relu, exp, + - * / and ** with a constant exponent"
NAME = "cannot name an argument (a Python name, not 'y', 'd_…', 'D_…' or '…_new')"


def refusal(error, equations, **declaration):
    declaration.setdefault("gates", "a")
    equations.__name__ = "mine"
    with pytest.raises(error) as caught:
        cell(**declaration)(equations)
    return str(caught.value)


def branch(a):
    return a if a > 0 else -a


@pytest.mark.parametrize(
    ("equations", "reason"),
    [
        (lambda a: math.tanh(a), "Cannot convert expression to float"),
        (lambda a: torch.tanh(a), "tanh(): argument 'input' (position 1) must be Tensor, not Symbol"),
        (lambda a: np.tanh(a), "loop of ufunc does not support argument 0 of type Symbol"),
        (branch, "cannot determine truth value of Relational: a > 0"),
        (lambda a: max(a, 0), "cannot determine truth value of Relational: a < 0"),
        (lambda a: a.tanh(), "'Symbol' object has no attribute 'tanh'"),
        (lambda a: tanh(a, 2), "tanh() takes 1 positional argument but 2 were given"),  # pyright: ignore[reportCallIssue]
        (lambda a: tanh(), "tanh() missing 1 required positional argument: 'x'"),  # pyright: ignore[reportCallIssue]
        (lambda a: a @ a, "unsupported operand type(s) for @"),
    ],
    ids=["math", "torch", "numpy", "if", "max", "method", "two arguments", "no argument", "matmul"],
)
def test_what_cannot_be_traced(equations, reason):
    text = refusal(TypeError, equations)
    start = f"cell mine: its equations must use only {LANGUAGE} on a; tracing them failed: "
    assert text.startswith(start)
    assert reason in text.removeprefix(start)


@pytest.mark.parametrize(
    ("equations", "culprit", "on"),
    [
        (lambda a: abs(a), "Abs(a)", "a"),
        (lambda a: tanh(a) + sympy.sin(a), "sin(a)", "a"),
        (lambda a: sympy.Max(a, 0) * 2, "Max(0, a)", "a"),
        (lambda a: sympy.exp(a), "exp(a)", "a"),
        (lambda a: 2**a, "2**a", "a"),
        (lambda a: tanh(a) ** a, "tanh(a)**a", "a"),
        (lambda a: a + sympy.pi, "pi", "constants"),
        (lambda a: a + math.inf, "oo", "constants"),
        (lambda a: a * sigmoid(math.nan), "nan", "constants"),  # pyright: ignore[reportArgumentType]
    ],
    ids=["abs", "sin", "max", "other exp", "2**a", "tanh(a)**a", "pi", "infinity", "nan"],
)
def test_what_is_outside_the_language(equations, culprit, on):
    assert refusal(TypeError, equations) == (
        f"cell mine: y uses {culprit} on {on}, which is not differentiable or not in the language of cells ({LANGUAGE})"
    )


def test_the_culprit_is_named_with_the_output_and_the_arguments():
    text = refusal(TypeError, lambda a, z, c: (tanh(c), c ** (a + z)), gates="a z", states="c")
    assert text.startswith("cell mine: c uses c**(a + z) on a, c, z, which is not differentiable")


@pytest.mark.parametrize(
    ("equations", "declaration", "text"),
    [
        (lambda a, z: tanh(a), {"gates": "a z"}, "gate 'z' is not used by its equations"),
        (lambda a, z: a + z - z, {"gates": "a z"}, "gate 'z' is not used by its equations"),
        (lambda a, c: (tanh(a), a), {"states": "c"}, "state 'c' is not used by its equations"),
        (lambda a, p: tanh(a), {"params": "p"}, "param 'p' is not used by its equations"),
        (lambda a, y: tanh(a), {}, "argument 'y' is not used by its equations"),
    ],
    ids=["gate", "cancelled gate", "state", "param", "y"],
)
def test_what_is_declared_must_be_used(equations, declaration, text):
    assert refusal(ValueError, equations, **declaration) == f"cell mine: {text}"


def test_what_is_carried_must_be_computed_from_something():
    text = refusal(ValueError, lambda a, c: (tanh(a) * c, 0.5), states="c")
    assert text == "cell mine: c must depend on an argument, got 0.500000000000000"


@pytest.mark.parametrize(
    ("equations", "declaration", "text"),
    [
        (lambda a, b: tanh(a + b), {}, "argument 'b' is neither a gate, a state, a param nor 'y'"),
        (lambda a, *b: tanh(a), {}, "argument 'b' is neither a gate, a state, a param nor 'y'"),
        (lambda a: tanh(a), {"gates": "a z"}, "gate 'z' is not an argument of the function"),
        (lambda a: (tanh(a), a), {"states": "c"}, "state 'c' is not an argument of the function"),
        (lambda a: tanh(a), {"params": "p"}, "param 'p' is not an argument of the function"),
    ],
    ids=["unknown", "star", "gate", "state", "param"],
)
def test_arguments_are_the_declared_names(equations, declaration, text):
    assert refusal(ValueError, equations, **declaration) == f"cell mine: {text}"


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        ({"gates": "a a"}, "'a' is declared 2 times"),
        ({"gates": "a", "states": "a"}, "'a' is declared 2 times"),
        ({"gates": "a", "states": "c", "params": "c"}, "'c' is declared 2 times"),
        ({"gates": ""}, "gates must name at least one net input, got none"),
        ({"gates": "a:z"}, "gate 'a' must be marked ':x' or ':y', got ':z'"),
        ({"gates": "a:x:y"}, "gate 'a' must be marked ':x' or ':y', got ':x:y'"),
        ({"gates": "y"}, f"'y' {NAME}"),
        ({"gates": "d_a"}, f"'d_a' {NAME}"),
        ({"gates": "1a"}, f"'1a' {NAME}"),
        ({"gates": "_a"}, f"'_a' {NAME}"),
        ({"gates": "a", "states": "D_a"}, f"'D_a' {NAME}"),
        ({"gates": "a", "params": "a_new"}, f"'a_new' {NAME}"),
        ({"gates": "tanh"}, "'tanh' is a function's name and cannot name an argument"),
        ({"gates": "a", "states": "step"}, "'step' is a function's name and cannot name an argument"),
        ({"gates": "a:y"}, "no gate reads x(t) through W"),
        ({"gates": "a:x"}, "no gate reads y(t−1) through U; say dense=False"),
        ({"gates": "a m:y", "dense": False}, "gate 'm' is recurrent-only, but dense=False has no U"),
    ],
)
def test_names_and_marks(declaration, text):
    assert refusal(ValueError, lambda a: tanh(a), **declaration) == f"cell mine: {text}"


@pytest.mark.parametrize(
    ("equations", "states", "wanted", "got"),
    [
        (lambda a: (tanh(a), a), "", "1 values (the output y)", 2),
        (lambda a, c: tanh(a + c), "c", "2 values (the output y, the new c)", 1),
        (lambda a, c: (tanh(a + c), c, a), "c", "2 values (the output y, the new c)", 3),
        (lambda a: (), "", "1 values (the output y)", 0),
        (lambda a: None, "", "1 values (the output y)", 0),  # the return was forgotten
    ],
)
def test_the_number_of_returned_values(equations, states, wanted, got):
    text = refusal(ValueError, equations, states=states)
    assert text == f"cell mine: must return {wanted}, got {got}"


def test_the_whole_language_is_accepted():
    made = cell(gates="a")(lambda a: relu(a) ** 2.5 / (1 + exp(-a)) - 3 * sigmoid(a) ** -1 + tanh(+a) ** (1 / 3))
    assert made.inputs == ("a",)
