"""A network's memory and kernels, and runs of a chunk of a stream through them."""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.realtime import hyper
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.blocks import blocks_of
from longlag.engines.cpu.realtime.layout import Layout
from longlag.engines.cpu.realtime.network import Network

HERE = Path(__file__).parent
DTYPES = {"float32": torch.float32, "float64": torch.float64}


Job = tuple[int, int, int, int]  # a transfer: addresses of tensor, packed memory and pairs, and number of pairs


class Chunk(NamedTuple):
    """Steps of a stream, checked and in the kernel's types; None: not given.

    flags (T,) uint8: bits of `words`; targets, mask: one row per scored step; kept: one row per step with that bit.
    """

    x: Tensor
    flags: Tensor
    kept: Tensor
    losses: Tensor
    targets: Tensor | None = None
    mask: Tensor | None = None
    active: Tensor | None = None
    reset: Tensor | None = None


class Stream:
    """A network with its packed memory for a batch of B streams.

    Attributes:
        layout: where everything lies.
        weights, gradient: (N,), packed; masks, moments: (groups, N) and (groups, 3, N); hyper: their numbers.
        samples: (B, sample) memory of the samples; met: symbols each sample has met. rest: the state after a reset.
        dirty: symbols whose gradients may not be 0, in two lists: of weights with and without traces.
    """

    def __init__(self, network: Network, batch: int, loss: int, groups: int, copies: Tensor, clip: float) -> None:
        self.network, self.layout, self.batch = network, Layout(network), batch
        layout, dtype = self.layout, DTYPES[network.dtype]
        self.weights, self.gradient = (torch.zeros(layout.numbers, dtype=dtype) for _ in range(2))
        self.effective = torch.ones_like(self.weights) if network.bounded else self.weights
        self.masks = torch.zeros(groups, layout.numbers, dtype=dtype)
        self.moments = torch.zeros(groups, 3, layout.numbers, dtype=dtype)
        self.hyper = array("d", [0.0] * (groups * hyper.COUNT))
        self.samples = torch.zeros(batch, layout.sample, dtype=dtype)
        self.met = torch.zeros(batch, 1 + 2 * network.inputs if network.symbols else 1, dtype=torch.int64)
        self.rest = torch.zeros(layout.sample, dtype=dtype)
        self.dirty = torch.zeros(2 * self.met.shape[1], dtype=torch.int64)
        self.numbers = array("d", [math.nan, clip, math.nan, math.nan, 1.0])
        self.copies = copies
        self.blocks = blocks_of(network, layout.sizes)
        self._set_biases()
        self.table = array("q", [0] * (at.END + at.WORDS * len(network.groups)))
        self._fill(loss)
        self._kernel = machine.callable_at(kernel(network, layout))
        self._transfer = transfer(network.dtype)

    def _set_biases(self) -> None:
        for z in self.layout.sizes:
            last = z.source + z.D
            self.samples[:, last - z.ones : last] = 1

    def _fill(self, loss: int) -> None:
        layout, table = self.layout, self.table
        sizes = {"B": self.batch, "I": self.network.inputs, "O": layout.outputs, "R": layout.fed_back}
        sizes |= {"N": layout.numbers, "sample_size": layout.sample, "symbol_words": self.met.shape[1], "loss": loss}
        sizes |= {
            "fed": layout.fed,
            "answer": layout.answer,
            "groups": len(self.masks),
            "copies_count": len(self.copies),
            "copies_each": self.copies.shape[1],
        }
        tensors = ("weights", "gradient", "samples", "met", "masks", "moments", "copies")
        sizes |= {name: getattr(self, name).data_ptr() for name in tensors}
        sizes |= {name: getattr(self, name).buffer_info()[0] for name in ("hyper", "numbers")}
        sizes |= {"rest": self.rest.data_ptr(), "dirty": self.dirty.data_ptr(), "network_groups": len(layout.sizes)}
        sizes |= {"effective": self.effective.data_ptr(), "update": update(self.network.dtype)}
        if self.blocks is not None:
            sizes["blocks"] = self.blocks.words.data_ptr()
        for name, value in sizes.items():
            table[getattr(at, name)] = value
        for k, z in enumerate(layout.sizes):
            for i, value in enumerate(z):
                table[at.END + k * at.WORDS + i] = value

    def weight_job(self, tensor: Tensor, pairs: Tensor) -> Job:
        """The transfer of a parameter; pairs (n, 2) of (place, element)."""
        return tensor.data_ptr(), self.weights.data_ptr(), pairs.data_ptr(), len(pairs)

    def moment_job(self, group: int, m: int, tensor: Tensor, pairs: Tensor) -> Job:
        """The transfer of a parameter's m-th moment."""
        return tensor.data_ptr(), self.moments[group, m].data_ptr(), pairs.data_ptr(), len(pairs)

    def sample_job(self, tensor: Tensor, pairs: Tensor) -> Job:
        """The transfer of what samples keep."""
        return tensor.data_ptr(), self.samples.data_ptr(), pairs.data_ptr(), len(pairs)

    def rest_job(self, tensor: Tensor, pairs: Tensor) -> Job:
        """The transfer of the state of a sample at rest."""
        return tensor.data_ptr(), self.rest.data_ptr(), pairs.data_ptr(), len(pairs)

    def settle(self) -> None:
        """Do what rules have put off: `gradient` and the influence in `samples` are then those of the last step."""
        if self.blocks is not None:
            self.blocks.settle(self.samples, self.gradient)

    def begin(self, met: bool) -> None:
        """No steps yet, but the influence that was written into `samples`; ``met``: whether it is not 0."""
        if self.blocks is not None:
            self.blocks.begin(self.samples, met)

    def meet(self, everything: bool) -> None:
        """Note that traces are 0 for all symbols, or may not be 0 for any."""
        n = self.network.inputs
        self.met.zero_()
        if everything:
            self.met[:, 0], self.met[:, 1 : 1 + n], self.met[:, 1 + n :] = n, torch.arange(n), 1

    def transfer(self, jobs: Sequence[Job], out: bool) -> None:
        """Copy numbers between tensors and packed memory."""
        self.transfer_all(array("q", [word for job in jobs for word in job]), out)

    def transfer_all(self, jobs: array, out: bool) -> None:
        """The same, with the words of all jobs."""
        self._transfer(jobs.buffer_info()[0], len(jobs) // 4, out)

    def start(self, chunk: Chunk) -> None:
        """Let the table point to a chunk."""
        table = self.table
        table[at.status] = at.DONE
        table[at.done] = table[at.targets_used] = table[at.kept_used] = 0
        for name in ("x", "targets", "mask", "active", "reset", "flags", "kept", "losses"):
            tensor = getattr(chunk, name)
            table[getattr(at, name)] = 0 if tensor is None else tensor.data_ptr()
        table[at.classes] = chunk.targets is not None and not chunk.targets.is_floating_point()

    def run(self, first: int, last: int) -> int:
        """The steps first:last of the chunk; returns the status."""
        self._kernel(self.table.buffer_info()[0], first, last, 0)
        return self.table[at.status]


def kernel(network: Network, layout: Layout) -> int:
    """The address of a network's kernel."""
    constants = layout.constants
    name = "_".join(dict.fromkeys(group.cell.name for group in network.groups))
    key = machine.fingerprint(HERE) + network.key + repr((constants, layout.lanes))

    def build() -> tuple[str, bytes]:
        from longlag.engines.cpu.cache.compile import machine_code  # loads Numba
        from longlag.engines.cpu.realtime.loop import kernel_for, plan_for

        plan = plan_for(network, constants, layout.lanes)
        return "\n\n".join(rows.source(network.dtype) for rows in plan.rows), machine_code(kernel_for(plan))

    return machine.load(re.sub(r"\W", "_", f"realtime_{name}_{network.dtype}")[:80], key, "stream", build)


@functools.cache
def _shared(name: str, dtype: str) -> int:
    def build() -> tuple[str, bytes]:
        from longlag.engines.cpu.realtime import update  # loads Numba

        return update.build(name, dtype)

    return machine.load(f"realtime_{dtype}", machine.fingerprint(HERE), name, build)


def update(dtype: str) -> int:
    """The address of the kernel of the optimisers."""
    return _shared("update", dtype)


@functools.cache
def transfer(dtype: str):
    """The kernel that copies between tensors and packed memory."""
    from longlag.engines import _private

    return _private.callable_kernel(_shared("transfer", dtype), 3)
