"""A cell that is not well formed is refused when it is defined, with a message that names the argument."""

import math

import numpy as np
import pytest
import sympy
import torch

from longlag import cells
from longlag.cells import cell, exp, maximum, relu, sigmoid, spike, tanh, where

LANGUAGE = (
    "sigmoid, tanh, relu, exp, log, sqrt, softplus, abs, maximum, minimum, sin, cos, erf, gelu, silu, where, spike, "
    "detach, + - * / and ** with a constant exponent"
)
READS = "must read x, y, a state or an expression of them, as in 'n:x+sigmoid(r)*y'"
NAME = "cannot name an argument (a Python name, not 'y', 'd_…', 'D_…' or '…_new')"


def refusal(error, equations, **declaration):
    declaration.setdefault("gates", "a")
    equations.__name__ = "mine"
    with pytest.raises(error) as caught:
        cell(**declaration)(equations)
    return str(caught.value)


def branch(a):
    return a if a > 0 else -a


BRANCH = "if, and, or, not and chained comparisons: use where(a > b, x, y)"


@pytest.mark.parametrize(
    ("equations", "hint", "reason"),
    [
        (lambda a: math.tanh(a), "math.tanh: use longlag.cells.tanh", "Cannot convert expression to float"),
        (lambda a: torch.tanh(a), "torch.tanh: use longlag.cells.tanh", "(position 1) must be Tensor, not Symbol"),
        (lambda a: np.tanh(a), "np.tanh: use longlag.cells.tanh", "does not support argument 0 of type Symbol"),
        (lambda a: np.log1p(a), "np.log1p: use log(1 + x)", "does not support argument 0 of type Symbol"),
        (branch, BRANCH, "cannot determine truth value of Relational: a > 0"),
        (lambda a: 0 < a < 1, BRANCH, "cannot determine truth value"),
        (lambda a: max(a, 0), "max: use maximum", "cannot determine truth value of Relational: a < 0"),
        (lambda a: 1 + min(a, 0), "min: use minimum", "cannot determine truth value of Relational"),
        (lambda a: a.tanh(), "a.tanh: use longlag.cells.tanh", "'Symbol' object has no attribute 'tanh'"),
        (lambda a: cells.max(a, 0), "cells.max: use maximum", "'longlag.cells' has no attribute 'max'"),
        (lambda a: a.sort(), "", "'Symbol' object has no attribute 'sort'"),
        (lambda a: cells.tanh(a, 2), "", "tanh() takes 1 positional argument but 2 were given"),  # pyright: ignore[reportCallIssue]
        (lambda a: cells.where(a == 0, a, 2), "", "where: the condition must be a comparison"),
        (lambda a: tanh(a, 2), "", "tanh() takes 1 positional argument but 2 were given"),  # pyright: ignore[reportCallIssue]
        (lambda a: tanh(), "", "tanh() missing 1 required positional argument: 'x'"),  # pyright: ignore[reportCallIssue]
        (lambda a: a @ a, "@: use a gate, which is a matrix product", "unsupported operand type(s) for @"),
        (lambda a: where(a, 1, 2), "", "where: the condition must be a comparison (<, <=, >, >=) of arguments, got a"),
        (lambda a: where(a == 0, a, 2), "", "where: the condition must be a comparison"),
    ],
)
def test_what_cannot_be_traced(equations, hint, reason):
    text = refusal(TypeError, equations)
    start = f"cell mine: its equations must use only {LANGUAGE} on a; {hint + '; ' * bool(hint)}tracing them failed: "
    assert text.startswith(start)
    assert reason in text.removeprefix(start)


@pytest.mark.parametrize(
    ("equations", "culprit", "on", "hint"),
    [
        (lambda a: tanh(a) + sympy.sin(a), "sin(a)", "a", "; sin: use longlag.cells.sin"),
        (lambda a: sympy.Max(a, 0) * 2, "Max(0, a)", "a", "; Max: use maximum"),
        (lambda a: sympy.exp(a), "exp(a)", "a", "; exp: use longlag.cells.exp"),
        (lambda a: sympy.atan(a), "atan(a)", "a", "; atan: use tanh or another sigmoid"),
        (lambda a: sympy.gamma(a), "gamma(a)", "a", ""),
        (lambda a: a > 0, "a > 0", "a", "; a comparison: use where(a > b, x, y)"),
        (lambda a: 2**a, "2**a", "a", ""),
        (lambda a: tanh(a) ** a, "tanh(a)**a", "a", ""),
        (lambda a: a + sympy.pi, "pi", "constants", ""),
        (lambda a: a + math.inf, "oo", "constants", ""),
        (lambda a: a * sigmoid(math.nan), "nan", "constants", ""),
    ],
)
def test_what_is_outside_the_language(equations, culprit, on, hint):
    assert refusal(TypeError, equations) == (
        f"cell mine: y uses {culprit} on {on}, which is not differentiable or not in the language of cells "
        f"({LANGUAGE}){hint}"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"surrogate": "arctan"},
            "surrogate must be one of 'atan', 'sigmoid', 'fast_sigmoid', 'triangle', 'rectangle', 'gaussian', "
            "got 'arctan'",
        ),
        ({"width": 0}, "width must be a positive number, got 0"),
        ({"width": math.inf}, "width must be a positive number, got inf"),
    ],
)  # fmt: skip
def test_spikes_that_are_refused(options, text):
    assert refusal(ValueError, lambda a: spike(a, **options)) == f"spike: {text}"


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
        (lambda a, b: tanh(a + b), {}, "argument 'b' is neither a gate, a state, a param, an input nor 'y'"),
        (lambda a, *b: tanh(a), {}, "argument 'b' is neither a gate, a state, a param, an input nor 'y'"),
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
        ({"gates": "a b:z"}, f"gate 'b' {READS}; 'z' in 'z' is not declared"),
        ({"gates": "a b:x:y"}, f"gate 'b' {READS}, got 'x:y'"),
        ({"gates": ["a:x", "b:tanh(y"]}, f"gate 'b' {READS}, got 'tanh(y'"),
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
        ({"gates": "a m:y", "dense": False}, "gate 'm' reads y through U, but dense=False has no U"),
        ({"gates": "a", "params": "p", "fixed": {"p": 1}}, "'p' is declared 2 times"),
        ({"gates": "a", "inputs": "dt", "noise": "dt"}, "'dt' is declared 2 times"),
    ],
)
def test_names_and_marks(declaration, text):
    equations = eval(f"lambda {', '.join(['a', 'b'][: 1 + ('b:' in str(declaration))])}: tanh(a)")
    assert refusal(ValueError, equations, **declaration) == f"cell mine: {text}"


def test_products_of_a_step_do_not_build_on_each_other():
    with pytest.raises(ValueError, match="gate 'n' reads a product with the gate 'm', which itself reads a product"):

        @cell(gates=["r", "m: sigmoid(r)*y", "n: sigmoid(m)*y"])
        def mine(r, m, n):
            return tanh(r + m + n)


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        ({"fixed": "tau"}, "fixed must map names to numbers, as in {\"tau\": 0.1}, got 'tau'"),
        ({"fixed": {"tau": "0.1"}}, "the value of 'tau' must be a number, got '0.1'"),
        ({"gates": [1, 2]}, "gates must be names in a string or a list, got [1, 2]"),
    ],
)
def test_declarations_of_the_wrong_type(declaration, text):
    assert refusal(TypeError, lambda a: tanh(a), **declaration) == f"cell mine: {text}"


def test_the_brackets_are_missing():
    with pytest.raises(TypeError, match=r'^cell mine: write @cell\(gates="…"\) with brackets, and name the net inputs'):

        @cell
        def mine(a):
            return tanh(a)


def test_names_may_be_a_list():
    @cell(gates=["a", "n: x"], states=("c",))
    def mine(a, n, c):
        return tanh(a + c), n

    assert (mine.gates, mine.input_gates, mine.recurrent_gates, mine.states) == (("a", "n"), ("a", "n"), ("a",), ("c",))


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
    made = cell(gates="a")(lambda a: where(a > 0, cells.gelu(a), cells.log(2)) * maximum(a, cells.erf(a)))
    assert made.inputs == ("a",)


def test_every_public_function_is_exported():
    assert set(LANGUAGE.split(", ")[:-1]) < set(dir(cells))
    assert all(callable(getattr(cells, name)) for name in LANGUAGE.split(", ")[:-1])
