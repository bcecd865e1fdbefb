"""Single steps of a stack of one cell: `longlag.engines.Steps`, without a gradient, where no option forbids them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longlag import engines
from longlag.layers._cell_weights import CellWeights
from longlag.layers.state import State

EPS = 1e-5
# Members that a planned step does without. A subclass that overrides one of them is stepped through `forward`.
PASSED_BY = ("forward", "_run", "weights", "_weights_apart", "_values", "_norm")


class CellSteps(CellWeights):
    """A stack of one cell's layers and its single steps."""

    _steps_are_runs = False  # whether the members `PASSED_BY` are those of `Recurrent`
    _steps: engines.Steps | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for parent in cls.__bases__:
            if issubclass(parent, CellSteps) and "_steps_are_runs" not in vars(cls):
                same = all(getattr(cls, name) is getattr(parent, name) for name in PASSED_BY if hasattr(parent, name))
                cls._steps_are_runs = same and parent._steps_are_runs

    def _norm(self, gamma: Tensor, beta: Tensor) -> engines.Norm:
        return (engines.Norm.with_sample_variance if self.norm == "layer" else engines.Norm)(gamma, beta, EPS)

    def _make_steps(self) -> None:
        """What `step` needs to know about the weights: their names here, and in the kernels' tables."""
        stems = {"W": "weight_ih", "b_x": "bias_ih", "bias_hh": "bias_hh", "U": "weight_hh"}
        stems |= {f"{p}_all": p for p in self.cell.params} | {"gamma": "norm_weight", "beta": "norm_bias"}
        there = {*self._names[0], *(f"{p}_l0" for p in self.cell.params)}
        stems = {name: stem for name, stem in stems.items() if stem + "_l0" in there}
        self._step_names = [stem + self.suffix(k) for k in range(self.num_layers) for stem in stems.values()]
        scale = engines.Norm.sample_scale(self.hidden_size) if self.norm == "layer" else 1.0
        eps = EPS * scale**2 if self.norm else 0.0
        served = self.cell.reads_only_y and not self.cell.per_step  # by the compiled engine
        if served and not (self.bidirectional or self.proj_size):
            self._steps = engines.Steps(self.cell, tuple(stems), self.num_layers, eps, scale)

    def step(self, x_t: Tensor, state: State | None = None, **numbers: Tensor | float) -> tuple[Tensor, State]:
        """One step: x_t (B, I) or (I,). Pass the returned state to the next step; see `Layer.step`."""
        steps, drops = self._steps, self.training and (self.recurrent_dropout or self.dropout)
        if steps and self._steps_are_runs and self.engine in ("auto", "cpu") and not (drops or numbers):
            parts = (state,) if isinstance(state, Tensor) else state
            if type(parts) is tuple and len(parts) == len(self.cell.fed_back) and engines.calls_forward(self):
                results = steps(x_t, self._values(self._step_names), parts)
                if results is not None:
                    return results[0], results[1] if len(parts) != 1 else results[1][0]
        return super().step(x_t, state, **numbers)
