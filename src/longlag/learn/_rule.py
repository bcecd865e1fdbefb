"""The base of every learning rule: three methods (start, step, gradients), an explicit trace, validation."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.layers import Layer, State, check_layer, validation
from longlag.layers.units import UnitGraph
from longlag.learn._state import Values, copied, where

Errors = Tensor | Sequence[Tensor | None]


class Unsupported(Exception):
    """The compiled real-time engine does not serve a learner; the message is the reason."""


class Method(abc.ABC):
    """A rule's algorithm for one layer. A method holds structure only; all numbers are in the trace's values."""

    layer: Layer

    @abc.abstractmethod
    def start(self, batch: int) -> Values:
        """The values before the first step."""

    @abc.abstractmethod
    def step(
        self,
        x: Tensor,
        state: State | None,
        values: Values,
        active: Tensor | None,
        reset: Tensor | None,
        teacher: Tensor | None,
    ) -> tuple[Tensor, State, Values]:
        """Advance the layer and the values by one step."""

    @abc.abstractmethod
    def gradients(self, values: Values, dy: Errors) -> dict[str, Tensor]:
        """Parameter name -> gradient, for every parameter that requires one."""

    def units(self) -> tuple[UnitGraph, str, set[str]]:
        """For the compiled engine: the layer's units, the engine's rule for them, and the groups that are trained."""
        raise Unsupported("the rule is not one of the engine's")

    def settled(self, values: Values) -> Values:
        """The values after the last step, with nothing left to do for it; ``values`` may be reused."""
        return values


class Trace:
    """The memory of a rule, one trace per sample.

    `Rule.step` reuses the buffers of its argument for the trace it returns; call `clone` first to keep a copy.

    Attributes:
        values: nested dicts of tensors, the whole memory.
        shape: of the last step's output; None before the first.
    """

    def __init__(self, method: Method, batch_size: int, values: Values, shape: tuple[int, ...] | None = None) -> None:
        self.method, self.batch_size, self.values, self.shape = method, batch_size, values, shape

    def saved_values(self) -> Values:
        """The values that a later step reads; ``"now"``, the step that `gradients` reads, is left out."""
        return {key: None if key == "now" else value for key, value in self.values.items()}

    def clone(self) -> Trace:
        """A copy that later steps do not change."""
        return Trace(self.method, self.batch_size, copied(self.values), self.shape)


class Rule(abc.ABC):
    """A learning rule turns the error of the present step, dL/dy(t), into gradients of the parameters.

    ``trace = rule.start(layer, batch_size)``, then at every step ``y, state, trace = rule.step(layer, x_t, state,
    trace)`` and, where there is an error, ``rule.gradients(layer, trace, dy_t)`` before the weights change. The
    gradient of a sequence's loss is the sum of these over its steps, exact while the weights are constant.

    >>> import torch, longlag as ll
    >>> layer, rule = ll.LSTM(3, 5), ll.learn.RTRL()
    >>> state, trace = None, rule.start(layer, batch_size=2)
    >>> for x_t in torch.randn(7, 2, 3):
    ...     y, state, trace = rule.step(layer, x_t, state, trace)
    >>> grads = rule.gradients(layer, trace, torch.ones_like(y))  # of y.sum()
    >>> sorted(grads) == sorted(name for name, _ in layer.named_parameters())
    True
    """

    deferred = False  # True: `gradients` accepts the errors of several steps at once, which is cheaper
    window: int | None = None  # most steps that a deferred rule accepts at once; None: no limit

    @abc.abstractmethod
    def _method(self, layer: Layer) -> Method:
        """This rule's method for the layer; the ValueError of an unsupported layer names rules that support it."""

    @property
    def _name(self) -> str:
        return type(self).__name__

    def start(self, layer: Layer, batch_size: int) -> Trace:
        """The trace before the first step: no parameter has influenced anything yet."""
        _check_layer(self._name, layer)
        validation.positive(self._name, "batch_size", batch_size)
        method = self._method(layer)
        with torch.no_grad():
            return Trace(method, batch_size, method.start(batch_size))

    def step(
        self,
        layer: Layer,
        x_t: Tensor,
        state: State | None,
        trace: Trace,
        *,
        active: Tensor | None = None,
        reset: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> tuple[Tensor, State, Trace]:
        """One step of the layer and of the trace.

        Args:
            x_t: (B, I).
            state: as the layer returns it; None is the initial state.
            trace: from `start` or the last step; its buffers are reused.
            active: (B,) bool; an inactive sample keeps its state and trace, and its output is 0 (ragged sequences).
            reset: (B,) bool; where true, the sample's state and trace are reset before this step.
            teacher: for `Jordan`: classes (B,) or vectors (B, l), fed back in place of the output.

        Returns:
            y (B, …), the new state, and the new trace, none of them attached to a graph.
        """
        self._enter(layer, x_t, trace, active, reset)
        if teacher is not None:
            teacher = _teacher(self._name, layer, teacher, trace.batch_size)
        if active is not None:
            x_t = where(active, x_t, 0.0)  # padding may hold any value, even NaN
        active, reset, teacher = copied((active, reset, teacher))  # traces keep references to them
        with torch.no_grad():
            y, state, values = trace.method.step(x_t, state, trace.values, active, reset, teacher)
        return y, state, Trace(trace.method, trace.batch_size, values, tuple(y.shape))

    def gradients(self, layer: Layer, trace: Trace, dy_t: Errors) -> dict[str, Tensor]:
        """Gradients of the loss whose derivative by the last step's output is dy_t (B, …).

        A `deferred` rule also takes a sequence: the errors of the last steps, oldest first, None for no error.

        Returns:
            parameter name -> gradient summed over the batch, for every parameter that requires one.
        """
        self._same(layer, trace)
        if trace.shape is None:
            raise ValueError(f"{self._name}: gradients needs a step first, and the trace has none")
        if not isinstance(dy_t, Tensor) and not self.deferred:
            raise TypeError(f"{self._name}: dy_t must be a tensor, got {type(dy_t).__name__}")
        for d in [dy_t] if isinstance(dy_t, Tensor) else dy_t:
            if d is not None:
                validation.like(self._name, "dy_t", d, trace.method.layer)
                if d.shape != trace.shape:
                    raise validation.ShapeError(
                        f"{self._name}: dy_t must have shape {trace.shape}, got {tuple(d.shape)}"
                    )
        with torch.no_grad():
            return _separate(trace.method.gradients(trace.values, dy_t))

    def _enter(self, layer: Layer, x_t: Tensor, trace: Trace, active: Tensor | None, reset: Tensor | None) -> None:
        self._same(layer, trace)
        validation.like(self._name, "x_t", x_t, trace.method.layer)
        if x_t.shape != (trace.batch_size, layer.input_size):
            wanted = (trace.batch_size, layer.input_size)
            raise validation.ShapeError(f"{self._name}: x_t must have shape {wanted} (B, I), got {tuple(x_t.shape)}")
        for argument, mask in (("active", active), ("reset", reset)):
            if mask is None:
                continue
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (trace.batch_size,):
                got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
                raise ValueError(
                    f"{self._name}: {argument} must be a bool tensor of shape ({trace.batch_size},), got {got}"
                )

    def _same(self, layer: Layer, trace: Trace) -> None:
        if trace.method.layer is not layer:
            raise ValueError(f"{self._name}: trace must come from start() with this {layer.class_name}")

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _separate(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give every parameter a separate tensor: equal gradients (of the two biases) may be one tensor."""
    seen: set[int] = set()
    for name, gradient in gradients.items():
        if id(gradient) in seen:
            gradients[name] = gradient.clone()
        seen.add(id(gradient))
    return gradients


def _check_layer(owner: str, layer: Any) -> None:
    check_layer(owner, "layer", layer)
    if layer.bidirectional:
        raise ValueError(
            f"{owner}: {layer.class_name} is bidirectional and reads the future, so no rule can go step by step; "
            "run it over whole sequences under autograd"
        )
    if getattr(layer, "learns_initial_state", False):
        raise ValueError(f"{owner}: {layer.class_name} must have learn_initial_state=False: a stream has no beginning")
    if layer.cell is not None and layer.cell.per_step:
        raise ValueError(
            f"{owner}: the cell {layer.cell.name} has inputs per step; pass longlag.layers.Joined(layer), whose input "
            "holds them as features"
        )
    drops = {name: getattr(layer, name, 0.0) for name in ("dropout", "recurrent_dropout")}
    for name, p in drops.items():
        if p and layer.training:
            raise ValueError(f"{owner}: {layer.class_name} must be in eval() or have {name}=0, got {name}={p}")


def _teacher(owner: str, layer: Layer, teacher: Any, batch: int) -> Tensor:
    """The teacher's output as vectors (B, l)."""
    size = layer.teacher_size
    if size is None:
        raise ValueError(f"{owner}: teacher is for Jordan, which feeds its output back; got {layer.class_name}")
    if isinstance(teacher, Tensor) and teacher.dtype == torch.long and teacher.shape == (batch,):
        low, high = int(teacher.min()), int(teacher.max())
        if low < 0 or high >= size:
            raise ValueError(f"{owner}: teacher must lie in 0..{size - 1}, got {low if low < 0 else high}")
        return torch.nn.functional.one_hot(teacher, size).to(layer.dtype)
    validation.like(owner, "teacher", teacher, layer)
    if teacher.shape != (batch, size):
        got = tuple(teacher.shape)
        raise validation.ShapeError(f"{owner}: teacher must be classes ({batch},) or {(batch, size)}, got {got}")
    return teacher
