"""A run of a layer, linearised at every step. All Jacobians of this package come from here.

B sequences, T steps; the state of a layer, all its parts and levels, is one row of n numbers (`StateSpec.flatten`).
Step t reads x(t) and states[t] and gives y(t) and states[t + 1]; A(t) = ∂states[t+1]/∂states[t] is its Jacobian.
Products with A(t) and A(t)ᵀ act on p columns at once, (B, n, p).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.layers import GRU, LSTM, Elman, Layer, LinearStep, State, check_layer, validation


class NonFinite(ValueError):
    """Non-finite states; ``step`` is the first step that gives one, −1 for the initial state."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Run:
    """A layer along a sequence: states, outputs, and products with the Jacobian of each step.

    Attributes:
        x: (T, B, I); states: (T + 1, B, n), before, between and after the steps; outputs: (T, B, O).
        linear: all steps linearised at once, T·B samples.
    """

    def __init__(self, layer: Layer, x: Tensor, state: tuple[Tensor, ...]) -> None:
        self.layer, self.x, self.spec = layer.for_analysis(), x, layer.state_spec
        self.outputs, self.states = self.layer.trajectory(x, self.spec.whole(state))
        before = self.spec.unflatten(self.states[:-1].flatten(0, 1))  # time is one more batch axis
        self.linear: LinearStep = self.layer.linearise(x.flatten(0, 1), self.spec.whole(before))
        self._steps: dict[int, LinearStep] = {}

    def at(self, t: int) -> LinearStep:
        """Step t, B samples."""
        if t not in self._steps:  # probes read every step many times
            B = self.x.shape[1]
            self._steps[t] = self.linear.at(slice(t * B, (t + 1) * B))
        return self._steps[t]

    def push(self, t: int, ds: Tensor) -> Tensor:
        """A(t) ds, (B, n, p): a change of the state before step t carried through the step."""
        return self.at(t).push(ds)

    def pull(self, t: int, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        """An error after step t propagated back through the step; see `LinearStep.pull`."""
        return self.at(t).pull(ds, dy)

    def flatten(self, parts: tuple[Tensor, ...]) -> Tensor:
        """The parts of a state for the batch as rows (B, n)."""
        return self.spec.flatten(parts) if parts else self.x.new_zeros(self.x.shape[1], 0)

    @property
    def size(self) -> int:
        """n."""
        return self.states.shape[-1]

    @property
    def steps(self) -> int:
        """T."""
        return len(self.x)

    def eye(self) -> Tensor:
        """The identity of every sequence, (B, n, n)."""
        eye = torch.eye(self.size, dtype=self.states.dtype, device=self.states.device)
        return eye.expand(self.states.shape[1], -1, -1)

    def jacobian(self, t: int) -> Tensor:
        """A(t), (B, n, n)."""
        return self.at(t).jacobian()


@torch.no_grad()
def linearise(owner: str, module: nn.Module, x: Tensor, state: State | None = None) -> Run:
    """Run ``module`` over x and linearise every step. Dropout is off; the module is not changed.

    Args:
        owner: the calling function, for messages.
        module: a longlag layer, or ``torch.nn.RNN``, ``LSTM`` or ``GRU``.
        x: in the layer's own layout, batched or not.
        state: as the layer takes it.
    """
    layer = as_layer(owner, module)
    s = validation.sequences(layer, x, None, None)
    with few_threads(layer.state_spec.size):
        run = Run(layer, s.x, layer.starting_state(state, s))
    check_finite(owner, layer.class_name, run.states)
    return run


def as_layer(owner: str, module: nn.Module) -> Layer:
    """``module`` as a layer of one direction that shares its weights; modules that are not recurrent are a TypeError,
    recurrent ones that cannot be analysed a ValueError."""
    name = type(module).__name__
    if type(module) in (nn.RNN, nn.LSTM, nn.GRU):
        layer = _of_torch(owner, module)
    elif isinstance(module, nn.RNNBase):
        raise ValueError(f"{owner}: cannot analyse {name}: a subclass of torch.nn.{module.mode} may compute otherwise")
    else:
        layer = check_layer(owner, "layer", module, or_else=" or torch.nn.RNN, LSTM or GRU")
    if layer.bidirectional:
        raise ValueError(f"{owner}: cannot analyse {name} with bidirectional=True: the second half reads the future")
    if layer.draws:
        raise ValueError(f"{owner}: cannot analyse {name} with feedback='sample': the values fed back are random")
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


def shown(module: nn.Module) -> str:
    """A layer's name in results, which tells whether derivatives are surrogates (`longlag.cells.spike`)."""
    cell = getattr(getattr(module, "layer", module), "cell", None)
    return type(module).__name__ + " (surrogate derivatives)" * bool(getattr(cell, "surrogates", ()))


def check_finite(owner: str, name: str, states: Tensor) -> None:
    """Refuse non-finite states (T + 1, B, n); name the first step and sequence."""
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
