"""torch's recurrent kernels, a private API of torch, with a self-test that detects a changed API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.engines._private import _changed, _expecting


@functools.cache
def recurrent_kernel(name: str) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """torch's kernel ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``, tried once on a small input.

    ``f(cell, weights, x, state, batch_sizes=None) -> y, ends``: weights W, U and, if any, both biases; state parts
    (B, H); each end (1, B, H). With ``batch_sizes`` x and y are the data of a packed sequence.
    """
    with _expecting("torch", f"_VF.{name}"):
        kernel = getattr(torch._VF, name)  # pyright: ignore[reportAttributeAccessIssue]

    def run(
        cell: Any, weights: Sequence[Tensor], x: Tensor, state: Sequence[Tensor], batch_sizes: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        parts = [part.unsqueeze(0).contiguous() for part in state]
        first: Any = parts if name == "lstm" else parts[0]
        data = (x, first) if batch_sizes is None else (x, batch_sizes, first)
        # biases or not, one layer, dropout, whether a backward pass may follow, one direction
        how = (len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False)
        y, *ends = kernel(*data, list(weights), *how, *([False] if batch_sizes is None else []))
        return y, tuple(ends)

    _check_recurrent_kernel(name, run)
    return run


def _check_recurrent_kernel(name: str, run: Callable[..., Any]) -> None:
    """Two steps of one unit, whose weights are so that the value is known."""
    gates, parts = {"lstm": (4, 2), "gru": (3, 1)}.get(name, (1, 1))
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        weights, x = [torch.zeros(gates, 1), torch.zeros(gates, 1)], torch.ones(2, 1, 1)
        weights[0][2 if gates > 1 else 0] = 1.0  # lstm: i = f = o = 0; gru: r = z = 0
        with _expecting("torch", f"_VF.{name}"):
            y, ends = run(None, weights, x, [torch.zeros(1, 1)] * parts)
    a = float(torch.tensor(1.0).tanh())
    c = 0.75 * a
    wanted = {"lstm": 0.5 * float(torch.tensor(c).tanh()), "gru": c, "rnn_tanh": a, "rnn_relu": 1.0}[name]
    if y.shape != (2, 1, 1) or len(ends) != parts or abs(float(y[-1]) - wanted) > 1e-6:
        raise _changed("torch", f"_VF.{name}", f"two steps gave {y.flatten().tolist()}, not …, {wanted:.6f}")
