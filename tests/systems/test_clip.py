"""CLIP as an equation, against torch's."""

import pytest
import torch
from helpers import randn, same


def clip(gradients, limit):
    """ν over all parameters, and the gradients scaled down to norm ``limit`` if ν is above it."""
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))
    if not torch.isfinite(norm) or norm <= limit:
        return norm, gradients
    return norm, [g * limit / norm for g in gradients]  # [CLIP 5]


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize(("limit", "clips"), [(0.5, True), (2.0, True), (100.0, False)])
def test_torch_clips_to_the_global_norm(limit, clips):
    gradients = [randn(4, 3, seed=1), randn(5, seed=2)]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients):
        parameter.grad = g.clone()
    norm, clipped = clip(gradients, limit)
    same(norm, flat(gradients).norm())
    same(torch.nn.utils.clip_grad_norm_(parameters, limit), norm)
    theirs = [p.grad * (1 + 1e-6 / norm) for p in parameters] if clips else [p.grad for p in parameters]
    same(theirs, clipped)  # torch divides by ν + 1e-6
    assert bool(norm > limit) == clips
    same(flat(clipped).norm(), torch.tensor(limit).double() if clips else norm)


def test_the_direction_stays():
    gradients = [randn(4, 3, seed=1), randn(5, seed=2)]
    whole, clamped = flat(clip(gradients, 0.5)[1]), flat(gradients).clamp(-0.5, 0.5)
    assert abs(float(torch.cosine_similarity(whole, flat(gradients), 0)) - 1) < 1e-12
    assert torch.cosine_similarity(clamped, flat(gradients), 0) < 0.99  # clamping each entry changes it


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_norm_that_is_not_finite_is_reported(bad):
    norm, gradients = clip([torch.tensor([1.0, bad])], 1.0)
    assert not torch.isfinite(norm)  # the caller skips the update
    assert gradients[0][0] == 1
