"""Losses of one step: values, derivatives, masks."""

import re

import pytest
import torch
from helpers import randn, same

from longlag.learn import cross_entropy, squared_error


def test_squared_error_is_half_the_sum_so_that_its_derivative_is_the_difference():
    y, d = randn(4, 3).requires_grad_(), randn(4, 3, seed=1)
    loss = squared_error(y, d)
    same(loss, sum(0.5 * (y[b, i] - d[b, i]) ** 2 for b in range(4) for i in range(3)))
    same(torch.autograd.grad(loss, y)[0], y - d)


@pytest.mark.parametrize("classes", [True, False])
def test_cross_entropy_has_derivative_p_minus_y(classes):
    z, d = randn(4, 3).requires_grad_(), randn(4, 3, seed=1).softmax(-1)
    target = torch.tensor([2, 0, 1, 1])
    if classes:
        d = torch.nn.functional.one_hot(target, 3).double()
    loss = cross_entropy(z, target if classes else d)
    p = torch.exp(z) / torch.exp(z).sum(-1, keepdim=True)
    same(loss, -(d * torch.log(p)).sum())
    same(torch.autograd.grad(loss, z)[0], p - d)


@pytest.mark.parametrize("loss", [squared_error, cross_entropy])
def test_what_is_masked_is_not_scored_and_may_hold_anything(loss):
    y, d = randn(4, 3).requires_grad_(), randn(4, 3, seed=1).softmax(-1)
    mask = torch.tensor([True, False, True, False])
    wanted = loss(y[mask], d[mask])
    d[~mask] = float("nan")
    found = loss(y, d, mask)
    same(found, wanted)
    gradient = torch.autograd.grad(found, y)[0]
    assert not bool(gradient[~mask].any())
    same(gradient[mask], torch.autograd.grad(wanted, y)[0][mask])
    weights = torch.tensor([0.5, 0.0, 2.0, 0.0], dtype=torch.float64)
    same(loss(y, d, weights), 0.5 * loss(y[:1], d[:1]) + 2 * loss(y[2:3], d[2:3]))


def test_masked_classes_may_be_out_of_range():
    z, mask = randn(3, 4), torch.tensor([True, False, True])
    same(cross_entropy(z, torch.tensor([1, -100, 2]), mask), cross_entropy(z[[0, 2]], torch.tensor([1, 2])))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda y: squared_error(y, y[0]), "squared_error: target must have shape (4, 3), got (3,)"),
        (lambda y: squared_error(y, y, torch.ones(3)), "squared_error: mask must have shape (4,), got (3,)"),
        (
            lambda y: cross_entropy(y, torch.zeros(4)),
            "cross_entropy: target must be int64 classes (4,) or dis",
        ),
        (lambda y: cross_entropy(y, torch.tensor([0, 1, 2, 3])), "cross_entropy: target must lie in 0..2, got 3"),
        (lambda y: cross_entropy(y, torch.tensor([0, -1, 2, 2])), "cross_entropy: target must lie in 0..2, got -1"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call(randn(4, 3))
