"""Measurements of a recurrent layer during training: gradients by lag, gates, dead and drifting units."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.flow._run import Run, as_layer, linearise
from longlag.layers import Layer, State

EDGE = 0.1  # a gate in the outer tenth of its range, on either side, is saturated
STILL = 1e-3  # an output whose standard deviation over steps and sequences is below this is dead
FAR, STEADY = 3.0, 0.9  # a state beyond ±3 that moved the same way in 9 of 10 steps drifts

RecurrentModule = Layer | nn.RNNBase


@dataclass
class ForwardCall:
    """Arguments of one forward call, and gradients of its results once the backward pass has run. Nothing is copied."""

    module: RecurrentModule
    x: Tensor
    state: tuple[Tensor, ...] | None
    lengths: Tensor | None
    gradients: dict[int, Tensor] = field(default_factory=dict)  # of y (0) and of the parts of the final state (1, …)

    def record_gradients(self, output: tuple[Tensor, State]) -> tuple[Tensor, State]:
        """Views of the output and state whose gradients are recorded; the layer may go on using its own tensors."""
        y, state = output
        values = [v.view_as(v) for v in ((y, state) if isinstance(state, Tensor) else (y, *state))]
        for i, value in enumerate(values):
            if value.requires_grad:
                value.register_hook(functools.partial(self._gradient, i))
        return values[0], values[1] if isinstance(state, Tensor) else tuple(values[1:])

    def _gradient(self, i: int, gradient: Tensor | None) -> None:
        if gradient is not None:  # custom operators may return None
            self.gradients[i] = gradient

    @property
    def state_axis(self) -> int:
        """The dimension of a part of the state that counts sequences."""
        return as_layer("watch", self.module).state_spec.batch_axis

    def time_first(self, value: Tensor) -> Tensor:
        """x, y or a gradient of it as (T, B, …)."""
        if self.x.dim() == 2:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if self.module.batch_first else value

    def batch(self, part: Tensor, which: slice) -> Tensor:
        """Some sequences of a part of the state."""
        part = part.unsqueeze(self.state_axis) if self.x.dim() == 2 else part
        return part[which] if self.state_axis == 0 else part[:, which]


@dataclass(frozen=True)
class LayerSample:
    """Measurements of one layer at one update: numbers by name, and the indices of dead and drifting units."""

    numbers: dict[str, float]
    dead: list[int]
    drifting: list[int]


@torch.no_grad()
def sample(call: ForwardCall, sequences: int) -> LayerSample:
    """Run a few sequences of a call again, without dropout, and measure."""
    steps, few = len(call.time_first(call.x)), slice(sequences)
    if call.lengths is not None:  # only the longest, which has no padding
        longest = int(call.lengths.argmax())
        steps, few = int(call.lengths[longest]), slice(longest, longest + 1)
    run = _run_again(call, steps, few)
    with few_threads(run.size):
        numbers = dict(_by_lag(run, *_errors(call, run, few)))
    for gate, share in run.linear.gates.items():
        numbers[f"gate/{gate}/low"] = float((share < EDGE).float().mean())
        numbers[f"gate/{gate}/high"] = float((share > 1 - EDGE).float().mean())
    dead = run.outputs.flatten(0, 1).std(0, correction=0) < STILL
    one_way = run.states.diff(dim=0).sign().mean(0).abs() >= 2 * STEADY - 1  # (B, n)
    drifting = (one_way & (run.states[-1].abs() > FAR)).any(0)
    numbers |= {"dead": float(dead.float().mean()), "drifting": float(drifting.float().mean())}
    return LayerSample(numbers, dead.nonzero().flatten().tolist(), drifting.nonzero().flatten().tolist())


def _run_again(call: ForwardCall, steps: int, few: slice) -> Run:
    x = call.time_first(call.x.detach())[:steps, few]
    parts = None if call.state is None else tuple(call.batch(part.detach(), few) for part in call.state)
    state = parts[0] if parts is not None and len(parts) == 1 else parts
    return linearise("watch", call.module, x.transpose(0, 1) if call.module.batch_first else x, state)


def _errors(call: ForwardCall, run: Run, few: slice) -> tuple[Tensor, Tensor]:
    """∂L/∂y (T, B, O) and ∂L/∂(final state) (B, n), zero where the loss does not read them."""
    dy = torch.zeros_like(run.outputs)
    if 0 in call.gradients:
        dy = call.time_first(call.gradients[0])[: run.steps, few]
    found = {i: call.batch(d, few) for i, d in call.gradients.items() if i}
    parts = [found.get(i, torch.zeros_like(part)) for i, part in enumerate(run.spec.unflatten(run.states[-1]), 1)]
    return dy, run.flatten(tuple(parts))


def _by_lag(run: Run, dy: Tensor, ds: Tensor) -> Iterator[tuple[str, float]]:
    """‖∂L_t/∂state(t−q)‖ for q = 1, 2, 4, …, mean over sequences; t: the last step that the loss reads."""
    read = (dy != 0).any(-1)  # (T, B)
    read[-1] |= (ds != 0).any(-1)
    if not run.size or not bool(read.any()):
        return
    steps = torch.arange(1, run.steps + 1, device=dy.device).unsqueeze(-1)
    last = (steps * read).amax(0) - 1  # (B,), −1 if the loss reads nothing of a sequence
    error, norms = ds.unsqueeze(-1), []  # ds is 0 except where last = T − 1
    for t in reversed(range(run.steps)):
        now = torch.where((last == t).unsqueeze(-1), dy[t], torch.zeros_like(dy[t]))
        error, _ = run.pull(t, error, now.unsqueeze(-1))
        norms.append(error.norm(dim=(1, 2)))
    table = torch.stack(norms[::-1])  # [t, b]: gradient of the state that step t reads
    q = 1
    while q <= int(last.max()) + 1:
        row = last - q + 1  # the step that reads state(last − q)
        values = table[row.clamp(min=0), torch.arange(len(last), device=row.device)]
        yield f"lag/{q}", float(values[row >= 0].mean())
        q *= 2
