"""The contract of engines as a tool of tests: a problem drawn at random, the results of an engine, their comparison."""

import torch
from torch.utils._pytree import tree_map

from longlag import engines
from longlag.engines import Norm, Weights

# float32: relative to the largest entry; weights are scaled so that the dynamics do not amplify rounding
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


def problem(cell, dtype, *, T, B, inputs, H, norm, ragged, reset, mask):
    """Everything `engines.run` takes, drawn at random; gradients are wanted for all floating tensors."""
    generator = torch.Generator().manual_seed(T * 100 + B * 10 + H)

    def draw(*shape, scale=1.0):
        value = (torch.rand(*shape, dtype=torch.float64, generator=generator) * 2 - 1) * scale
        return value.to(dtype).requires_grad_()

    gx, gy = len(cell.input_gates), len(cell.recurrent_gates)
    given = {
        "x": draw(T, B, inputs),
        "W": draw(gx * H, inputs, scale=inputs**-0.5),
        "b": (draw(gx * H, scale=0.5), draw(gy * H, scale=0.5)) if cell.dense else draw(gx * H, scale=0.5),
        "U": draw(gy * H, H, scale=H**-0.5) if cell.dense else None,
        "state": [draw(B, H) for _ in cell.fed_back],
        "params": [(draw(H, scale=0.2).detach() + 0.9).requires_grad_() for _ in cell.params],
        "numbers": [(draw(T, B, H, scale=0.5).detach() + 0.8).requires_grad_() for _ in cell.per_step],
    }
    options = {
        "norm": Norm(draw(len(cell.gates), H), draw(len(cell.gates), H), 1e-5) if norm else None,
        "mask": (torch.rand(B, H, generator=generator) < 0.7).to(dtype) if mask else None,
        "lengths": torch.randint(1, T + 1, (B,), generator=generator) if ragged else None,
        "reset": torch.rand(T, B, generator=generator) < 0.3 if reset else None,
    }
    return given, options, leaves_of(given, options["norm"])


def leaves_of(given, norm):
    """All that gradients are wanted for."""
    biases = given["b"] if isinstance(given["b"], tuple) else [given["b"]]
    leaves = [given["x"], given["W"], *biases, given["U"], *(norm or ())[:2], *given["state"], *given["params"]]
    leaves += given["numbers"]
    return [value for value in leaves if value is not None]


def results(engine, cell, given, options, leaves, reverse):
    x, W, b, U, state, params, numbers = given.values()
    w = Weights(W, b, U, None, tuple(params), options["norm"])
    how = {name: options[name] for name in ("mask", "lengths", "reset")}
    y, final = engines.run(engine, cell, x, w, state, **how, reverse=reverse, numbers=numbers)
    weights = torch.Generator().manual_seed(7)
    seen = [y, *final]
    terms = [(v * torch.randn(v.shape, dtype=torch.float64, generator=weights).to(v)).sum() for v in seen]
    loss = torch.stack(terms).sum()
    return [*seen, *torch.autograd.grad(loss, leaves)]


def assert_same(ours, theirs, dtype, exact=None):
    """Relative to the largest entry; where ``exact`` is given, not more than 4 times the reference's own error."""
    for k, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
        if mine.numel():
            assert torch.isfinite(mine).all()
            allowed = TOLERANCE[dtype] * reference.abs().max().clamp(min=1e-3)
            if exact is not None:
                allowed = torch.maximum(allowed, 4 * (reference - exact[k]).abs().max())
            assert (mine - reference).abs().max() <= allowed


def in_float64(given, options):
    """The same problem in float64, and its leaves."""
    wide = tree_map(
        lambda v: v.detach().double().requires_grad_() if v is not None and v.is_floating_point() else v,
        (given, {**options, "norm": None}),
        is_leaf=lambda v: v is None or isinstance(v, torch.Tensor),
    )
    norm = options["norm"]
    if norm:
        gamma, beta = (v.detach().double().requires_grad_() for v in norm[:2])
        norm = Norm(gamma, beta, 1e-5)
    given, options = wide[0], {**wide[1], "norm": norm}
    return given, options, leaves_of(given, norm)
