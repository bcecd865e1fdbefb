"""What is exported: a layer with or without a read-out, or a CRF's decoding; as a function of plain tensors."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longlag.export._check import ExportError, check_dtype, difference
from longlag.export._portable import portable
from longlag.layers import Layer
from longlag.learn import Online
from longlag.structured import CRF


class Subject(nn.Module, abc.ABC):
    """A module from tensors to a tuple of tensors, with what an export needs to know of it.

    Attributes:
        inputs, outputs: names.
        free: for each input, axis -> name of its size.
    """

    inputs: list[str]
    outputs: list[str]
    free: list[dict[int, str]]
    dtype: torch.dtype

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """The free sizes as torch wants them: those of ``*state`` are one tuple."""
        sizes = {name: torch.export.Dim(name) for axes in self.free for name in axes.values()}
        free = [{axis: sizes[name] for axis, name in axes.items()} for axes in self.free]
        named = sum(not name.endswith("_in") for name in self.inputs)
        return (*free[:named], tuple(free[named:])) if named < len(free) else tuple(free)

    @abc.abstractmethod
    def example(self, steps: int, batch: int, generator: torch.Generator) -> list[Tensor]:
        """Random arguments."""


class Network(Subject):
    """A layer over whole sequences: (x, lengths, state parts) -> (output, state parts)."""

    def __init__(self, layer: Layer, readout: nn.Module | None) -> None:
        super().__init__()
        check_dtype(layer.class_name, layer.dtype)
        if layer.draws:
            raise ExportError(
                f"export: {layer.class_name} must not draw random numbers; use feedback='soft' or 'argmax'"
            )
        named = [] if layer.cell is None else [name for name in layer.cell.per_step if name not in layer.cell.noise]
        if named:
            raise ExportError(
                f"export: {layer.class_name} takes {', '.join(named)} besides x; "
                "use ll.layers.Joined(layer), whose input holds these numbers as features"
            )
        self.layer = portable(layer)
        self.readout = None if readout is None else portable(readout)
        self.spec, self.dtype, self.batch_first = layer.state_spec, layer.dtype, layer.batch_first
        self.inputs = ["x", "lengths", *(f"{name}_in" for name in self.spec.names)]
        self.outputs = ["output", *(f"{name}_out" for name in self.spec.names)]
        time, batch = (1, 0) if self.batch_first else (0, 1)
        states = [{self.spec.batch_axis: "batch"} for _ in self.spec.names]
        self.free = [{time: "time", batch: "batch"}, {0: "batch"}, *states]

    def forward(self, x: Tensor, lengths: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return self._finish(*self.layer(x, self._whole(state), lengths=lengths))

    def _whole(self, state: tuple[Tensor, ...]) -> Any:
        return self.spec.whole(state) if state else None

    def _finish(self, y: Tensor, state: Any) -> tuple[Tensor, ...]:
        return (y if self.readout is None else self.readout(y), *self.spec.parts(state))

    def example(self, steps: int, batch: int, generator: torch.Generator) -> list[Tensor]:
        x = self.random(steps, batch, generator)
        lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
        lengths[0] = steps
        return [x.transpose(0, 1) if self.batch_first else x, lengths, *self.some_state(batch, generator)]

    def random(self, steps: int, batch: int, generator: torch.Generator) -> Tensor:
        """Inputs (T, B, I)."""
        size = self.layer.get_submodule("").input_size
        return torch.randn(steps, batch, int(size), generator=generator, dtype=self.dtype)  # pyright: ignore[reportArgumentType]

    def some_state(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        """The state after some steps."""
        x = self.random(3, batch, generator)
        with torch.no_grad():
            _, state = self.layer(x.transpose(0, 1) if self.batch_first else x)
        return list(self.spec.parts(state))


class OneStep(Network):
    """One step of a layer: (x, state parts) -> (output, state parts)."""

    def __init__(self, layer: Layer, readout: nn.Module | None) -> None:
        if layer.bidirectional:
            raise ExportError(
                f"export: {layer.class_name} is bidirectional, and no step can read the future; export whole sequences"
            )
        super().__init__(layer, readout)
        del self.inputs[1], self.free[1]
        self.free[0] = {0: "batch"}

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._finish(*self.layer.step(x, self._whole(state)))  # pyright: ignore[reportCallIssue]

    def example(self, steps: int, batch: int, generator: torch.Generator) -> list[Tensor]:
        return [self.random(1, batch, generator)[0], *self.some_state(batch, generator)]


class Decoding(Subject):
    """The best tags by a CRF: (emissions, mask) -> (paths, scores)."""

    inputs, outputs = ["emissions", "mask"], ["paths", "scores"]

    def __init__(self, crf: CRF) -> None:
        super().__init__()
        self.dtype = crf.transitions.dtype
        check_dtype("CRF", self.dtype)
        self.crf = portable(crf)
        self.crf.engine = "reference"  # pyright: ignore[reportArgumentType]
        self.size, self.batch_first = crf.num_tags, crf.batch_first
        axes = {0: "batch", 1: "time"} if self.batch_first else {0: "time", 1: "batch"}
        self.free = [axes, axes]

    def forward(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.crf.viterbi(emissions, mask)  # pyright: ignore[reportCallIssue]

    def example(self, steps: int, batch: int, generator: torch.Generator) -> list[Tensor]:
        shape = (batch, steps) if self.batch_first else (steps, batch)
        emissions = torch.randn(*shape, self.size, generator=generator, dtype=self.dtype)
        return [emissions, torch.rand(*shape, generator=generator) < 0.8]


def compare(what: Subject, run: Callable[[list[Tensor]], Sequence[Tensor]]) -> float:
    """The largest difference between ``run`` and the reference engine on random sequences."""
    found, generator = 0.0, torch.Generator().manual_seed(1)
    for steps, batch in ((9, 3), (1, 1)):
        arguments = what.example(steps, batch, generator)
        with torch.no_grad():
            found = max(found, difference(run(arguments), what(*arguments)))
    return found


def parts_of(model: Any) -> tuple[Layer, nn.Module | None]:
    """Layer and read-out of a layer or a learner."""
    if isinstance(model, Online):
        return model.layer, model.readout
    if isinstance(model, Layer):
        return model, None
    raise ExportError(
        f"export: model must be a layer of longlag, a learn.Online or a CRF, got {type(model).__name__}; a larger "
        "model that contains layers of longlag goes through torch.onnx.export or torch.export.export itself"
    )


def subject(model: Any, step: bool) -> Subject:
    """The function to be exported."""
    if isinstance(model, CRF) and not step:
        return Decoding(model)
    return (OneStep if step else Network)(*parts_of(model))
