"""Runs of the GPU engine: tensors in, kernels over them, tensors out. `operators` makes them operators of torch.

The products over all steps are torch's: W x + b before the loop, the gradient of U after it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines._arguments import resets_backwards
from longlag.engines.cpu.cache.machine import announced
from longlag.engines.gpu.build import Kernels, kernels
from longlag.engines.gpu.graphs import replayed
from longlag.engines.gpu.loops import names as pointers
from longlag.engines.gpu.obstacles import interpreted
from longlag.engines.gpu.plan import Plan, plan


class Call(NamedTuple):
    """A run: what is not differentiated, and the tensors that are, by name (see `names`)."""

    cell: Cell
    given: dict[str, Tensor]
    reverse: bool
    eps: float
    mask: Tensor | None
    lengths: Tensor | None
    reset: Tensor | None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """T, B, H."""
        T, B, rows = self.given["net"].shape
        return T, B, rows // len(self.cell.input_gates)

    @property
    def norm(self) -> bool:
        return "gamma" in self.given

    def plan(self) -> Plan:
        net = self.given["net"]
        return plan(self.cell, self.sizes[2], net.element_size(), self.norm, *shared_memory(net.device))

    def replayed(self, which: str, function: Any, others: Sequence[Tensor], *how: Any) -> list[Tensor]:
        """``function(call, others)``; loops of launches as a CUDA graph where shapes repeat."""
        if self.plan().kind != "stepwise":
            return function(self, others)
        optional = [value for value in (self.mask, self.lengths, self.reset) if value is not None]
        there = tuple(value is not None for value in (self.mask, self.lengths, self.reset))

        def again(tensors: Sequence[Tensor]) -> list[Tensor]:
            rest = iter(tensors)
            given = {name: next(rest) for name in self.given}
            found = [next(rest) if one else None for one in there]
            return function(Call(self.cell, given, self.reverse, self.eps, *found), list(rest))

        key = (which, self.cell.key, tuple(self.given), self.reverse, self.eps, there, precision(), *how)
        return replayed(key, again, [*self.given.values(), *optional, *others])


def names(cell: Cell, bias: bool, norm: bool) -> list[str]:
    """The tensors of a call in order; net is W x + b (T, B, Gx·H), bias that of the gates without a row in W."""
    found = ["net"] + ["U"] * cell.dense + ["bias"] * bias
    return [*found, *(f"first_{v}" for v in cell.fed_back), *cell.params, *(["gamma", "beta"] * norm)]


def _kept(cell: Cell) -> list[str]:
    return ["saved", "source"] * cell.dense + [f"all_{s}" for s in cell.states]


def kept_shapes(call: Call, save: bool) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what the forward pass keeps: net inputs and what U read (dense), the states."""
    T, B, H = call.sizes
    dtype, G = call.given["net"].dtype, len(call.cell.gates)
    found = [((T, B, G, H), torch.float32), ((T, B, H), dtype)] if call.cell.dense else []
    found += [((T, B, H), torch.float32)] * len(call.cell.states)
    return found if save else [((0,), dtype) for _, dtype in found]


def forward(call: Call, save: bool) -> list[Tensor]:
    """Outputs (T, B, H), final states (1, B, H), and what the backward pass reads."""
    return call.replayed("forward", lambda call, _: _forward(call, save), (), save)


def backward(call: Call, out: Tensor, kept: Sequence[Tensor], d_results: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the tensors given."""
    n = len(kept)
    others = [out, *kept, *d_results]
    return call.replayed("backward", lambda call, t: _backward(call, t[0], t[1 : 1 + n], t[1 + n :]), others)


def _forward(call: Call, save: bool) -> list[Tensor]:
    run, cell = Run(call), call.cell
    net = run.tensors["net"]
    out = net.new_empty(run.T, run.B, run.H)
    kept = [net.new_empty(shape, dtype=dtype) for shape, dtype in kept_shapes(call, save)]
    work = [run.tensors[f"first_{v}"].float().clone() for v in cell.fed_back]
    own: dict[str, Tensor] = dict(zip(_kept(cell), kept))
    own |= {"out": out, **{f"work_{v}": value for v, value in zip(cell.fed_back, work)}}
    if run.plan.kind == "stepwise":
        run.steps(own if save else {**own, "source": torch.empty_like(out)}, save)
    else:
        run.launch("forward", own, 0, run.T, save)
    return [out, *(value.to(net.dtype).unsqueeze(0) for value in work), *kept]


def _backward(call: Call, out: Tensor, kept: Sequence[Tensor], d_results: Sequence[Tensor]) -> list[Tensor]:
    run, cell = Run(call), call.cell
    net, T, B, H = run.tensors["net"], run.T, run.B, run.H
    own: dict[str, Tensor] = {"out": out, "d_out": d_results[0].contiguous()}
    own |= dict(zip(_kept(cell), kept))
    own.setdefault("saved", net)
    own |= {f"work_{v}": d[0].float().clone() for v, d in zip(cell.fed_back, d_results[1:])}
    own["d_net"] = torch.empty_like(net)
    own["d_rec"] = own["d_net"]
    if cell.dense and not run.kernels.equations.shared:
        own["d_rec"] = net.new_empty(T, B, len(cell.recurrent_gates) * H)
    programs = math.ceil(B / run.plan.BM) if run.plan.kind != "scan" else B
    own |= {f"d_{p}": net.new_zeros(programs, H, dtype=torch.float32) for p in cell.params}
    for name in ("gamma", "beta") if call.norm else ():
        own[f"d_{name}"] = net.new_zeros(programs, len(cell.gates), H, dtype=torch.float32)
    if run.plan.kind == "stepwise":
        run.steps_back(own)
    else:
        run.launch("backward", own, 0, T, True)
    found = {"net": own["d_net"], **{f"first_{v}": own[f"work_{v}"] for v in cell.fed_back}}
    for name in (*cell.params, *(("gamma", "beta") if call.norm else ())):
        found[name] = own[f"d_{name}"].sum(0)
    if cell.dense:
        d_rec = own["d_rec"].view(T * B, -1)
        found["U"] = d_rec.t() @ own["source"].view(T * B, H)
        if "bias" in call.given:
            rows = d_rec.view(T * B, -1, H)
            sums = [rows[:, k].sum(0, dtype=torch.float32) for k in run.kernels.equations.only_U]
            found["bias"] = torch.stack(sums)
    return [found[name].to(value.dtype).view(value.shape) for name, value in call.given.items()]


class Run:
    """One pass of a call: its tensors as the kernels want them, and the launches."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan, (self.T, self.B, self.H) = call, call.plan(), call.sizes
        self.kernels: Kernels = kernels(call.cell, self.plan.kind, call.norm)
        self.tensors = {name: value.contiguous() for name, value in call.given.items()}
        self.tensors |= {f"param_{p}": self.tensors[p] for p in call.cell.params}
        some = self.tensors["net"]
        reset = call.reset
        if reset is not None and call.reverse:
            reset = resets_backwards(reset, call.lengths)
        optional = {"mask": call.mask, "lengths": call.lengths, "reset": reset}
        for name, value in optional.items():
            self.tensors[name] = some if value is None else value.contiguous()
        if reset is not None:
            self.tensors["reset"] = reset.contiguous().view(torch.uint8)
        if "bias" not in self.tensors:
            count = max(1, len(self.kernels.equations.only_U))
            self.tensors["bias"] = some.new_zeros(count, self.H)

    def launch(self, which: str, own: dict[str, Tensor], start: int, stop: int, save: bool) -> None:
        """Launch a kernel over the steps start:stop, counted from the end in the backward pass."""
        call, (kind, BM, BH, warps) = self.call, self.plan
        flags: dict[str, Any] = {
            "MASK": call.mask is not None,
            "LENGTHS": call.lengths is not None,
            "RESET": call.reset is not None,
            "REVERSE": call.reverse,
            "SAVE": save,
        }
        flags |= (
            {"BT": BM if which == "forward" else BM // 2, "BH": BH}  # the backward pass holds more values per step
            if kind == "scan"
            else {"BM": BM, "BH": BH, "PRECISION": precision(), "FACTOR": factor(self.tensors["net"])}
        )
        rows = self.B if kind == "scan" else math.ceil(self.B / BM)
        wanted = pointers("local" if kind == "scan" else kind, self.kernels.equations, call.norm, which)
        sizes = [self.T, self.B, self.H] if kind == "scan" else [self.T, self.B, self.H, start, stop, call.eps]
        tensors = {**self.tensors, **own}
        grid, kernel = (rows, math.ceil(self.H / BH)), getattr(self.kernels, which)
        options = (which, kind, call.norm, self.tensors["net"].dtype, warps, *flags.values())
        if new := options not in self.kernels.compiled:
            self.kernels.compiled.add(options)
        with announced(f"{call.cell.name}.{which}", "Triton's cache") if new else nullcontext():
            kernel[grid](*(tensors[name] for name in wanted), *sizes, **flags, num_warps=warps, enable_fp_fusion=True)

    def _time(self, n: int) -> int:
        return self.T - 1 - n if self.call.reverse else n

    def steps(self, own: dict[str, Tensor], save: bool) -> None:
        """The forward pass step by step: U y by torch, then one launch."""
        call, given = self.call, {**self.tensors, **own}
        U, read = given["U"].t(), own["work_y"]
        if call.reset is not None:
            read = read.masked_fill(given["reset"][self._time(0)].bool().unsqueeze(-1), 0)
        if call.mask is not None:
            read = read * call.mask
        given["source"][self._time(0)] = read
        rec = given["net"].new_empty(self.B, U.shape[1])
        for n in range(self.T):
            torch.mm(given["source"][self._time(n)], U, out=rec)
            self.launch("forward", {**own, "rec": rec}, n, n + 1, save)

    def steps_back(self, own: dict[str, Tensor]) -> None:
        """The backward pass step by step: one launch, then the product with U."""
        call, given = self.call, {**self.tensors, **own}
        U, d_rec = given["U"], given["d_rec"].view(self.T, self.B, -1)
        passed = U.new_zeros(self.B, self.H)
        for m in range(self.T):
            self.launch("backward", {**own, "rec": passed}, m, m + 1, True)
            torch.mm(d_rec[self._time(self.T - 1 - m)], U, out=passed)
        if call.mask is not None:
            passed = passed * call.mask
        if call.reset is not None:
            passed = passed.masked_fill(given["reset"][self._time(0)].bool().unsqueeze(-1), 0)
        own["work_y"] += passed


@functools.cache
def shared_memory(device: torch.device) -> tuple[int, ...]:
    """The shared memory that a program may have on a device, if torch knows."""
    if device.type != "cuda":
        return ()
    found = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", None)
    return () if found is None else (found,)


def factor(like: Tensor) -> Any:
    """The type that products in kernels multiply; Triton's interpreter cannot multiply bfloat16."""
    import triton.language as tl

    if interpreted():
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[like.dtype]


def precision() -> str:
    """Of float32 products in kernels: tf32 only if torch allows it, otherwise three products of tf32 parts."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
