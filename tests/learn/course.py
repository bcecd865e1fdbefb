"""A rule run over whole sequences, and the same through autograd: what the tests of the rules compare."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from helpers import LAYERS, ONE_WAY, gradients, owner, randn, some_state, whole
from torch import Tensor

from longlag.learn import Rule

# Every layer of the registry, and deeper ones of the kinds that stack: name -> make(seed=...)
STACKS = ("elman", "lstm", "lstm_norm", "gru", "gru_norm_torch", "leaky_learned", "local_static", "local_net")
STACKS += ("local_activation", "local_net_norm", "skip", "user_everything", "user_oscillator", "user_delay")
MAKERS = {name: LAYERS[name] for name in ONE_WAY}
for name in STACKS:
    MAKERS[f"{name} x2"] = lambda name=name, **options: LAYERS[name](size=3, num_layers=2, **options)
for name in ("gru", "local_activation", "local_net"):
    MAKERS[f"{name} x3"] = lambda name=name, **options: LAYERS[name](2, 2, num_layers=3, **options)


class Case(NamedTuple):
    """Inputs, an initial state, and errors dy on some of the steps."""

    x: Tensor  # (T, B, I)
    state: Any
    dy: Tensor  # (T, B, O)
    lengths: Tensor | None = None
    reset: Tensor | None = None
    teacher: Tensor | None = None  # (T, B, l)


def make(name: str, seed: int = 0) -> Any:
    """A layer of `MAKERS` whose weights are large enough for the past to matter."""
    layer = MAKERS[name](seed=seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter += 0.4 * torch.randn(parameter.shape, dtype=parameter.dtype)
    return layer


def case(layer: Any, T: int = 7, *, ragged: bool = True, taught: bool = False, seed: int = 3) -> Case:
    """Three sequences, of lengths T, 3 and T − 1 with a reset in between if ``ragged``."""
    B = 3
    x, state = randn(T, B, layer.input_size, seed=seed), whole(some_state(layer, B, seed + 1))
    y, _ = layer(x)
    dy = randn(*y.shape, seed=seed + 2) * (randn(T, B, 1, seed=seed + 3) > -0.3)  # some steps are not scored
    if not ragged:
        return Case(x, state, dy)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[2, 1] = reset[4, 2] = reset[0, 0] = True
    teacher = randn(T, B, layer.output_size, seed=seed + 4).softmax(-1) if taught else None
    return Case(x, state, dy, torch.tensor([T, 3, T - 1]), reset, teacher)


def forward(rule: Rule, layer: Any, c: Case) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """Outputs, final state, and the sum of the gradients over the steps."""
    trace, state, total, outputs = rule.start(layer, c.x.shape[1]), c.state, {}, []
    for t, x_t in enumerate(c.x):
        y, state, trace = rule.step(
            layer,
            x_t,
            state,
            trace,
            active=None if c.lengths is None else t < c.lengths,
            reset=None if c.reset is None else c.reset[t],
            teacher=None if c.teacher is None else c.teacher[t],
        )
        outputs.append(y)
        if bool((c.dy[t] != 0).any()):
            for name, gradient in rule.gradients(layer, trace, c.dy[t]).items():
                total[name] = total.get(name, 0) + gradient
    return torch.stack(outputs), state, total


def autograd(layer: Any, c: Case) -> tuple[Tensor, Any, dict[str, Tensor]]:
    """The same by running the layer over the sequences and back."""
    given = {} if c.teacher is None else {"targets": c.teacher}
    y, state = layer(c.x, c.state, lengths=c.lengths, reset=c.reset, **given)
    return y, state, gradients((y * c.dy).sum(), layer)


def serves(rule: Rule, layer: Any) -> bool:
    """Whether a rule claims this layer."""
    try:
        rule.start(layer, 1)
    except ValueError as refusal:
        assert str(refusal).startswith(f"{type(rule).__name__}: {owner(layer)}")  # noqa: PT017
        return False
    return True
