"""`Layer`: the base class of all layers, and the interface that other packages use."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from longlag.engines import calls_forward
from longlag.layers.linear import AutogradStep, LinearStep, influential
from longlag.layers.packed import run_packed
from longlag.layers.state import State, StateSpec
from longlag.layers.units import NotLocal, UnitGraph
from longlag.layers.validation import Sequences, ShapeError, autocast, check_finite, like, state_parts

if TYPE_CHECKING:
    from longlag.cells import Cell


_TORCH_NAMES = {"input": "x", "hx": "state"}


class Layer(nn.Module, abc.ABC):
    """Base of all layers: ``layer(x, state=None, *, lengths=None, reset=None) -> (output, state)``.

    Learning rules, flow analysis and encoder-decoders use only these members: `state_spec`, `initial_state`, `step`,
    `linearise`, `local_units`. A new subclass therefore works with all of them. The shortest way to write a layer is
    a subclass of `StepLayer`.

    Attributes:
        input_size: features of the input.
        batch_first: whether inputs and outputs are (B, T, …).
        bidirectional: whether half of the units read the future; `step` then raises.
        recurrent_dropout: probability that a fed-back value is dropped while training.
        engine: ``"auto"`` or the name of an engine.
        cell: the cell of a layer made of one cell, else None.
        teacher_size: features of the teacher's output, fed back in place of the layer's; None if not supported.
        draws: whether a step draws random numbers.
        has_partials: whether `linearise` has closed-form derivatives; otherwise autograd computes them.
        made_with: the arguments of the constructor, positional and by keyword.

    >>> import torch, longlag as ll
    >>> class Counter(ll.layers.StepLayer):
    ...     '''s(t) = s(t−1) + w x(t)'''
    ...     def __init__(self):
    ...         super().__init__(input_size=1)
    ...         self.weight = torch.nn.Parameter(torch.ones(1))
    ...     state_sizes = {"s": 1}
    ...     def advance(self, x, state):
    ...         s = state[0] + self.weight * x
    ...         return s, (s,)
    >>> y, s = Counter()(torch.ones(5, 2, 1), lengths=torch.tensor([5, 3]))
    >>> s.flatten()
    tensor([5., 3.], grad_fn=<ViewBackward0>)
    """

    input_size: int
    batch_first: bool = False
    bidirectional: bool = False
    recurrent_dropout: float = 0.0
    engine: str = "reference"
    cell: Cell | None = None
    teacher_size: int | None = None
    draws: bool = False
    has_partials: bool = False
    made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        layer = super().__new__(cls)
        object.__setattr__(layer, "made_with", (args, options))  # nn.Module's own needs its __init__ first
        return layer

    def __init__(self) -> None:
        super().__init__()
        self.class_name = type(self).__name__  # for messages; torch's parametrize changes the class later
        self.register_load_state_dict_pre_hook(_refuse_non_finite)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Run the layer. torch's argument names ``input`` and ``hx`` are accepted too, and a ``PackedSequence``."""
        if kwargs:
            for theirs, ours in _TORCH_NAMES.items():
                if theirs in kwargs:
                    kwargs[ours] = kwargs.pop(theirs)
        x = args[0] if args else kwargs.get("x")
        if type(x) is not Tensor and isinstance(x, Proxy):
            return _traced(self, args, kwargs)
        if type(x) is not Tensor and isinstance(x, PackedSequence):
            return run_packed(self, *args, **kwargs)  # pyright: ignore[reportReturnType]  (the output is packed)
        if calls_forward(self):
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _refuse_quantisation(self, qconfig: Any) -> None:
        if qconfig is not None:
            raise TypeError(
                f"{self.class_name}: layers of longlag are not quantised; name the types that shall be, "
                "as in quantize_dynamic(model, {torch.nn.Linear})"
            )

    qconfig = property(None, _refuse_quantisation)  # torch.ao.quantization sets it

    # ------------------------------------------------------------------------------------------------------ state
    @property
    @abc.abstractmethod
    def state_spec(self) -> StateSpec:
        """The parts of the state, their shapes, and the batch axis."""

    def initial_state(self, batch: int) -> State:
        """The state before the first step: zeros, unless a layer overrides this method."""
        return self.state_spec.whole(self.state_spec.zeros(batch, self.any_weight))

    def validate_state(self, state: State | None, batch: int) -> tuple[Tensor, ...]:
        """The parts of a state for a batch; None is the initial state."""
        spec = self.state_spec
        if state is None:
            return spec.parts(self.initial_state(batch))
        return state_parts(self.class_name, state, spec.names, spec.batched(batch), self.any_weight)

    def starting_state(self, state: State | None, s: Sequences) -> tuple[Tensor, ...]:
        """The parts of a state for validated sequences; those of one sequence get a batch axis."""
        if state is None or s.batched:
            return self.validate_state(state, s.batch)
        spec = self.state_spec
        parts = state_parts(self.class_name, state, spec.names, list(spec.shapes.values()), self.any_weight)
        return tuple(part.unsqueeze(spec.batch_axis) for part in parts)

    @property
    def any_weight(self) -> Tensor:
        """One of the weights: inputs must have its dtype and device."""
        return next(self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.any_weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.any_weight.device

    # ------------------------------------------------------------------------------------------------------- step
    def step(self, x_t: Tensor, state: State | None = None, **numbers: Tensor | float) -> tuple[Tensor, State]:
        """One step: x_t (B, I) or (I,). Pass the returned state to the next step.

        Args:
            numbers: the cell's inputs per step, by name, (B,) or (B, H).
        """
        self._refuse_two_directions("step")
        if self.training and self.recurrent_dropout:
            raise ValueError(
                f"{self.class_name}: step needs recurrent_dropout=0 or eval(): a mask lasts a whole sequence"
            )
        like(self.class_name, "input", autocast(x_t, self.any_weight), self.any_weight)
        if x_t.dim() not in (1, 2):
            raise ShapeError(f"{self.class_name}: input of step must be (B, I) or (I,), got shape {tuple(x_t.shape)}")
        time = 1 if self.batch_first and x_t.dim() == 2 else 0
        given = {name: v.unsqueeze(time) if isinstance(v, Tensor) else v for name, v in numbers.items()}
        y, new = self(x_t.unsqueeze(time), state, **given)
        return y.squeeze(time), new

    def trajectory(self, x: Tensor, state: State | None = None) -> tuple[Tensor, Tensor]:
        """All outputs and states of a run over x (T, B, I). Dropout is off.

        Returns:
            outputs (T, B, O); states (T + 1, B, n) before, between and after the steps (`StateSpec.flatten`).

        >>> import torch, longlag as ll
        >>> y, states = ll.LSTM(3, 5).trajectory(torch.randn(7, 2, 3))
        >>> y.shape, states.shape
        (torch.Size([7, 2, 5]), torch.Size([8, 2, 10]))
        """
        self._refuse_two_directions("trajectory")
        layer, spec = self.for_analysis(), self.state_spec
        parts = self.validate_state(state, x.shape[1])
        states, outputs, now = [parts], [], spec.whole(parts)
        for x_t in x.unbind(0):
            y, now = layer.step(x_t, now)
            outputs.append(y)
            states.append(spec.parts(now))
        if not spec.shapes:
            return torch.stack(outputs), x.new_zeros(len(states), x.shape[1], 0)
        return torch.stack(outputs), torch.stack([spec.flatten(parts) for parts in states])

    def _refuse_two_directions(self, method: str) -> None:
        if self.bidirectional:
            text = f"{self.class_name}: {method} needs bidirectional=False: the other direction reads the future"
            raise ValueError(text)

    def taught_step(self, x_t: Tensor, state: State | None, teacher: Tensor | None) -> tuple[Tensor, State]:
        """One step of a batch; ``teacher`` (B, teacher_size) is fed back in place of the output."""
        time = 1 if self.batch_first else 0
        given = {} if teacher is None else {"targets": teacher.unsqueeze(time)}
        y, new = self(x_t.unsqueeze(time), state, **given)
        return y.squeeze(time), new

    def engine_for(self, x: Tensor) -> str:
        """Which engine would run x, and why."""
        return "reference: the step is torch code, which is not compiled"

    # ------------------------------------------------------------------------------------------------- derivatives
    def linearise(self, x_t: Tensor, state: State | None = None, *, teacher: Tensor | None = None) -> LinearStep:
        """One step of a batch together with its derivatives, at x_t (B, I) and a state. Dropout is off.

        >>> import torch, longlag as ll
        >>> layer = ll.LSTM(3, 5)
        >>> step = layer.linearise(torch.randn(2, 3))
        >>> step.y.shape, step.jacobian().shape  # the state has 10 numbers
        (torch.Size([2, 5]), torch.Size([2, 10, 10]))
        """
        return AutogradStep(self.for_analysis(), x_t, self.validate_state(state, len(x_t)), teacher)

    def state_parameters(self) -> list[str]:
        """Paths of the parameters on which the new state depends."""
        return influential(self.for_analysis())

    def local_units(self, *, cut: bool = False) -> UnitGraph:
        """The step as groups of units, each fed back only to itself; exact gradients then cost O(w) per step.

        Args:
            cut: treat values fed back through matrices as constants, as the truncated gradient of 1997 does.

        Raises:
            NotLocal: with the reason why the layer is not such a graph.
        """
        raise NotLocal("has no cuts of 1997" if cut else "has no local feedback")

    def gain_bound(self) -> tuple[float, str] | None:
        """A bound on ‖∂state(t+1)/∂state(t)‖₂ for every input, and the bound's formula; None if no bound is known."""
        return None

    def for_analysis(self) -> Self:
        """A view of this layer that shares its weights: dropout off, engine ``"reference"``."""
        return _view(self)

    # ------------------------------------------------------------------------------------------------------ loading
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch, but a call that fails changes nothing."""
        own = self.state_dict()
        wrong = [
            f"{name} must have shape {tuple(own[name].shape)}, got {tuple(value.shape)}"
            for name, value in state_dict.items()
            if name in own and isinstance(value, torch.Tensor) and value.shape != own[name].shape
        ]
        wrong += [
            f"{name} must be a tensor of real numbers, got {getattr(value, 'dtype', type(value).__name__)}"
            for name, value in state_dict.items()
            if name in own and (not isinstance(value, torch.Tensor) or value.is_complex())
        ]
        if strict:
            wrong += [f"{name} is missing" for name in own if name not in state_dict]
            wrong += [f"{name} is not a parameter of this layer" for name in state_dict if name not in own]
        if wrong:
            raise ShapeError(f"{self.class_name}: cannot load state_dict: {'; '.join(wrong)}")
        return super().load_state_dict(state_dict, strict, assign)


def check_layer(owner: str, argument: str, value: Any, or_else: str = "") -> Layer:
    """``value`` if it is a layer; ``or_else`` names what else the caller accepts."""
    if not isinstance(value, Layer):
        raise TypeError(f"{owner}: {argument} must be a longlag layer{or_else}, got {type(value).__name__}")
    return value


def _traced(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The layer as one node of a ``torch.fx`` graph, as the recurrent layers of ``torch.nn`` are."""
    proxy = args[0] if args else kwargs["x"]
    return proxy.tracer.create_proxy("call_module", proxy.tracer.path_of_module(layer), args, kwargs)


def _view(module: Any) -> Any:
    """A shallow copy of a module and its submodules: the same parameters, other settings."""
    view = module.__class__.__new__(module.__class__)
    view.__dict__.update(module.__dict__)
    view._modules = {name: child if child is None else _view(child) for name, child in module._modules.items()}
    view.training = False
    if isinstance(module, Layer):
        view.engine = "reference"
    return view


def _refuse_non_finite(module: Layer, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    check_finite(module.class_name, state_dict, prefix)
