"""CUDA graphs of whole passes: a loop of launches is captured once per shape, then replayed with one call.

The first call with a shape runs directly, so that every kernel is compiled; the second captures; later ones replay.
Inputs are copied into the graph's tensors and results out of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

KEPT = 16  # graphs; the one that was not used for longest is dropped
LARGEST = 2**30  # bytes of inputs above which a pass is launched directly: its copies would cost memory, not time

Function = Callable[[Sequence[Tensor]], list[Tensor]]


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    results: list[Tensor]


_graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()  # None: seen once, not captured
_lock = threading.RLock()


def replayed(key: Hashable, function: Function, tensors: Sequence[Tensor]) -> list[Tensor]:
    """``function(tensors)``; ``key`` stands for everything else the function depends on."""
    first = tensors[0]
    if not first.is_cuda or torch.cuda.is_current_stream_capturing() or sum(t.nbytes for t in tensors) > LARGEST:
        return function(tensors)
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)
    whole = (key, shapes, first.device, torch.cuda.current_stream(first.device).cuda_stream)
    with _lock:
        known, found = whole in _graphs, _graphs.get(whole)
        if known and found is None:
            found = _captured(function, tensors)
        _graphs[whole] = found
        _graphs.move_to_end(whole)
        while len(_graphs) > KEPT:
            _graphs.popitem(last=False)
        if found is None:
            return function(tensors)
        for place, value in zip(found.inputs, tensors):
            place.copy_(value)
        found.graph.replay()
        return [result.clone() for result in found.results]


def clear() -> None:
    """Forget all graphs: the kernels in them have changed."""
    with _lock:
        _graphs.clear()


@torch.inference_mode(False)  # tensors made in inference mode could not be written into outside of it
@torch.no_grad()
def _captured(function: Function, tensors: Sequence[Tensor]) -> _Graph:
    inputs, graph = [t.clone() for t in tensors], torch.cuda.CUDAGraph()
    function(inputs)  # kernels depend on the alignment of their tensors: none may be compiled during the capture
    # other threads may go on allocating: only what this thread does must be fit for capture
    with torch.cuda.device(inputs[0].device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = function(inputs)
    return _Graph(graph, inputs, results)
