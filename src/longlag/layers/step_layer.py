"""`StepLayer`: a recurrent layer written as one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from longlag.engines import reference
from longlag.layers import validation
from longlag.layers.layer import Layer
from longlag.layers.state import Parts, State, StateSpec

Step = Callable[[Parts, Parts], tuple[Tensor, Parts]]


class StepLayer(Layer):
    """A layer of one level, written as one step. Sequences, lengths, resets and batches are handled here.

    A subclass calls ``super().__init__(input_size)``, creates its parameters, names the parts of its state
    (`state_sizes`; each part is (B, n)), and computes one step (`advance`). See `Layer` for an example.
    """

    _least_input_size = 1

    def __init__(self, input_size: int, *, batch_first: bool = False) -> None:
        super().__init__()
        self.input_size = validation.positive(self.class_name, "input_size", input_size, least=self._least_input_size)
        self.batch_first = batch_first

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """Parts of the state: name -> n."""
        raise NotImplementedError(f"{self.class_name}: state_sizes must name the parts of the state")

    def advance(self, x_t: Tensor, state: Parts) -> tuple[Tensor, Parts]:
        """One step: x_t (B, I) and the parts of the state, each (B, n), to the output (B, …) and the new parts."""
        raise NotImplementedError(f"{self.class_name}: advance must compute one step")

    @property
    def state_spec(self) -> StateSpec:
        return StateSpec({name: (n,) for name, n in self.state_sizes.items()}, batch_axis=0)

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over whole sequences: x (T, B, I), (B, T, I) if ``batch_first``, or (T, I); see `Recurrent`."""
        s = validation.sequences(self, x, lengths, reset)
        y, final = self._run(s, self.starting_state(state, s))
        return s.restore(y), self._final(final, s)

    def _run(self, s: validation.Sequences, state: Parts) -> tuple[Tensor, Parts]:
        """Outputs (T, B, …) and final state of validated sequences."""
        rest = self.state_spec.parts(self.initial_state(s.batch))

        def step(x_t: Parts, before: Parts) -> tuple[Tensor, Parts]:
            return self.advance(x_t[0], before)

        return reference.scan(step, (s.x,), state, rest=rest, lengths=s.lengths, reset=s.reset)

    def _final(self, parts: Parts, s: validation.Sequences) -> State:
        return self.state_spec.whole(parts if s.batched else tuple(part.squeeze(0) for part in parts))

    def _dropout_mask(self, batch: int) -> Tensor | None:
        """One dropout mask per sequence for the fed-back values, the first part of the state (B, n)."""
        if not (self.training and self.recurrent_dropout):
            return None
        keep = 1 - self.recurrent_dropout
        n = next(iter(self.state_sizes.values()))
        return self.any_weight.new_empty(batch, n).bernoulli_(keep) / keep
