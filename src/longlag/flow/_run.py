"""A run of a layer, linearised at every step: the one place where flow's Jacobians come from.

B sequences, T steps; the whole state of a layer, all its parts and levels, is one vector of n numbers.
Step t reads x(t) and states[t] and gives y(t) and states[t + 1]; A(t) = ∂states[t+1]/∂states[t] is its Jacobian.
Products with A(t) and A(t)ᵀ act on p columns at once, (B, n, p).
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from longlag.layers import GRU, LSTM, LSTM97, EchoState, Elman, Jordan, Recurrent
from longlag.layers._door import Sequences
from longlag.layers._module import Layer, State
from longlag.layers._network import Network
from longlag.layers._stack import Stack


class NonFinite(ValueError):
    """States that are not numbers; ``step`` is where they begin, −1 for the initial state."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Run(abc.ABC):
    """What every analysis works on."""

    x: Tensor  # (T, B, I)
    states: Tensor  # (T + 1, B, n)
    outputs: Tensor  # (T, B, O)

    @abc.abstractmethod
    def push(self, t: int, ds: Tensor) -> Tensor:
        """A(t) ds, (B, n, p): what a change before step t has become after it."""

    @abc.abstractmethod
    def pull(self, t: int, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        """An error after step t brought back before it.

        Args:
            ds: (B, n, p) error of the state after step t; dy: (B, O, p) error of the output y(t), if any.

        Returns:
            A(t)ᵀ ds + (∂y(t)/∂state)ᵀ dy, (B, n, p); and a function giving the error of x(t), (B, I, p).
        """

    @abc.abstractmethod
    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts of a state, as the layer hands them out for a batch, as vectors (B, n)."""

    @abc.abstractmethod
    def parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The inverse of `flat`."""

    @property
    def size(self) -> int:
        """n."""
        return self.states.shape[-1]

    @property
    def steps(self) -> int:
        return len(self.x)

    def eye(self) -> Tensor:
        """The identity of every sequence, (B, n, n)."""
        eye = torch.eye(self.size, dtype=self.states.dtype, device=self.states.device)
        return eye.expand(self.states.shape[1], -1, -1)

    def jacobian(self, t: int) -> Tensor:
        """A(t), (B, n, n)."""
        return self.pull(t, self.eye())[0].mT


class StepRun(Run):
    """Any layer, through reverse-mode derivatives of its own ``step``."""

    def __init__(self, layer: Layer, s: Sequences, state: Sequence[Tensor]) -> None:
        self.layer, self.x = layer, s.x
        self.axis = 0 if isinstance(layer, Network) else 1  # where a part of the state keeps its sequences
        self.shapes = [part.movedim(self.axis, 0).shape[1:] for part in state]
        states, outputs = [self.flat(state)], []
        with plainly(layer):
            for x in s.x.unbind(0):
                y, new = self._step(x, states[-1])
                outputs.append(y)
                states.append(new)
        self.states, self.outputs = torch.stack(states), torch.stack(outputs)

    @torch.no_grad()
    def push(self, t: int, ds: Tensor) -> Tensor:
        # The pull is linear, so its own pull is the push. (Forward-mode AD would say the same, but loading it warns.)
        with plainly(self.layer):
            back = vjp(lambda s: self._step(self.x[t], s)[1], self.states[t])[1]
            forth = vjp(lambda d: back(d)[0], torch.zeros_like(self.states[t]))[1]
        return vmap(forth)(ds.movedim(-1, 0))[0].movedim(0, -1)

    @torch.no_grad()
    def pull(self, t: int, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        if dy is None:
            dy = ds.new_zeros(*self.outputs.shape[1:], ds.shape[-1])
        with plainly(self.layer):
            back = vjp(self._step, self.x[t], self.states[t])[1]
        dx, before = vmap(lambda d_y, d_s: back((d_y, d_s)))(dy.movedim(-1, 0), ds.movedim(-1, 0))
        return before.movedim(0, -1), lambda: dx.movedim(0, -1)

    def _step(self, x: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.parts(flat)
        y, new = self.layer.step(x, parts[0] if len(parts) == 1 else parts)
        return y, self.flat((new,) if isinstance(new, Tensor) else new)

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        rows = [part.movedim(self.axis, 0).flatten(1) for part in parts]
        return torch.cat(rows, -1) if rows else self.x.new_zeros(self.x.shape[1], 0)

    def parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        pieces = flat.split([shape.numel() for shape in self.shapes], -1) if self.shapes else ()
        return tuple(p.unflatten(-1, shape).movedim(0, self.axis) for p, shape in zip(pieces, self.shapes))


@torch.no_grad()
def linearise(owner: str, module: nn.Module, x: Tensor, state: State | None = None) -> Run:
    """Run ``module`` over x and keep what its Jacobians need. Dropout is off.

    Args:
        owner: who asks, for messages.
        module: a longlag layer, or ``torch.nn.RNN``, ``LSTM`` or ``GRU``.
        x: in the layer's own layout, batched or not.
        state: as the layer takes it.
    """
    from longlag.flow._cell_run import CellRun

    layer = as_layer(owner, module)
    s = layer._enter(x, None, None)
    keeper = layer.reservoir if isinstance(layer, EchoState) else layer
    assert isinstance(keeper, Stack | Network)
    parts = keeper._enter_state(state, s)
    run = CellRun(layer, s, parts) if isinstance(layer, Recurrent) else StepRun(layer, s, parts)
    check_finite(owner, layer._name, run.states)
    return run


def as_layer(owner: str, module: nn.Module) -> Layer:
    """``module`` as a layer whose steps can be taken one by one, sharing its weights; or a refusal by name."""
    name = type(module).__name__
    if type(module) in (nn.RNN, nn.LSTM, nn.GRU):
        layer = _of_torch(owner, module)
    elif isinstance(module, Layer):
        layer = module
    else:
        raise TypeError(f"{owner}: cannot analyse {name}: it must be a longlag layer or torch.nn.RNN, LSTM or GRU")
    if layer.bidirectional:
        raise ValueError(f"{owner}: cannot analyse {name} with bidirectional=True: its second half reads the future")
    if isinstance(layer, Jordan) and layer.feedback == "sample":
        raise ValueError(f"{owner}: cannot analyse {name} with feedback='sample': what it feeds back is drawn anew")
    return layer


def _of_torch(owner: str, module: nn.Module) -> Layer:
    assert isinstance(module, nn.RNNBase)
    if module.proj_size:
        raise ValueError(f"{owner}: cannot analyse {type(module).__name__} with proj_size={module.proj_size}")
    sizes = (module.input_size, module.hidden_size, module.num_layers)
    options: dict[str, Any] = {
        "bias": module.bias,
        "batch_first": module.batch_first,
        "bidirectional": module.bidirectional,
        "device": "meta",  # no weights of its own
    }
    if isinstance(module, nn.RNN):
        layer: Layer = Elman(*sizes, nonlinearity=module.nonlinearity, **options)
    else:
        layer = (LSTM if isinstance(module, nn.LSTM) else GRU)(*sizes, **options)
    layer.load_state_dict(module.state_dict(), assign=True)
    return layer.eval()


def check_finite(owner: str, name: str, states: Tensor) -> None:
    """Refuse states (T + 1, B, n) that are not numbers; say where they begin."""
    bad = ~torch.isfinite(states).all(-1)
    if bool(bad.any()):
        t, sequence = (int(i) for i in bad.nonzero()[0])
        where = f"step {t - 1}" if t else "the initial state"
        text = f"{owner}: states of {name} must be finite, got NaN or infinity first at {where}, sequence {sequence}"
        raise NonFinite(text, t - 1)


def time_step(owner: str, t: int | None, steps: int) -> int:
    """``t`` as an index of 0..T−1; None is the last, negative ones count from the end."""
    if t is None:
        return steps - 1
    if not isinstance(t, int) or isinstance(t, bool) or not -steps <= t < steps:
        raise ValueError(f"{owner}: t must be a step of 0..{steps - 1}, got {t!r}")
    return t % steps


@contextlib.contextmanager
def plainly(layer: nn.Module) -> Iterator[None]:
    """Without dropout, and on the engine whose operations ``torch.func`` can transform."""
    modules = list(layer.modules())
    modes = [module.training for module in modules]
    engines = {module: module.engine for module in modules if isinstance(module, Recurrent | LSTM97 | Jordan)}
    layer.eval()
    for module in engines:
        module.engine = "reference"
    try:
        yield
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode
        for module, engine in engines.items():
            module.engine = engine
