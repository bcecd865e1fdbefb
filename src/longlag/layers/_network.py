"""Networks of one recurrent level with a structure of their own: what they share in calling."""

from __future__ import annotations

import abc
from collections.abc import Callable

from torch import Tensor

from longlag.layers import _door
from longlag.layers._module import Layer, State

Parts = tuple[Tensor, ...]
Step = Callable[[int, Parts], tuple[Tensor, Parts]]


class Network(Layer):
    """A recurrent network with the calling convention of ``torch.nn``; each part of the state is (B, n)."""

    @property
    @abc.abstractmethod
    def state_sizes(self) -> dict[str, int]:
        """Parts of the state: name -> n."""

    @abc.abstractmethod
    def _run(self, s: _door.Sequences, state: Parts) -> tuple[Tensor, Parts]:
        """Outputs (T, B, …) and final state of checked sequences."""

    def _rest(self, batch: int) -> Parts:
        """The state before the first step: zeros."""
        return tuple(self._weight.new_zeros(batch, n) for n in self.state_sizes.values())

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over whole sequences: x (T, B, I), (B, T, I) if ``batch_first``, or (T, I); see `Recurrent`."""
        s = self._enter(x, lengths, reset)
        y, final = self._run(s, self._enter_state(state, s))
        return s.leave(y), self._leave_state(final, s)

    def _enter_state(self, state: State | None, s: _door.Sequences) -> Parts:
        if state is None:
            return self._rest(s.batch)
        batch = (s.batch,) if s.batched else ()
        shapes = [(*batch, n) for n in self.state_sizes.values()]
        parts = _door.enter_state(self._name, state, list(self.state_sizes), shapes, self._weight)
        return parts if s.batched else tuple(part.unsqueeze(0) for part in parts)

    def _leave_state(self, parts: Parts, s: _door.Sequences) -> State:
        parts = parts if s.batched else tuple(part.squeeze(0) for part in parts)
        return parts[0] if len(parts) == 1 else parts

    def _mask(self, batch: int) -> Tensor | None:
        """One dropout mask per sequence for what is fed back, the first part of the state (B, n)."""
        if not (self.training and self.recurrent_dropout):
            return None
        keep = 1 - self.recurrent_dropout
        n = next(iter(self.state_sizes.values()))
        return self._weight.new_empty(batch, n).bernoulli_(keep) / keep
