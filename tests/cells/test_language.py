"""The functions of the language: derivatives as torch defines them, ties included; surrogates; branches not taken."""

import math

import pytest
import torch
from helpers import randn, same
from torch.nn import functional as F

from longlag import cells
from longlag.cells import cell

ONE = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "softplus": F.softplus, "abs": torch.abs, "sin": torch.sin, "cos": torch.cos,
    "erf": torch.erf, "gelu": F.gelu, "silu": F.silu,
}  # fmt: skip
TWO = {"maximum": torch.maximum, "minimum": torch.minimum}


def derivative(function, *values):
    leaves = [v.clone().requires_grad_() for v in values]
    y = function(*leaves)
    return y, torch.autograd.grad(y.sum(), leaves, materialize_grads=True)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_argument(name):
    made = cell(gates="a")(lambda a: getattr(cells, name)(a))
    positive = name in ("log", "sqrt")
    x = torch.cat([randn(200).abs() + 1e-3 if positive else 3 * randn(200), torch.zeros(0 if positive else 3)]).double()
    y, (dx,) = derivative(ONE[name], x)
    same(made.step(x)[0], y)
    same(made.step_back(x, torch.ones_like(x))[0], dx)
    same(getattr(cells, name)(x), y)
    assert getattr(cells, name)(0.5) == pytest.approx(float(ONE[name](torch.tensor(0.5, dtype=torch.float64))), 1e-15)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_arguments_share_ties(name):
    made = cell(gates="a b")(lambda a, b: getattr(cells, name)(a, b))
    a, b = (torch.cat([randn(50, seed=seed), torch.tensor([0.0, 1.5, math.inf])]).double() for seed in (1, 2))
    y, slopes = derivative(TWO[name], a, b)
    same(made.step(a, b)[0].nan_to_num(), y.nan_to_num())
    assert all(map(torch.equal, made.step_back(a, b, torch.ones_like(a)), slopes))
    assert slopes[0][-3] == 0.5
    with_number = cell(gates="a")(lambda a: getattr(cells, name)(0.25, a))
    x = torch.tensor([0.25, -1, 1], dtype=torch.float64)
    y, (dx,) = derivative(lambda x: TWO[name](torch.full_like(x, 0.25), x), x)
    assert torch.equal(with_number.step(x)[0], y)
    assert torch.equal(with_number.step_back(x, torch.ones(3))[0], dx)


@pytest.mark.parametrize("compare", ["a > b", "a >= b", "a < b", "a <= b", "(a > b) & (a < 1)", "(a > b) | (a < -1)"])
def test_choices(compare):
    def equations(a, b):
        return cells.where(eval(compare), a * b, a - 2 * b)

    made = cell(gates="a b")(equations)
    a, b = randn(60, seed=1), randn(60, seed=2)
    a[:5] = b[:5]
    y, slopes = derivative(lambda a, b: torch.where(eval(compare), a * b, a - 2 * b), a, b)
    same(made.step(a, b)[0], y)
    same(equations(a, b), y)
    same(made.step_back(a, b, torch.ones_like(a)), slopes)


def test_a_branch_that_is_not_taken_gives_no_nan():
    made = cell(gates="a")(lambda a: cells.where(a > 0, cells.log(a) * cells.sqrt(a), 3 * a))
    a = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(made.step(a)[0].sum(), a, create_graph=True)
    wanted = torch.tensor([3, 3, 1 / math.sqrt(2) + math.log(2) / (2 * math.sqrt(2))], dtype=torch.float64)
    same(slope, wanted)
    same(made.step_back(a, torch.ones(3))[0], wanted)
    (curvature,) = torch.autograd.grad(slope.sum(), a)
    assert torch.isfinite(curvature).all()


def test_a_choice_that_is_always_the_same_is_none():
    made = cell(gates="a")(lambda a: cells.where(a**2 >= 0, a, 7))
    assert str(made.expressions[0]) == "a"


SLOPES = {
    "atan": lambda v, w: 1 / (w * (1 + (math.pi * v / w) ** 2)),
    "sigmoid": lambda v, w: torch.sigmoid(v / w) * torch.sigmoid(-v / w) / w,
    "fast_sigmoid": lambda v, w: 1 / (1 + v.abs() / w) ** 2,
    "triangle": lambda v, w: (1 - v.abs() / w).clamp(min=0) / w,
    "rectangle": lambda v, w: (v.abs() < w / 2).to(v) / w,
    "gaussian": lambda v, w: torch.exp(-v * v / (2 * w * w)) / math.sqrt(2 * math.pi * w * w),
}


@pytest.mark.parametrize("surrogate", SLOPES)
def test_a_spike_is_a_step_with_the_derivative_it_declares(surrogate):
    """First and second derivatives are those of a torch.autograd.Function of the same definition."""
    width = 0.7

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return (v > 0).to(v.dtype)

        @staticmethod
        def backward(ctx, *d):
            return d[0] * SLOPES[surrogate](ctx.saved_tensors[0], width)

    made = cell(gates="a", states="v")(lambda a, v: (cells.spike(v + a * a - 0.5, surrogate, width), v * a))
    a, v = (x.requires_grad_() for x in (randn(40, seed=1), randn(40, seed=2)))
    d = randn(40, seed=3), randn(40, seed=4)

    def both(f):
        first = torch.autograd.grad(f(a, v), (a, v), d, create_graph=True)
        return first, torch.autograd.grad((first[0] ** 2 + first[1] ** 2).sum(), (a, v))

    spike, derivatives = Spike.apply, {}
    wanted = both(lambda a, v: (spike(v + a * a - 0.5), v * a))
    same(both(made.step), wanted)
    same(both(lambda a, v: made(a, v)), wanted)
    same(made.step_back(a, v, *d), wanted[0])
    derivatives = made.partials(a, v)
    same(derivatives["y", "v"], SLOPES[surrogate](v + a * a - 0.5, width))
    assert f"surrogate {surrogate} 0.7" in repr(made)
    assert set(made.step(a, v)[0].tolist()) == {0.0, 1.0}


def test_the_surrogate_belongs_to_the_key():
    keys = {_spiking(surrogate, width).key for surrogate in ("atan", "triangle") for width in (1, 2)}
    assert len(keys) == 4


def _spiking(surrogate, width):
    return cell(gates="a")(lambda a: cells.spike(a, surrogate, width))


def test_what_is_detached_is_a_constant():
    made = cell(gates="a", states="v")(lambda a, v: (cells.detach(a) * v, v + cells.detach(v) * a))
    a, v = (x.requires_grad_() for x in (randn(5, seed=1), randn(5, seed=2)))
    d = randn(5, seed=3), randn(5, seed=4)
    wanted = torch.autograd.grad((a.detach() * v, v + v.detach() * a), (a, v), d)
    same(torch.autograd.grad(made.step(a, v), (a, v), d), wanted)
    same(made.step_back(a, v, *d), wanted)
    same(torch.autograd.grad(made(a, v), (a, v), d), wanted)


def test_other_engines_see_values_only():
    """The assignments that engines print have neither surrogates nor constants: derivatives contain them already."""
    made = cell(gates="a", states="v")(lambda a, v: (cells.spike(v), cells.detach(v) * a))
    for which in ("step", "adjoint", "partials"):
        text = repr(made.assignments(which).lines)
        assert "spike" not in text
        assert "detach" not in text
