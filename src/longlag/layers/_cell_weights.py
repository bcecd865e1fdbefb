"""The numbers that a layer made of one cell owns: weights, fixed numbers, a learned initial state, noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longlag.cells import Cell
from longlag.layers import structures, validation
from longlag.layers._numbers import check_fixed, check_numbers
from longlag.layers._stack import Stack
from longlag.layers.state import State

MATRICES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "norm_weight", "norm_bias", "weight_hr")


class CellWeights(Stack):
    """A stack of one cell's layers without their runs. `Recurrent` sets the attributes."""

    cell: Cell  # pyright: ignore[reportIncompatibleVariableOverride]
    weight_ih_l0: Tensor
    norm: str | None
    proj_size: int
    _names: list[list[str | None]]  # of the matrices of every layer and direction
    learns_initial_state: bool
    _noise: torch.Generator | None = None
    _noise_seed: int | None

    def _make_weights(self, factory: dict, fixed: dict[str, Any], learn_initial_state: bool) -> None:
        cell, H = self.cell, self.hidden_size
        rows_x, rows_y = len(cell.input_gates) * H, len(cell.recurrent_gates) * H
        for k, size in enumerate(self.input_sizes()):
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows_x, size)}
            if cell.dense:
                shapes["weight_hh"] = (rows_y, self.width)
            if self.bias:
                shapes["bias_ih"] = (rows_x,)
                if cell.dense:
                    shapes["bias_hh"] = (rows_y,)
            if self.proj_size:
                shapes["weight_hr"] = (self.proj_size, H)
            shapes |= dict.fromkeys([name for name in cell.params if name not in cell.fixed], (H,))
            if learn_initial_state:
                shapes |= {f"initial_{part}": shape for part, shape in self.state_shapes.items()}
            if self.norm:
                shapes |= dict.fromkeys(["norm_weight", "norm_bias"], (len(cell.gates), H))
            for name, shape in shapes.items():
                self.register_parameter(name + self.suffix(k), nn.Parameter(torch.empty(shape, **factory)))
            for name, value in check_fixed(self.class_name, cell, H, fixed).items():
                buffer = torch.empty(H, **factory)
                self.register_buffer(name + self.suffix(k), buffer if buffer.is_meta else buffer.copy_(value))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−1/√H, 1/√H) for weights and biases, as in torch; γ = 1, β = 0; the cell's values for its params."""
        bound, structured = self.hidden_size**-0.5, set()
        for name, parameter in self.named_parameters():
            own = name.rpartition("_l")[0].removeprefix("parametrizations.")
            if own in self.cell.params:
                name = name.removeprefix("parametrizations.").removesuffix(".original")
                value = self._initial_param(own).to(parameter)
                if parametrize.is_parametrized(self, name):
                    setattr(self, name, value)  # through the inverse of the parametrisation
                else:
                    parameter.copy_(value)
            elif own in ("norm_weight", "norm_bias") or own.startswith("initial_"):
                parameter.fill_(1.0 if own == "norm_weight" else 0.0)
            elif (place := structures.structured(self, name)) is not None:
                if place not in structured:
                    structured.add(place)
                    setattr(self, place, torch.empty_like(getattr(self, place)).uniform_(-bound, bound))
            else:
                parameter.uniform_(-bound, bound)

    def _initial_param(self, name: str) -> Tensor:
        """Initial values (H,) of one of the cell's params."""
        if self.cell.made_from is not None and name not in self.cell.made_from.params:  # of U, and its bias
            return torch.empty(self.hidden_size, dtype=torch.float64).uniform_(-1, 1) * self.hidden_size**-0.5
        return torch.full((self.hidden_size,), self.cell.initial_params[name], dtype=torch.float64)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self.cell.fed_back, (self.hidden_size,))
        return shapes | ({"y": (self.width,)} if self.proj_size else {})

    @property
    def width(self) -> int:
        """Features of a layer's output in one direction."""
        return self.proj_size or self.hidden_size

    def initial_state(self, batch: int) -> State:
        """Zeros, or the state that is learned."""
        if not self.learns_initial_state:
            return super().initial_state(batch)
        ends = [self.suffix(k) for k in range(len(self._names))]
        learned = [torch.stack([getattr(self, f"initial_{part}{end}") for end in ends]) for part in self.cell.fed_back]
        return self.state_spec.whole([part.unsqueeze(1).expand(-1, batch, -1) for part in learned])

    def noise_generator(self, device: torch.device) -> torch.Generator:
        """The generator of the layer's noise; ``manual_seed`` repeats a run."""
        if self._noise is None or self._noise.device != device:
            self._noise = torch.Generator(device)
            self._noise.manual_seed(torch.seed() if self._noise_seed is None else self._noise_seed)
        return self._noise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noise": None}  # a generator cannot be copied; the copy draws from the seed

    def _read_numbers(self, given: dict[str, Any], s: validation.Sequences) -> None:
        if given or self.cell.per_step:
            s.numbers.update(check_numbers(self, given, s))
        if s.reset is not None and self.learns_initial_state:
            raise ValueError(f"{self.class_name}: reset starts from zeros; it needs learn_initial_state=False")

    def get_parameter(self, target: str) -> nn.Parameter:
        """As in torch; for a value that is computed from a parameter, the error names that parameter."""
        if parametrize.is_parametrized(self, target):
            trained = [path for path, _ in self.named_parameters() if path.startswith(f"parametrizations.{target}.")]
            raise AttributeError(
                f"{self.class_name}: {target} is computed from {', '.join(trained)}; to set it, assign to the "
                f"attribute {target}: what is written into its value is lost"
            )
        return super().get_parameter(target)

    @property
    def any_weight(self) -> Tensor:
        weight = self._parameters.get("weight_ih_l0")
        return self.weight_ih_l0 if weight is None else weight

    def _values(self, names: Sequence[str | None]) -> list[Any]:
        """Weights. The dictionary of parameters is faster; parametrised or pruned weights are attributes."""
        own = self._parameters
        return [None if n is None else own[n] if n in own else getattr(self, n) for n in names]
