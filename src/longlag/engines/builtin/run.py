"""The engine `torch`: LSTM, GRU and Elman on torch's own recurrent kernels (cuDNN on CUDA, Metal on Apple, oneDNN).

These kernels have neither layer normalisation nor recurrent dropout nor resets. Sequences of unequal length run padded
where the final state is an output; an LSTM is packed, because its final c is known at the end of a run only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longlag.cells import Cell
from longlag.engines import _private
from longlag.engines._arguments import Weights, own_precision, zeros_for
from longlag.engines.builtin._private import recurrent_kernel

State = tuple[Tensor, ...]


@functools.cache
def _kernels() -> dict[str, str]:
    """Key of a cell -> name of torch's kernel for the same equations."""
    from longlag import cells

    same = {"lstm": cells.lstm, "gru": cells.gru, "rnn_tanh": cells.elman, "rnn_relu": cells.elman_relu}
    return {cell.key: name for name, cell in same.items()}


def obstacle(cell: Cell, x: Tensor, w: Weights, mask: Tensor | None, reset: Tensor | None) -> str | None:
    """The reason why torch's kernels cannot run a call; None if they can."""
    if torch.compiler.is_compiling():
        return "torch.compile does not trace torch's recurrent kernels"
    if cell.key not in _kernels():
        return f"torch has no kernel for the cell {cell.name}"
    options = {"layer normalisation": w.norm, "recurrent dropout": mask, "resets": reset}
    for name, value in options.items():
        if value is not None:
            return f"torch's kernels have no {name}"
    if not x.shape[1]:
        return "torch's kernels need at least one sequence"
    if _private.transforms_active() or _private.forward_mode_active():
        return "torch's kernels have no rules for torch.func transforms and forward-mode derivatives"
    return None


def run(
    cell: Cell, x: Tensor, w: Weights, state: Sequence[Tensor | None], lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, State]:
    """See `longlag.engines.run`."""
    if w.b_recurrent is not None:
        raise ValueError(f"engine 'torch': biases of cell {cell.name} must be the pair (bias_ih, bias_hh)")
    weights = [w.W, w.U]
    if w.b is not None:
        weights += w.b if isinstance(w.b, tuple) else (w.b, torch.zeros_like(w.b))
    first = zeros_for(cell, x, w.W, state)
    kernel = functools.partial(recurrent_kernel(_kernels()[cell.key]), cell, _one_block(weights))
    if reverse:
        x = _reversed(x, lengths)
    with own_precision(x):
        y, ends = _over_time(kernel, x, first, lengths)
    return (_reversed(y, lengths) if reverse else y), ends


def _over_time(kernel: Any, x: Tensor, first: State, lengths: Tensor | None) -> tuple[Tensor, State]:
    if lengths is None:
        return kernel(x, first)
    return (_padded if len(first) == 1 else _packed)(kernel, x, first, lengths)


def _padded(kernel: Any, x: Tensor, first: State, lengths: Tensor) -> tuple[Tensor, State]:
    """All sequences run to the end; the final state is the output at the last step of each."""
    y, _ = kernel(x, first)
    last = lengths.clamp(1, len(x)).long() - 1
    end = y[last, torch.arange(y.shape[1], device=y.device)]
    end = torch.where((lengths > 0).unsqueeze(-1), end, first[0])
    return _without_padding(y, lengths), (end.unsqueeze(0),)


def _packed(kernel: Any, x: Tensor, first: State, lengths: Tensor) -> tuple[Tensor, State]:
    """Steps beyond a length are not computed. The lengths are copied to the CPU, where torch wants them."""
    packed = pack_padded_sequence(x, lengths.clamp(1, len(x)).cpu(), enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    data, ends = kernel(packed.data, tuple(part[order] for part in first), packed.batch_sizes)
    y, _ = pad_packed_sequence(packed._replace(data=data), total_length=len(x))
    some = (lengths > 0).unsqueeze(-1)
    ends = tuple(torch.where(some, end[:, back], start) for end, start in zip(ends, first))
    return _without_padding(y, lengths), ends


def _without_padding(y: Tensor, lengths: Tensor) -> Tensor:
    beyond = torch.arange(len(y), device=y.device)[:, None] >= lengths
    return y.masked_fill(beyond.unsqueeze(-1), 0)


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Every sequence from its last step to its first; padding stays where it is."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(len(x), device=x.device)[:, None]
    steps = torch.where(t < lengths, lengths - 1 - t, t).clamp(0, len(x) - 1) if len(x) else t
    steps = torch.where(lengths > len(x), len(x) - 1 - t, steps)
    return x[steps, torch.arange(x.shape[1], device=x.device)]


def _one_block(weights: list[Any]) -> list[Tensor]:
    """On CUDA the weights as parts of one block of memory; otherwise cuDNN copies them at every call, and warns."""
    if not weights[0].is_cuda or _private.modes_active() or _together(weights):
        return weights
    block = torch.cat([w.reshape(-1) for w in weights]).split([w.numel() for w in weights])
    return [part.view(w.shape) for part, w in zip(block, weights)]


def _together(weights: Sequence[Tensor]) -> bool:
    """Whether the weights follow each other in memory of their own."""
    storage, at, size = weights[0].untyped_storage(), weights[0].data_ptr(), weights[0].element_size()
    if at != storage.data_ptr() or storage.nbytes() != size * sum(w.numel() for w in weights):
        return False
    for w in weights:
        if w.data_ptr() != at or not w.is_contiguous():
            return False
        at += w.numel() * size
    return True


@torch.no_grad()
def join(weights: Sequence[Tensor]) -> None:
    """Move parameters into one block of memory, in order, as ``torch.nn.LSTM`` does on CUDA; values stay."""
    if len({(w.dtype, w.device) for w in weights}) == 1 and not _together(weights):
        block = torch.cat([w.reshape(-1) for w in weights]).split([w.numel() for w in weights])
        for w, part in zip(weights, block):
            w.data = part.view(w.shape)
