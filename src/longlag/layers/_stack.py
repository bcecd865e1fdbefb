"""Stacks of layers in one or two directions: everything except the recurrence."""

from __future__ import annotations

import abc
import inspect
import warnings
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import dropout

from longlag.layers import validation
from longlag.layers.layer import Layer
from longlag.layers.state import State, StateSpec


class Options(TypedDict, total=False):
    """Keyword options of every stacked layer; see `Recurrent`."""

    norm: str | None
    recurrent_dropout: float
    engine: str
    recurrent: str
    recurrent_mask: Tensor | None
    recurrent_signs: Tensor | None
    learn_initial_state: bool
    proj_size: int
    device: torch.device | str | None
    dtype: torch.dtype | None


OPTION_DEFAULTS = {
    "norm": None, "recurrent_dropout": 0.0, "engine": "auto", "recurrent": "dense", "recurrent_mask": None,
    "recurrent_signs": None, "learn_initial_state": False, "proj_size": 0, "device": None, "dtype": None,
}  # fmt: skip


def _keyword(name: str, default: Any, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


class Stack(Layer):
    """A stack of recurrent layers with the calling convention of ``torch.nn``.

    A subclass names the parts of one layer's state and their widths, creates the weights, and runs one layer.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """List ``**options`` in the signature, for ``help`` and for ``torch.nn.utils.skip_init``."""
        super().__init_subclass__(**kwargs)
        signature = inspect.signature(cls.__init__)
        given = [p for p in list(signature.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
        known, hints = {p.name for p in given}, Options.__annotations__
        if len(given) + 1 < len(signature.parameters):
            added = [(name, hint) for name, hint in hints.items() if name not in known]
            given += [_keyword(name, OPTION_DEFAULTS[name], hint.__forward_arg__) for name, hint in added]
        cls.__signature__ = signature.replace(parameters=given)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size = validation.positive(self.class_name, "input_size", input_size)
        self.hidden_size = validation.positive(self.class_name, "hidden_size", hidden_size)
        self.num_layers = validation.positive(self.class_name, "num_layers", num_layers)
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout = validation.probability(self.class_name, "dropout", dropout)
        self.recurrent_dropout = validation.probability(self.class_name, "recurrent_dropout", recurrent_dropout)
        if dropout and num_layers == 1:
            warnings.warn(
                f"{self.class_name}: dropout acts between layers, so num_layers=1 makes it idle", stacklevel=4
            )

    # ------------------------------------------------------------------------------- what a subclass provides
    @property
    @abc.abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parts of one layer's state: name -> shape per sequence."""

    @abc.abstractmethod
    def _run(
        self, k: int, x: Tensor, state: tuple[Tensor, ...] | None, sequences: validation.Sequences, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run layer k over x (T, B, I) from state (each (B, …)) or zeros; odd k run backwards if bidirectional.

        Returns the outputs and the final state, each part (1, B, …).
        """

    # ----------------------------------------------------------------------------------------------- calling
    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        **numbers: Tensor | float,
    ) -> tuple[Tensor, State]:
        """Run over whole sequences.

        Args:
            x: (T, B, I), (B, T, I) if ``batch_first``, or (T, I) for one sequence.
            state: as returned; each part is (num_layers · directions, B, H), zeros by default.
            lengths: (B,) ints on x's device: outputs beyond a length are 0; the state is that at the length.
            reset: (T, B) bool ((B, T) if ``batch_first``): a new sequence starts at that step, from zeros.
            numbers: the inputs per step of the cell, if it has any, by name: (T, B) or (T, B, H), laid out as x, or
                one number.

        Returns:
            outputs like x with H · directions features, and the state.
        """
        s = validation.sequences(self, x, lengths, reset)
        self._read_numbers(numbers, s)
        states = None if state is None and self._zeros_by_default else self.starting_state(state, s)
        mask = self._recurrent_mask(s) if self.training and self.recurrent_dropout else None
        if self.num_layers == 1 and not self.bidirectional:  # the same without loops
            start = states and tuple([part[0] for part in states])
            y, final = self._run(0, s.x, start, s, None if mask is None else mask[0])
            return s.restore(y), self._final([final], s)
        y, finals = s.x, []
        for layer in range(self.num_layers):
            outputs = []
            for k in range(layer * self.directions, (layer + 1) * self.directions):
                start = states and tuple([part[k] for part in states])
                output, final = self._run(k, y, start, s, None if mask is None else mask[k])
                outputs.append(output)
                finals.append(final)
            y = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
            if layer < self.num_layers - 1:
                y = dropout(y, self.dropout, self.training)
        return s.restore(y), self._final(finals, s)

    def _read_numbers(self, given: dict[str, Any], s: validation.Sequences) -> None:
        """Validate the inputs per step into ``s.numbers``; most layers have none."""
        for name in given:
            raise TypeError(f"{self.class_name}: {name!r} is no argument of a call")

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction, as in ``torch.nn``."""
        ends = [self.suffix(k) for k in range(self.num_layers * self.directions)]
        return [[value for name, value in self.named_parameters() if name.endswith(end)] for end in ends]

    def flatten_parameters(self) -> None:
        """Does nothing: there is no cuDNN buffer to compact. Existing code calls it."""

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def suffix(self, k: int) -> str:
        """The end of the parameter names of layer k; k counts layers, then directions."""
        layer, backwards = divmod(k, self.directions)
        return f"_l{layer}{'_reverse' if backwards else ''}"

    def _runs_backwards(self, k: int) -> bool:
        return bool(k % self.directions)

    @property
    def width(self) -> int:
        """Features of a layer's output in one direction."""
        return self.hidden_size

    def input_sizes(self) -> list[int]:
        """Input features of each layer and direction."""
        first = [self.input_size] * self.directions
        return first + [self.width * self.directions] * (self.directions * (self.num_layers - 1))

    @property
    def state_spec(self) -> StateSpec:
        n = self.num_layers * self.directions
        return StateSpec({name: (n, *shape) for name, shape in self.state_shapes.items()}, batch_axis=1)

    def _final(self, finals: Sequence[tuple[Tensor, ...]], s: validation.Sequences) -> State:
        parts = finals[0] if len(finals) == 1 else tuple(torch.cat(part) for part in zip(*finals))
        parts = parts if s.batched else tuple(part.squeeze(1) for part in parts)
        return parts[0] if len(parts) == 1 else parts

    def _recurrent_mask(self, s: validation.Sequences) -> Tensor:
        """One mask per layer, sequence and unit, kept for the whole sequence (Gal and Ghahramani 2016)."""
        keep = 1 - self.recurrent_dropout
        mask = s.x.new_empty(self.num_layers * self.directions, s.batch, self.hidden_size).bernoulli_(keep)
        # Local loops that are not dropped keep their gain: u/(1−p) could exceed 1, and the unit would diverge.
        return mask / keep if self._scales_mask else mask

    _scales_mask = True
    _zeros_by_default = False  # whether `_run` takes None for a state of zeros

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        shown = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        shown["recurrent_dropout"] = 0.0
        return text + "".join(f", {k}={getattr(self, k)}" for k, v in shown.items() if getattr(self, k) != v)
