"""Runs of the GPU engine: tensors in, kernels over them, tensors out. `operators` makes them operators of torch.

The products over all steps are torch's: W x + b before the loop, the gradient of U after it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines._arguments import own_precision, resets_backwards
from longlag.engines.cpu.cache.machine import announced
from longlag.engines.gpu.build import Kernels, kernels
from longlag.engines.gpu.equations import Source
from longlag.engines.gpu.graphs import replayed
from longlag.engines.gpu.lines import kept_values
from longlag.engines.gpu.lines import names as pointers
from longlag.engines.gpu.obstacles import interpreted
from longlag.engines.gpu.plan import Plan, plan


class Call(NamedTuple):
    """A run: what is not differentiated, and the tensors that are, by name (see `names`)."""

    cell: Cell
    given: dict[str, Tensor]
    reverse: bool
    eps: float
    heads: int
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
        return "norm_weight" in self.given

    def plan(self) -> Plan:
        net = self.given["net"]
        return plan(self.cell, self.sizes[2], net.element_size(), self.norm, self.heads, *shared_memory(net.device))

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
            call = self._replace(given=given, mask=found[0], lengths=found[1], reset=found[2])
            return function(call, list(rest))

        key = (which, self.cell.key, tuple(self.given), self.reverse, self.eps, self.heads, there, precision(), *how)
        return replayed(key, again, [*self.given.values(), *optional, *others])


def names(cell: Cell, bias: bool, norm: bool) -> list[str]:
    """The tensors of a call in order; net is W x + b (T, B, Gx·H), bias that of the gates without a row in W."""
    found = ["net"] + ["U"] * cell.dense + ["bias"] * bias + [f"first_{v}" for v in cell.fed_back]
    found += [f"number_{m}" for m in cell.per_step] + [f"param_{p}" for p in cell.params]
    return [*found, *(["norm_weight", "norm_bias"] * norm)]


def _kept(kind: str, cell: Cell) -> list[str]:
    return ["saved", "source"] * cell.dense + kept_values(kind, cell)


def kept_shapes(call: Call, save: bool) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what the forward pass keeps: net inputs and what U read (dense), the states."""
    (T, B, H), cell, (kind, BM, *_) = call.sizes, call.cell, call.plan()
    dtype, G, S = call.given["net"].dtype, len(cell.gates), len(cell.sources)
    found = [((T, B, G, H), torch.float32), ((S, T, B, H), dtype)] if cell.dense else []
    steps = (T + BM - 1) // BM if kind == "scan" else T  # a scan keeps the state at the beginning of a chunk
    found += [((steps, B, H), torch.float32)] * len(kept_values(kind, cell))
    return found if save else [((0,), dtype) for _, dtype in found]


def forward(call: Call, save: bool) -> list[Tensor]:
    """Outputs (T, B, H), final states (1, B, H), and what the backward pass reads."""
    with _as_given(call):
        return call.replayed("forward", lambda call, _: _forward(call, save), (), save)


def backward(call: Call, out: Tensor, kept: Sequence[Tensor], d_results: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the tensors given."""
    n = len(kept)
    others = [out, *kept, *d_results]
    with _as_given(call):
        return call.replayed("backward", lambda call, t: _backward(call, t[0], t[1 : 1 + n], t[1 + n :]), others)


@contextmanager
def _as_given(call: Call) -> Iterator[None]:
    """On the device of the tensors, where Triton launches, and in their precision, whatever autocast asks for."""
    net = call.given["net"]
    with torch.cuda.device_of(net), own_precision(net):
        yield


def _forward(call: Call, save: bool) -> list[Tensor]:
    run, cell = Run(call), call.cell
    net = run.tensors["net"]
    out = net.new_empty(run.T, run.B, run.H)
    kept = [net.new_empty(shape, dtype=dtype) for shape, dtype in kept_shapes(call, save)]
    work = [_in_float32(run.tensors[f"first_{v}"]) for v in cell.fed_back]
    own: dict[str, Tensor] = dict(zip(_kept(run.plan.kind, cell), kept))
    own |= {"out": out, **{f"work_{v}": value for v, value in zip(cell.fed_back, work)}}
    if run.plan.kind == "stepwise":
        if not save:
            own["source"] = net.new_empty(len(cell.sources), run.T, run.B, run.H)
        run.steps(own, save)
    else:
        run.launch("forward", own, 0, run.T, save)
    return [out, *(value.to(net.dtype).unsqueeze(0) for value in work), *kept]


def _backward(call: Call, out: Tensor, kept: Sequence[Tensor], d_results: Sequence[Tensor]) -> list[Tensor]:
    run, cell = Run(call), call.cell
    net, T, B, H = run.tensors["net"], run.T, run.B, run.H
    own: dict[str, Tensor] = {"out": out, "errors": d_results[0].contiguous()}
    own |= dict(zip(_kept(run.plan.kind, cell), kept))
    own.setdefault("saved", net)
    own |= {f"work_{v}": _in_float32(d[0]) for v, d in zip(cell.fed_back, d_results[1:])}
    own["to_net"] = torch.empty_like(net)
    own["to_rec"] = own["to_net"]
    if cell.dense and not run.equations.shared:
        own["to_rec"] = net.new_empty(T, B, len(cell.recurrent_gates) * H)
    programs = math.ceil(B / run.plan.BM) if run.plan.kind != "scan" else B
    own |= {f"at_param_{p}": net.new_zeros(programs, H, dtype=torch.float32) for p in cell.params}
    own |= {f"at_number_{m}": net.new_empty(T, B, H, dtype=torch.float32) for m in cell.per_step}
    for name in ("norm_weight", "norm_bias") if call.norm else ():
        own[f"to_{name}"] = net.new_zeros(programs, len(cell.gates), H, dtype=torch.float32)
    if run.plan.kind == "stepwise":
        run.steps_back(own)
    else:
        run.launch("backward", own, 0, T, True)
    found = {"net": own["to_net"], **{f"first_{v}": own[f"work_{v}"] for v in cell.fed_back}}
    found |= {f"number_{m}": own[f"at_number_{m}"] for m in cell.per_step}
    found |= {f"param_{p}": own[f"at_param_{p}"].sum(0) for p in cell.params}
    if call.norm:
        found |= {name: own[f"to_{name}"].sum(0) for name in ("norm_weight", "norm_bias")}
    if cell.dense:
        to_rec = own["to_rec"].view(T * B, -1)
        found["U"] = run.gradient_of_U(to_rec, own["source"])
        if "bias" in call.given:
            rows = to_rec.view(T * B, -1, H)
            found["bias"] = torch.stack([rows[:, k].sum(0, dtype=torch.float32) for k in run.equations.only_U])
    return [found[name].to(value.dtype).view(value.shape) for name, value in call.given.items()]


def _in_float32(value: Tensor) -> Tensor:
    """A copy in the order of memory that kernels read."""
    return value.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


class Run:
    """One pass of a call: its tensors as the kernels want them, and the launches."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan, (self.T, self.B, self.H) = call, call.plan(), call.sizes
        self.kernels: Kernels = kernels(call.cell, self.plan.kind, call.norm)
        self.equations = self.kernels.equations
        self.tensors = {name: value.contiguous() for name, value in call.given.items()}
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
            self.tensors["bias"] = some.new_zeros(max(1, len(self.equations.only_U)), self.H)

    def launch(
        self, which: str, own: dict[str, Tensor], start: int, stop: int, save: bool, *, early: bool = False
    ) -> None:
        """Launch a kernel over the steps start:stop, counted from the end in the backward pass."""
        call, (kind, BM, BH, warps, units) = self.call, self.plan
        flags: dict[str, Any] = {
            "MASK": call.mask is not None,
            "LENGTHS": call.lengths is not None,
            "RESET": call.reset is not None,
            "REVERSE": call.reverse,
            "SAVE": save,
        }
        if kind == "scan":
            flags |= {"BT": BM, "BH": BH}
        else:
            flags |= {"EARLY": early, "BM": BM, "BH": BH, "UNITS": units}
            flags |= {"PRECISION": precision(), "FACTOR": factor(self.tensors["net"])}
        rows = self.B if kind == "scan" else math.ceil(self.B / BM)
        wanted = pointers(kind, self.equations, call.norm, which)
        sizes = [self.T, self.B, self.H] if kind == "scan" else [self.T, self.B, self.H, start, stop, call.eps]
        tensors = {**self.tensors, **own}
        grid, kernel = (rows, math.ceil(self.H / units)), getattr(self.kernels, which)
        options = (which, kind, call.norm, self.tensors["net"].dtype, warps, *flags.values())
        if new := options not in self.kernels.compiled:
            self.kernels.compiled.add(options)
        with announced(f"{call.cell.name}.{which}", "Triton's cache") if new else nullcontext():
            kernel[grid](*(tensors[name] for name in wanted), *sizes, **flags, num_warps=warps, enable_fp_fusion=True)

    def _time(self, n: int) -> int:
        return self.T - 1 - n if self.call.reverse else n

    def steps(self, own: dict[str, Tensor], save: bool) -> None:
        """The forward pass step by step: the products with U by torch between launches."""
        net, U, late = self.tensors["net"], self.tensors["U"].t(), self.equations.late
        rec = net.new_empty(self.B, U.shape[1])
        own["rec"] = rec

        def products(sources: Sequence[Source], t: int) -> None:
            for source in sources:
                for rows in self._rows(source):
                    torch.mm(own["source"][source.number, t], U[:, rows], out=rec[:, rows])

        self.launch("forward", own, -1, 0, save)
        for n in range(self.T):
            products([source for source in self.equations.sources if not source.late], self._time(n))
            if late:
                self.launch("forward", own, n, n + 1, save, early=True)
                products(late, self._time(n))
            self.launch("forward", own, n, n + 1, save)

    def steps_back(self, own: dict[str, Tensor]) -> None:
        """The backward pass step by step."""
        U, to_rec, late = self.tensors["U"], own["to_rec"].view(self.T, self.B, -1), self.equations.late
        received = own["rec"] = U.new_zeros(len(self.equations.sources), self.B, self.H)

        def products(sources: Sequence[Source], t: int) -> None:
            for source in sources:
                first, *others = self._rows(source)
                torch.mm(to_rec[t][:, first], U[first], out=received[source.number])
                for rows in others:
                    received[source.number].addmm_(to_rec[t][:, rows], U[rows])

        for m in range(self.T):
            t = self._time(self.T - 1 - m)
            if late:
                self.launch("backward", own, m, m + 1, True, early=True)
                products(late, t)
            self.launch("backward", own, m, m + 1, True)
            products([source for source in self.equations.sources if not source.late], t)
        self.launch("backward", own, self.T, self.T + 1, True)

    def gradient_of_U(self, to_rec: Tensor, source: Tensor) -> Tensor:
        """The gradient of U (Gy·H, H) from those of the products; zero where a head reads no unit."""
        U = torch.zeros_like(self.tensors["U"])
        for read in self.equations.sources:
            for rows in self._rows(read):
                values = source[read.number].view(self.T * self.B, self.H)
                if self.call.heads == 1:
                    torch.mm(to_rec[:, rows].t(), values, out=U[rows])
                else:
                    self._gradient_of_heads(to_rec[:, rows], values, U[rows])
        return U

    def _gradient_of_heads(self, errors: Tensor, values: Tensor, place: Tensor) -> None:
        heads, units = self.call.heads, self.H // self.call.heads
        left = errors.unflatten(1, (-1, heads, units)).permute(2, 1, 3, 0).flatten(1, 2)  # (heads, gates·units, T·B)
        found = (left @ values.unflatten(1, (heads, units)).transpose(0, 1)).unflatten(1, (-1, units))
        pieces = place.view(-1, heads, units, heads, units)
        for k in range(heads):
            pieces[:, k, :, k] = found[k]

    def _rows(self, source: Source) -> list[slice]:
        """The rows of U that read a source."""
        return [slice(start * self.H, stop * self.H) for start, stop in source.runs]


@functools.cache
def shared_memory(device: torch.device) -> tuple[int, ...]:
    """The shared memory that a program may have on a device, if torch knows."""
    if device.type != "cuda":
        return ()
    known = torch.cuda.get_device_properties(device)
    names = ("shared_memory_per_block_optin", "shared_memory_per_block")  # AMD has only the second
    found = [getattr(known, name) for name in names if hasattr(known, name)]
    return tuple(found[:1])


def factor(like: Tensor) -> Any:
    """The type that products in kernels multiply; Triton's interpreter cannot multiply bfloat16."""
    import triton.language as tl

    if interpreted():
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[like.dtype]


def precision() -> str:
    """Of float32 products in kernels: tf32 only if torch allows it, otherwise three products of tf32 parts."""
    if torch.version.hip is not None:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
