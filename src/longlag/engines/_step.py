"""Single steps of a stack of cells on the CPU engine, without gradients."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _private

_loaded: list[Any] = []  # the function of the CPU engine, after its first use
_is_plain = _private.PLAIN_TYPES.issuperset
_requires_grad = operator.attrgetter("requires_grad")


class Steps:
    """Steps of a stack of cells: everything that depends on shapes only is computed once.

    Weights are read where they are at the time of each call; nothing that depends on their values is kept.

    Args:
        cell: the equations of every level.
        names: of one level's weights, as in the kernels' tables: x and the states are not among them.
        levels: how many levels the stack has.
        eps: of the norm, 0 without.
        scale: γ is multiplied by this number.
    """

    def __init__(self, cell: Cell, names: tuple[str, ...], levels: int, eps: float = 0.0, scale: float = 1.0) -> None:
        self.cell, self.names, self.levels, self.eps, self.scale = cell, names, levels, eps, scale
        self.latest: Any = None  # the plan of the latest call

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made without the plan."""
        return Steps, (self.cell, self.names, self.levels, self.eps, self.scale)

    def __call__(
        self, x: Tensor, weights: Sequence[Tensor], state: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """The output (B, H) and the new state; None if the call must go through `longlag.engines.run`.

        The reasons: a gradient may be needed; the shape, layout or class of a tensor is not the usual one.

        Args:
            x: (B, I) or (I,).
            weights: of all levels, in the order of ``names``.
            state: each part (levels, B, n) or (levels, n).
        """
        tensors = [x, *state, *weights]
        if not _is_plain(map(type, tensors)) or not _private.nothing_active():
            return None
        if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
            return None
        if not _loaded:
            from longlag.engines.cpu.runtime import step  # loads LLVM

            _loaded.append(step.step)
        if self.scale != 1:
            each = len(self.names)
            for k in range(len(tensors) - len(weights) + self.names.index("gamma"), len(tensors), each):
                tensors[k] = tensors[k] * self.scale
        return _loaded[0](self, tensors)
