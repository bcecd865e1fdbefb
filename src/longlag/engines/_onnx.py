"""The recurrent operators of ONNX, for cells with the same equations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines._arguments import Weights, zeros_for


class Operator(NamedTuple):
    """An operator of ONNX."""

    name: str
    gates: tuple[int, ...]  # the operator's gates as numbers of ours
    options: dict[str, Any]


@functools.cache
def _operators() -> dict[str, Operator]:
    """By the key of a cell's equations."""
    from longlag import cells

    return {
        cells.lstm.key: Operator("LSTM", (0, 3, 1, 2), {}),  # i, o, f, g
        cells.gru.key: Operator("GRU", (1, 0, 2), {"linear_before_reset": 1}),  # z, r, n
        cells.elman.key: Operator("RNN", (0,), {"activations": ["Tanh"]}),
        cells.elman_relu.key: Operator("RNN", (0,), {"activations": ["Relu"]}),
        cells.rnn97.key: Operator("RNN", (0,), {"activations": ["Sigmoid"]}),
    }


def same(cell: Cell, x: Tensor, w: Weights, mask: Tensor | None, reset: Tensor | None) -> bool:
    """Whether an operator of ONNX computes this cell. ONNX runtimes compute float32 only."""
    plain = w.norm is None and mask is None and reset is None and x.dtype == torch.float32
    square = w.U is not None and w.U.shape[0] == len(cell.recurrent_gates) * w.U.shape[1]
    return plain and square and cell.key in _operators()


def run(
    cell: Cell, x: Tensor, w: Weights, state: Sequence[Tensor | None], lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`reference.run_weights` as one operator of ONNX."""
    operator, U = _operators()[cell.key], w.U
    assert U is not None
    T, B, H = x.shape[0], x.shape[1], U.shape[-1]

    def ordered(rows: Tensor) -> Tensor:
        return torch.cat([rows[k * H : (k + 1) * H] for k in operator.gates])

    b_x, b_y = w.b if isinstance(w.b, tuple) else (w.b, None)
    zeros = x.new_zeros(len(operator.gates) * H)
    bias = torch.cat([ordered(zeros if b is None else b) for b in (b_x, b_y)])
    starts = [part.unsqueeze(0) for part in zeros_for(cell, x, w.W, state)]
    given = (ordered(w.W)[None], ordered(U)[None], bias[None])
    y, *ends = torch.onnx.ops.symbolic_multi_out(
        operator.name,
        (x, *given, None if lengths is None else lengths.to(torch.int32), *starts),
        {"hidden_size": H, "direction": "reverse" if reverse else "forward", **operator.options},
        dtypes=[x.dtype] * (1 + len(starts)),
        shapes=[(T, 1, B, H), *[(1, B, H)] * len(starts)],
    )
    return y.squeeze(1), tuple(ends)
