"""A learner on the compiled real-time engine: parameters, state and traces go to its memory and come back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.engines.cpu.realtime import words
from longlag.engines.cpu.realtime.stream import Chunk, Job, Stream
from longlag.layers.state import Parts
from longlag.learn import _exchange, _plan
from longlag.learn._chunk import Steps, targets_of
from longlag.learn._moments import Moments
from longlag.learn._rule import Trace
from longlag.learn._streaming import HORIZON, warn_skipped

if TYPE_CHECKING:
    from longlag.learn.online import Online

SLICE = 0.05  # seconds of compiled code between two chances of Ctrl-C


class Compiled:
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
        self._predicting: Stream | None = None
        self.ahead = False
        self._slice = 64

    # ----------------------------------------------------------------------------------------------------- memory
    def open(self, batch: int, symbols: bool) -> Stream:
        """The stream's memory for a batch; made anew where the batch or the kind of input changes."""
        stream = self.stream
        if stream is None or stream.batch != batch or stream.network.symbols != symbols:
            self.settle()
            stream = self._made(batch, symbols)
            for weight, group in zip(self.described.weights, self.groups):
                if group is not None:
                    times = torch.bincount(weight.places[:, 1])[weight.places[:, 1]]
                    stream.masks[group][weight.places[:, 0]] = (1 / times).to(stream.masks.dtype)
            self.stream = stream
            self._state_pairs = list(_state_pairs(self.described, self.learner.layer, batch))
        if not self.ahead:
            self._import(stream)
        return stream

    def _made(self, batch: int, symbols: bool) -> Stream:
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

    def _state_jobs(self, parts: Parts) -> list[Job]:
        assert self.stream is not None
        return [self.stream.sample_job(parts[i], pairs) for i, pairs in self._state_pairs]

    # ------------------------------------------------------------------------------------------------------- runs
    def chunk(self, steps: Steps) -> tuple[Tensor, tuple[str, int] | None]:
        """Run checked steps: the outputs, and what went wrong at which step, if anything did."""
        learner, T, B = self.learner, len(steps.x), steps.x.shape[1]
        stream, dtype = self.open(B, steps.symbols), learner.layer.dtype
        O = stream.layout.outputs
        targets, mask = steps.targets, steps.mask
        if targets is not None:
            targets = targets_of(learner.loss, targets, mask, O, dtype)
        flags = torch.zeros(T, dtype=torch.uint8)
        if steps.scored is not None:
            flags += steps.scored.to(torch.uint8) * (words.SCORED | words.KEPT)
        else:
            flags += words.KEPT | (words.SCORED if targets is not None else 0)
        if steps.update is not None:
            flags += steps.update.to(torch.uint8) * words.UPDATE
        else:
            flags[learner.every - 1 - learner.steps % learner.every :: learner.every] |= words.UPDATE
        rows = T if steps.scored is None else int(steps.scored.sum())
        kept, losses = torch.empty(rows, B, O, dtype=dtype), torch.full((T,), math.nan, dtype=torch.float64)
        mask = None if mask is None else mask.to(dtype).contiguous()
        active, reset = (None if m is None else m.contiguous() for m in (steps.active, steps.reset))
        self._counters(stream, out=False)
        done = self.run(stream, Chunk(steps.x.contiguous(), flags, kept, losses, targets, mask, active, reset))
        learner.steps += done
        self._counters(stream, out=True)
        learner.losses = losses
        if stream.table[words.status] == words.DONE:
            return kept, None
        losses[done] = math.nan
        return kept[: stream.table[words.kept_used]], (self._failure(stream), done)

    def _counters(self, stream: Stream, out: bool) -> None:
        learner, table, numbers = self.learner, stream.table, stream.numbers
        if not out:
            table[words.updates], table[words.skipped] = learner.updates, learner.skipped
            table[words.scored], table[words.skipped_in_a_row] = learner._scored, learner._skipped_in_a_row
            table[words.warn] = 0
            found = (learner.gradient_norm, self.learner.clip or 0.0, learner.loss_now, learner.running_loss, HORIZON)
            numbers[:] = torch.tensor(found, dtype=torch.float64)
            return
        learner.updates, learner.skipped = table[words.updates], table[words.skipped]
        learner._scored, learner._skipped_in_a_row = table[words.scored], table[words.skipped_in_a_row]
        learner.gradient_norm, _, learner.loss_now, learner.running_loss, _ = numbers.tolist()
        if table[words.warn]:
            warn_skipped(words.SKIPS)

    def _failure(self, stream: Stream) -> str:
        learner, status = self.learner, stream.table[words.status]
        if status == words.BAD_INPUT:
            return f"Online: x_t at step {learner.steps} must be finite, got NaN or infinity"
        if status == words.BAD_STATE:
            return (
                f"Online: a state of {learner.layer.class_name} is not finite after step {learner.steps}: the layer "
                "has diverged. A smaller learning rate, clip=, or bounded feedback (constrain='forget') prevents this"
            )
        return f"Online: the loss at step {learner.steps} is not finite; no parameter was changed"

    def run(self, stream: Stream, chunk: Chunk) -> int:
        """Run a chunk; returns the number of steps done. The stream's table says why, if not all."""
        weights = self._weight_jobs(stream)
        stream.transfer(weights, out=False)
        self.moments.read(stream)
        updates = stream.table[words.updates]
        stream.start(chunk)
        try:
            return self._in_slices(stream, len(chunk.flags))
        finally:
            self.ahead = True
            stream.transfer(weights, out=True)
            if stream.table[words.updates] != updates:
                self.moments.write(stream)

    def _weight_jobs(self, stream: Stream) -> list[Job]:
        return [stream.weight_job(w.parameter, w.places) for w in self.described.weights]

    def _in_slices(self, stream: Stream, steps: int) -> int:
        """Run the chunk a slice at a time, so that Ctrl-C is heard; returns the number of steps done."""
        done = 0
        while done < steps:
            last, begun = min(steps, done + self._slice), time.perf_counter()
            if stream.run(done, last) != words.DONE:
                return stream.table[words.failed_step]
            if last - done == self._slice:
                spent = time.perf_counter() - begun
                self._slice = max(16, min(2 * self._slice, int(self._slice * SLICE / max(spent, 1e-6))))
            done = last
        return done

    def predict(self, steps: Steps) -> Tensor:
        """The outputs of the `scored` steps with frozen weights, from the initial state; NaN from where they fail."""
        T, B = steps.x.shape[:2]
        stream = self._predicting
        if stream is None or stream.batch != B or stream.network.symbols != steps.symbols:
            self._predicting = stream = self._made(B, steps.symbols)
            stream.table[words.frozen] = 1
        flags = torch.full((T,), words.KEPT, dtype=torch.uint8)
        if steps.scored is not None:
            flags = steps.scored.to(torch.uint8) * words.KEPT
        reset = torch.zeros(T, B, dtype=torch.bool) if steps.reset is None else steps.reset.clone()
        reset[0] = True
        rows = T if steps.scored is None else int(steps.scored.sum())
        kept = torch.full((rows, B, stream.layout.outputs), math.nan, dtype=self.learner.layer.dtype)
        losses = torch.empty(T, dtype=torch.float64)
        stream.transfer(self._weight_jobs(stream), out=False)
        stream.start(Chunk(steps.x.contiguous(), flags, kept, losses, reset=reset))
        self._in_slices(stream, T)
        return kept


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
