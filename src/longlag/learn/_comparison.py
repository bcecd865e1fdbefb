"""Learning rules beside each other on one layer: how close to the exact gradient, at what memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longlag.layers import Layer, check_layer, validation
from longlag.learn._rule import Rule, Trace
from longlag.learn._state import mapped
from longlag.results import Result
from longlag.style import COLOURS, GREY, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RuleComparison(Result):
    """One row per rule.

    Attributes:
        rules: names.
        cosine: between the rule's gradient and the exact one, all parameters together.
        norm: of the rule's gradient over that of the exact one.
        memory: bytes of the trace between steps, all sequences together. (`BPTT` keeps the inputs; while it goes back,
            it needs all states, too.)
        time: seconds per step of all sequences, gradients included.
        title: of the picture.
    """

    rules: tuple[str, ...]
    cosine: Tensor
    norm: Tensor
    memory: Tensor
    time: Tensor
    title: str

    def columns(self) -> dict[str, Sequence[str] | Tensor]:
        names = ("cosine", "norm", "memory", "time")
        return {"rule": self.rules, **{name: getattr(self, name) for name in names}}

    def __repr__(self) -> str:
        width = max(4, *map(len, self.rules))
        lines = [f"{'rule':<{width}}  cosine   norm      memory   time per step"]
        for name, cosine, norm, memory, seconds in zip(*self.columns().values()):
            numbers = f"{cosine:6.3f}  {norm:5.2f}  {memory / 1024:6.1f} KiB  {1e6 * seconds:11.1f} µs"
            lines.append(f"{name:<{width}}  {numbers}")
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Four panels with a row per rule: cosine, norm, memory, time."""
        panels = (
            ("Cosine with the exact gradient", self.cosine, 1.0),
            ("Norm / exact norm", self.norm, 1.0),
            ("Memory of the trace (KiB)", self.memory / 1024, None),
            ("Time per step (µs)", 1e6 * self.time, None),
        )
        rows = range(len(self.rules))[::-1]
        with style():
            figure, every = new_figure(1, 4, width=10.5, height=1.3 + 0.3 * len(rows))
            for k, (axes, (title, values, exact)) in enumerate(zip(every, panels)):
                axes.set_title(title, fontsize=9)
                axes.set_yticks(list(rows), self.rules if k == 0 else [""] * len(rows))
                axes.set_ylim(-0.6, len(rows) - 0.4)
                if exact is not None:
                    axes.axvline(exact, color=GREY, lw=0.8)
                    axes.set_xlim(min(0.0, float(values.min()) - 0.05), max(1.1, 1.08 * float(values.max())))
                else:
                    axes.set_xscale("log")
                    axes.set_xlim(float(values.min()) / 2, 2 * float(values.max()))
                axes.plot(values, list(rows), "o", color=COLOURS[k % 7])
            figure.suptitle(self.title, fontsize=10)
        return figure


def compare(
    layer: Layer,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    rules: Sequence[Rule] | Mapping[str, Rule],
    *,
    title: str = "",
) -> RuleComparison:
    """Run rules over the same sequences and compare their gradients with that of autograd through time.

    Times are of this machine, in Python; `Online.run` compiles some of the rules.

    Args:
        layer: in eval() if it has dropout.
        x: inputs (T, B, I), or (B, T, I) if the layer is ``batch_first``.
        loss: of the outputs of the whole sequences, a scalar; an error dL/dy(t) of zeros at all sequences makes a step
            one without a target.
        rules: rules, or names and rules. Random rules give one draw.
        title: of the picture; by default the layer and the number of steps.

    >>> import torch, longlag as ll
    >>> from longlag.learn import RFLO, RTRL, SnAp, compare
    >>> layer, x = ll.GRU(3, 8), torch.randn(30, 4, 3)
    >>> found = compare(layer, x, lambda y: (y[-1] - 1).square().sum(), [RTRL(), SnAp(1), RFLO()])
    >>> found.rules, round(float(found.cosine[0]), 4)
    (('RTRL()', 'SnAp(1)', 'RFLO()'), 1.0)
    """
    check_layer("compare", "layer", layer)
    named = dict(rules) if isinstance(rules, Mapping) else {repr(rule): rule for rule in rules}
    for name, rule in named.items():
        if not isinstance(rule, Rule):
            raise TypeError(f"compare: rules must be rules of longlag.learn, got {type(rule).__name__} for {name}")
    if not named:
        raise ValueError("compare: rules must name at least one rule, got none")
    validation.like("compare", "x", x, layer)
    if x.dim() != 3:
        raise validation.ShapeError(f"compare: x must have 3 dimensions, got shape {tuple(x.shape)}")
    exact, errors = _exact(layer, x, loss)
    steps = x.transpose(0, 1) if layer.batch_first else x
    rows = []
    for rule in named.values():
        _run(layer, rule, steps[:2], errors[:2])  # the first call of some functions is slow
        start = time.perf_counter()
        gradient, trace = _run(layer, rule, steps, errors)
        spent = (time.perf_counter() - start) / len(steps)
        cosine = float(torch.nn.functional.cosine_similarity(gradient, exact, dim=0))
        rows.append((cosine, float(gradient.norm() / exact.norm()), _bytes(trace), spent))
    cosine, norm, memory, spent = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return RuleComparison(tuple(named), cosine, norm, memory, spent, title or f"{layer!r}, {len(steps)} steps")


def _exact(layer: Layer, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """The gradient through time as one vector, and dL/dy(t) for every step, None where it is zero."""
    trained = [p for p in layer.parameters() if p.requires_grad]
    with torch.enable_grad():
        y, _ = layer(x)
        value = loss(y)
    if not isinstance(value, Tensor) or value.dim():
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"compare: loss must return a scalar tensor, got {got}")
    dy, *grads = torch.autograd.grad(value, [y, *trained], materialize_grads=True)
    exact = torch.cat([g.flatten() for g in grads])
    if not bool(exact.any()) or not bool(torch.isfinite(exact).all()):
        raise ValueError("compare: the exact gradient must be finite and not zero")
    by_step = (dy.transpose(0, 1) if layer.batch_first else dy).unbind(0)
    return exact, [d if bool(d.any()) else None for d in by_step]


def _run(layer: Layer, rule: Rule, steps: Tensor, errors: list[Tensor | None]) -> tuple[Tensor, Trace]:
    """The rule's gradient as one vector, and its trace after the last step."""
    trace, state = rule.start(layer, steps.shape[1]), None
    total = {name: torch.zeros_like(p) for name, p in layer.named_parameters() if p.requires_grad}
    waiting: list[Tensor | None] = []
    for t, (x_t, dy) in enumerate(zip(steps, errors)):
        _, state, trace = rule.step(layer, x_t, state, trace)
        if rule.deferred:
            waiting.append(dy)
            if len(waiting) == rule.window or t + 1 == len(steps):
                _add(total, rule.gradients(layer, trace, waiting))
                waiting = []
        elif dy is not None:
            _add(total, rule.gradients(layer, trace, dy))
    return torch.cat([g.flatten() for g in total.values()]), trace


def _add(total: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
    for name, gradient in gradients.items():
        total[name] += gradient


def _bytes(trace: Trace) -> int:
    """Memory of the trace's tensors."""
    sizes: list[int] = []
    mapped(lambda value: sizes.append(value.numel() * value.element_size()), trace.saved_values())
    return sum(sizes)
