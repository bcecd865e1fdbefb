"""Description of a layer's state: its parts, their shapes, and the batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

Parts = tuple[Tensor, ...]
State = Tensor | Parts


@dataclass(frozen=True)
class StateSpec:
    """Layout of a layer's state. A state is a tensor if it has one part, else a tuple of its parts.

    Attributes:
        shapes: part -> shape of that part for one sequence, without the batch.
        batch_axis: the batch dimension of every part: 1 for stacks (L, B, …), else 0.

    >>> import torch, longlag as ll
    >>> layer = ll.LSTM(3, 5, num_layers=2)
    >>> layer.state_spec
    StateSpec(shapes={'y': (2, 5), 'c': (2, 5)}, batch_axis=1)
    >>> _, state = layer(torch.randn(7, 4, 3))
    >>> rows = layer.state_spec.flatten(state)  # one row of numbers per sequence
    >>> rows.shape, all(map(torch.equal, layer.state_spec.unflatten(rows), state))
    (torch.Size([4, 20]), True)
    """

    shapes: dict[str, tuple[int, ...]]
    batch_axis: int

    @property
    def names(self) -> list[str]:
        """The parts, in their order."""
        return list(self.shapes)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each part has per sequence."""
        return [prod(shape) for shape in self.shapes.values()]

    @cached_property
    def size(self) -> int:
        """How many numbers the state of one sequence has."""
        return sum(self.sizes)

    def batched(self, batch: int) -> list[tuple[int, ...]]:
        """The shape of each part for a batch of sequences."""
        axis = self.batch_axis
        return [(*shape[:axis], batch, *shape[axis:]) for shape in self.shapes.values()]

    def parts(self, state: State) -> Parts:
        """A state as a tuple of its parts."""
        return (state,) if isinstance(state, Tensor) else tuple(state)

    def whole(self, parts: Sequence[Tensor]) -> State:
        """The inverse of `parts`."""
        return parts[0] if len(parts) == 1 else tuple(parts)

    def zeros(self, batch: int, like: Tensor) -> Parts:
        """Zeros in every part, with the dtype and device of ``like``."""
        return tuple(like.new_zeros(shape) for shape in self.batched(batch))

    def flatten(self, state: State) -> Tensor:
        """The state as one row of numbers per sequence, (B, size)."""
        rows = [part.movedim(self.batch_axis, 0).flatten(1) for part in self.parts(state)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def unflatten(self, rows: Tensor) -> Parts:
        """The inverse of `flatten`: the parts of rows (B, size)."""
        pieces = zip(rows.split(self.sizes, -1) if self.shapes else (), self.shapes.values())
        return tuple(piece.unflatten(-1, shape).movedim(0, self.batch_axis) for piece, shape in pieces)

    def select(self, state: State, index: Tensor) -> State:
        """The state of the sequences ``index`` (N,)."""
        return self.whole([part.index_select(self.batch_axis, index) for part in self.parts(state)])

    def where(self, mask: Tensor, yes: Parts, no: Parts) -> Parts:
        """Choose per sequence: mask (B,) bool."""
        shape = [1] * self.batch_axis + [-1]
        return tuple(torch.where(mask.view(*shape, *[1] * (a.dim() - len(shape))), a, b) for a, b in zip(yes, no))
