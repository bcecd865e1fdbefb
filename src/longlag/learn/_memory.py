"""The memory of a learner on the compiled real-time engine: what goes there from torch's tensors, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.engines.cpu.realtime import words
from longlag.engines.cpu.realtime.stream import Job, Stream
from longlag.layers.state import Parts, State
from longlag.learn import _exchange, _plan
from longlag.learn._moments import Moments
from longlag.learn._rule import Trace

if TYPE_CHECKING:
    from longlag.learn.online import Online


class Memory:
    """The engine's side of an `Online` learner. Weights live in torch's parameters between calls; the state, traces
    and sums of gradients stay in the engine's memory until `settle` writes them back.

    Raises `Unsupported` for a learner that the engine does not serve.

    Attributes:
        ahead: whether the engine's memory is newer than the learner's tensors.
    """

    def __init__(self, learner: Online) -> None:
        self.learner = learner
        self.described = _plan.describe(learner)
        self.groups = _plan.optimised(learner, self.described)
        trained = zip(self.described.weights, self.groups)
        self.moments = Moments(learner.optimizer, [(w.parameter, w.places, g) for w, g in trained if g is not None])
        self.loss = _plan.LOSSES.index(learner.loss)
        self.stream: Stream | None = None
        self.ahead = False
        self._weight_words = array("q")
        self._weight_places: list[int] = []

    # ----------------------------------------------------------------------------------------------------- memory
    def open(self, batch: int, symbols: bool) -> Stream:
        """The stream's memory for a batch; made anew where the batch or the kind of input changes."""
        stream = self.stream
        if stream is None or stream.batch != batch or stream.network.symbols != symbols:
            self.settle()
            stream = self.made(batch, symbols)
            for weight, group in zip(self.described.weights, self.groups):
                if group is not None:
                    times = torch.bincount(weight.places[:, 1])[weight.places[:, 1]]
                    stream.masks[group][weight.places[:, 0]] = (1 / times).to(stream.masks.dtype)
            self.stream = stream
            self._state_pairs = list(_state_pairs(self.described, self.learner.layer, batch))
        if not self.ahead:
            self._import(stream)
        return stream

    def made(self, batch: int, symbols: bool) -> Stream:
        """Fresh memory for a batch."""
        network, groups = self.described.network.with_symbols(symbols), len(self.learner.optimizer.param_groups)
        stream = Stream(network, batch, self.loss, groups, self.described.copies, self.learner.clip or 0.0)
        parts = self.learner.layer.validate_state(None, 1)
        pairs = list(_state_pairs(self.described, self.learner.layer, 1))
        stream.transfer([stream.rest_job(parts[i], each) for i, each in pairs], out=False)
        return stream

    def _import(self, stream: Stream) -> None:
        """The learner's state, trace and gradients into the engine's memory."""
        learner, batch = self.learner, stream.batch
        parts = learner.layer.validate_state(learner.state, batch)
        stream.transfer(self._state_jobs(parts), out=False)
        trace = learner.trace if learner.steps else learner.rule.start(learner.layer, batch)
        values = trace.method.settled(trace.values)
        met = _exchange.move(self.described.rule, values, self.described.graph, stream, out=False)
        if stream.network.symbols:
            stream.meet(everything=met)
        stream.gradient.zero_()
        stream.table[words.pending] = 0
        for weight, group in zip(self.described.weights, self.groups):
            gradient = weight.parameter.grad
            if group is not None and gradient is not None:
                first = torch.zeros(gradient.numel(), dtype=torch.int64)
                first[weight.places[:, 1]] = weight.places[:, 0]
                stream.gradient[first] = (gradient if weight.bound is None else gradient / _slope(weight)).flatten()
                stream.table[words.pending] = 1
                weight.parameter.grad = None

    def settle(self) -> None:
        """Write state, trace and gradients back into the learner's tensors."""
        stream, learner = self.stream, self.learner
        if not self.ahead or stream is None:
            return
        self.ahead = False
        parts = tuple(torch.empty_like(part) for part in learner.layer.validate_state(None, stream.batch))
        stream.transfer(self._state_jobs(parts), out=True)
        trace = learner.rule.start(learner.layer, stream.batch)
        stream.settle()
        _exchange.move(self.described.rule, trace.values, self.described.graph, stream, out=True)
        shape = (stream.batch, self.described.network.width)
        learner.restore_stream(
            learner.layer.state_spec.whole(parts), Trace(trace.method, stream.batch, trace.values, shape)
        )
        if stream.table[words.pending]:
            for weight, group in zip(self.described.weights, self.groups):
                if group is not None:
                    total = torch.zeros(weight.parameter.numel(), dtype=stream.gradient.dtype)
                    total.index_add_(0, weight.places[:, 1], stream.gradient[weight.places[:, 0]])
                    total = total.view_as(weight.parameter)
                    weight.parameter.grad = total if weight.bound is None else total * _slope(weight)

    def state(self) -> State:
        """A copy of the state after the last step; the engine's memory stays ahead of the learner's tensors."""
        assert self.stream is not None
        layer = self.learner.layer
        parts = tuple(torch.empty_like(part) for part in layer.validate_state(None, self.stream.batch))
        self.stream.transfer(self._state_jobs(parts), out=True)
        return layer.state_spec.whole(parts)

    def _state_jobs(self, parts: Parts) -> list[Job]:
        assert self.stream is not None
        return [self.stream.sample_job(parts[i], pairs) for i, pairs in self._state_pairs]

    def part_not_finite(self, stream: Stream) -> str:
        """Name of the part of the state that the last step made infinite or NaN."""
        sample = stream.table[words.failed_sample] * stream.layout.sample
        memory, names = stream.samples.flatten(), self.learner.layer.state_spec.names
        for k, group in enumerate(self.described.graph.groups):
            for part in group.loop or ("y",):
                places = sample + stream.layout.row_places(k, f"new {part}")
                bad = (~torch.isfinite(memory[places])).nonzero().flatten()
                if len(bad) and part in group.loop:
                    old = sample + stream.layout.row_places(k, part)[bad[0]]
                    return next((names[i] for i, pairs in self._state_pairs if bool((pairs[:, 0] == old).any())), part)
                if len(bad):
                    return part
        return names[0]

    def weight_jobs(self, stream: Stream) -> array:
        """The transfers of all parameters, made anew where one has moved."""
        places = [stream.weights.data_ptr(), *(w.parameter.data_ptr() for w in self.described.weights)]
        if places != self._weight_places:
            jobs = [stream.weight_job(w.parameter, w.places) for w in self.described.weights]
            self._weight_places, self._weight_words = places, array("q", [word for job in jobs for word in job])
        return self._weight_words


def _slope(weight: _plan.Weight) -> Tensor:
    """The derivative of what the equations read by the parameter."""
    assert weight.bound is not None
    with torch.enable_grad():
        raw = weight.parameter.detach().requires_grad_()
        return torch.autograd.grad(weight.bound(raw).sum(), raw)[0]


def _state_pairs(d: _plan.Described, layer: Any, batch: int) -> Iterator[tuple[int, Tensor]]:
    """For every part of the layer's state the pairs (place in the samples' memory, element)."""
    parts, first = [], 1
    for part in layer.validate_state(None, batch):
        parts.append(torch.arange(first, first + part.numel(), dtype=torch.float64).view_as(part))
        first += part.numel()
    loops, fed_back = d.graph.split(tuple(parts))  # the same selection, of the elements' numbers
    starts = torch.arange(batch).unsqueeze(-1) * d.layout.sample
    found = [] if fed_back is None else [(starts + d.layout.fed + torch.arange(fed_back.shape[-1]), fed_back)]
    for k, group in enumerate(d.graph.groups):
        for name, values in zip(group.loop, loops[group.name]):
            found.append((starts + d.layout.row_places(k, name), values))
    for i, part in enumerate(parts):
        low = float(part.min()) if part.numel() else 0
        pairs = []
        for places, values in found:
            mine = (values >= low) & (values < low + part.numel())
            pairs.append(torch.stack([places[mine], (values[mine] - low).long()], 1))
        yield i, torch.cat(pairs).contiguous()
