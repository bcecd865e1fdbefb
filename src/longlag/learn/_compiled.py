"""A learner on the compiled real-time engine: chunks and single steps."""

from __future__ import annotations

import ctypes
import math
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.engines.cpu.realtime import words
from longlag.engines.cpu.realtime.stream import Chunk, Stream
from longlag.learn._chunk import Steps, targets_of
from longlag.learn._memory import Memory
from longlag.learn._streaming import HORIZON, diverged, warn_skipped

if TYPE_CHECKING:
    from longlag.learn.online import Online

SLICE = 0.05  # seconds of compiled code between two chances of Ctrl-C


class Compiled(Memory):
    """Runs an `Online` learner on the engine. Raises `Unsupported` for a learner that the engine does not serve."""

    def __init__(self, learner: Online) -> None:
        super().__init__(learner)
        self._predicting: Stream | None = None
        self._slice = 64  # steps
        self._flags, self._losses = array("B", [0]), array("d", [0.0])  # of a single step

    def chunk(self, steps: Steps) -> tuple[Tensor, tuple[str, int] | None]:
        """Run checked steps: the outputs, and what went wrong at which step, if anything did."""
        learner, T, B = self.learner, len(steps.x), steps.x.shape[1]
        stream, dtype = self.open(B, steps.symbols), learner.layer.dtype
        O, targets, mask = stream.layout.outputs, self.typed(steps).targets, steps.mask
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
        learner.losses = losses
        chunk = Chunk(steps.x.contiguous(), flags, kept, losses, targets, mask, active, reset)  # lives until the end
        stream.start(chunk)
        self._with_weights(stream, self._in_slices, stream, T)
        status, step = stream.table[words.status], stream.table[words.done]
        if status == words.DONE:
            return kept, None
        text, kept = self._failure(stream, float(losses[step])), kept[: stream.table[words.kept_used]]
        losses[step] = math.nan
        if status == words.BAD_LOSS:
            self._without_target(stream, flags.data_ptr() + step, step)
        return kept, (text, step)

    def step(self, x: Tensor, target: Tensor | None) -> Tensor | None:
        """One step of B streams, planned: x (B, I), target (B, O). None if it must go another way: as a chunk."""
        learner, stream = self.learner, self.stream
        dtype = x.dtype
        if stream is None or not self.ahead or dtype != stream.samples.dtype or learner.detector is not None:
            return None
        B, O = stream.batch, stream.layout.outputs
        if x.shape != (B, learner.layer.input_size) or not x.is_contiguous() or stream.network.symbols:
            return None
        if target is not None and (target.dtype != dtype or target.shape != (B, O) or not target.is_contiguous()):
            return None
        update = (learner.steps + 1) % learner.every == 0
        self._flags[0] = words.KEPT | (words.SCORED if target is not None else 0) | (words.UPDATE if update else 0)
        kept, table = torch.empty(B, O, dtype=dtype), stream.table
        for name in (words.mask, words.active, words.reset, words.classes, words.kept_used, words.targets_used):
            table[name] = 0
        table[words.status], table[words.x], table[words.kept] = words.DONE, x.data_ptr(), kept.data_ptr()
        table[words.targets] = 0 if target is None else target.data_ptr()
        table[words.flags], table[words.losses] = self._flags.buffer_info()[0], self._losses.buffer_info()[0]
        self._with_weights(stream, stream.run, 0, 1)
        if table[words.status] != words.DONE:
            text = self._failure(stream, self._losses[0])
            if table[words.status] == words.BAD_LOSS:
                self._without_target(stream, self._flags.buffer_info()[0], 0)
            raise ValueError(text)
        return kept

    def update(self) -> None:
        """Let the optimiser use the gradients since the last update."""
        assert self.stream is not None
        self._with_weights(self.stream, self.stream.run, 0, 0)

    def _with_weights(self, stream: Stream, run: Callable[..., Any], *arguments: Any) -> None:
        """Run steps with torch's weights, and hand back what changed. Ctrl-C is raised after a kernel has returned."""
        jobs, updates = self.weight_jobs(stream), self.learner.updates
        self._counters(stream, out=False)
        stream.transfer_all(jobs, out=False)
        self.moments.read(stream)
        try:
            run(*arguments)
        finally:
            self.ahead = True
            if stream.table[words.updates] != updates:
                stream.transfer_all(jobs, out=True)
                self.moments.write(stream)
            self.learner.steps += stream.table[words.done]
            self._counters(stream, out=True)

    def _without_target(self, stream: Stream, flags: int, step: int) -> None:
        """After a loss that is not finite the stream goes on as if the step had had no target."""
        ctypes.c_uint8.from_address(flags).value = 0
        stream.table[words.status] = words.DONE
        stream.run(step, step + 1)
        self.learner.steps += 1

    @property
    def batch(self) -> int | None:
        """B of the stream so far."""
        return None if self.stream is None or not self.learner.steps else self.stream.batch

    def typed(self, steps: Steps) -> Steps:
        """The steps with targets in the engine's types."""
        if steps.targets is None:
            return steps
        learner, outputs = self.learner, self.described.layout.outputs
        targets = targets_of(learner.loss, steps.targets, steps.mask, outputs, learner.layer.dtype)
        return steps._replace(targets=targets)

    def _counters(self, stream: Stream, out: bool) -> None:
        learner, table, numbers = self.learner, stream.table, stream.numbers
        if not out:
            table[words.updates], table[words.skipped] = learner.updates, learner.skipped
            table[words.scored], table[words.skipped_in_a_row] = learner._scored, learner._skipped_in_a_row
            table[words.done] = table[words.warn] = 0
            found = (learner.gradient_norm, learner.clip or 0.0, learner.loss_now, learner.running_loss, HORIZON)
            numbers[:] = array("d", found)
            return
        learner.updates, learner.skipped = table[words.updates], table[words.skipped]
        learner._scored, learner._skipped_in_a_row = table[words.scored], table[words.skipped_in_a_row]
        learner.gradient_norm, _, learner.loss_now, learner.running_loss, _ = numbers
        if table[words.warn]:
            warn_skipped(words.SKIPS)

    def _failure(self, stream: Stream, loss: float) -> str:
        learner, status = self.learner, stream.table[words.status]
        if status == words.BAD_INPUT:
            return f"Online: x_t at step {learner.steps} must be finite, got NaN or infinity"
        if status == words.BAD_STATE:
            return diverged(learner.layer, self.part_not_finite(stream), learner.steps)
        return f"Online: the loss at step {learner.steps} is {loss}; no parameter was changed"

    def _in_slices(self, stream: Stream, steps: int) -> None:
        """Run the chunk a slice at a time, so that Ctrl-C is heard. It is raised after a slice, not within."""
        done = 0
        while done < steps:
            last, begun = min(steps, done + self._slice), time.perf_counter()
            if stream.run(done, last) != words.DONE:
                return
            if last - done == self._slice:
                spent = time.perf_counter() - begun
                self._slice = max(16, min(2 * self._slice, int(self._slice * SLICE / max(spent, 1e-6))))
            done = last

    def predict(self, steps: Steps) -> Tensor:
        """The outputs of the `scored` steps with frozen weights, from the initial state; NaN from where they fail."""
        T, B = steps.x.shape[:2]
        stream = self._predicting
        if stream is None or stream.batch != B or stream.network.symbols != steps.symbols:
            self._predicting = stream = self.made(B, steps.symbols)
            stream.table[words.frozen] = 1
        flags = torch.full((T,), words.KEPT, dtype=torch.uint8)
        if steps.scored is not None:
            flags = steps.scored.to(torch.uint8) * words.KEPT
        reset = torch.zeros(T, B, dtype=torch.bool) if steps.reset is None else steps.reset.clone()
        reset[0] = True
        rows = T if steps.scored is None else int(steps.scored.sum())
        kept = torch.full((rows, B, stream.layout.outputs), math.nan, dtype=self.learner.layer.dtype)
        losses = torch.empty(T, dtype=torch.float64)
        stream.transfer_all(self.weight_jobs(stream), out=False)
        chunk = Chunk(steps.x.contiguous(), flags, kept, losses, reset=reset)  # lives until the end
        stream.start(chunk)
        self._in_slices(stream, T)
        return kept
