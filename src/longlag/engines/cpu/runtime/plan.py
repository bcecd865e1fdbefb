"""Plans: everything about a call of the CPU engine that depends on shapes only, computed once and cached.

A kernel reads one pointer table: sizes, then the addresses of the tensors given, of the results and of the workspace.
A plan holds the table with the sizes filled in and the index of every address.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from longlag.engines.cpu.codegen.generate import SUM_U, SUM_W
from longlag.engines.cpu.runtime._private import never
from longlag.engines.cpu.runtime.per_cell import per_cell
from longlag.engines.cpu.runtime.program import Workspace, program
from longlag.engines.cpu.runtime.validation import check_shapes


class Target(NamedTuple):
    """The table entry and the kernel stage of a gradient."""

    name: str  # in the table
    stage: int = 0  # the stage of the kernel that computes it
    each: bool = False  # whether the gradient is returned per sequence and summed later


TARGETS = {
    "x": Target("dx"),
    "W": Target("dW", SUM_W),
    "b_x": Target("db", SUM_W),
    "U": Target("dU", SUM_U),
    "gamma": Target("dGamma", each=True),
    "beta": Target("dBeta", each=True),
}


def target_of(name: str, own_rec: bool) -> Target:
    """Target of the gradient of the tensor with this name; ``own_rec``: U y and W x feed different gates."""
    if name == "bias_hh":
        return Target("dbias_hh", SUM_U if own_rec else SUM_W)
    if name.endswith("_all"):  # the cell's params
        return Target(f"d_{name.removesuffix('_all')}_sum", each=True)
    return TARGETS.get(name) or Target(f"d_{name}")


Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # shape, strides and dtype of a contiguous tensor


def form(shape: Sequence[int], dtype: torch.dtype) -> Form:
    """The form of a contiguous tensor of this shape."""
    strides = [math.prod([max(n, 1) for n in shape[k + 1 :]]) for k in range(len(shape))]
    return tuple(shape), tuple(strides), dtype


class Pass(NamedTuple):
    """One pass, ``forward`` or ``backward``."""

    part: str
    run: Callable[[array], None]  # takes a table filled in, except for the address of scratch memory
    workspace: Workspace
    table: array  # with one spare slot at the end, for pointers that this kernel ignores
    places: tuple[int, ...]  # indices of: tensors given, memory kept, outputs, final states or gradients
    results: tuple[tuple[int, ...], ...]  # shapes of those final states or gradients
    made: tuple[Form, ...]  # of what the pass returns: outputs and final states, or gradients
    computed: tuple[int, ...] = ()  # indices of the given tensors that get a gradient
    each: tuple[int, ...] = ()  # indices of the gradients that are returned per sequence and summed later


class Plan:
    """The plan of all calls with the same cell, the same tensors given and the same sizes.

    Args:
        names: of the tensors given, as in the kernels' tables.
        shapes, dtype: of those tensors.
        plain: whether U reads nothing but the outputs of the step before.
        save: whether there will be a backward pass.
        eps: of the norm.
        nonzeros: entries of U that may be other than zero; 0: U is dense.
        heads: blocks on the diagonal of U for every gate.
        threads: the largest number of threads.

    Attributes:
        alike: tells whether tensors need no examination, because they are like those of an earlier call.
        saved_alike: the same for what a backward pass reads.
        kept: the memory that a backward pass reads.
    """

    def __init__(
        self,
        cell: Any,
        names: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
        dtype: torch.dtype,
        plain: bool,
        save: bool,
        reverse: bool,
        eps: float,
        nonzeros: int,
        heads: int,
        threads: int,
    ) -> None:
        self.dtype, self.save, self.threads = dtype, save, threads
        self.alike: Callable[..., bool] = never
        self.saved_alike: Callable[..., bool] = never
        self.program, self.names, self.shapes = program(cell, dtype, "gamma" in names), names, shapes
        sizes = dict(zip(names, shapes))
        x, rows = sizes["x"], sizes["W"][0]
        H = rows // len(cell.input_gates)
        widths = tuple(sizes[f"{s}_0"][-1] if f"{s}_0" in sizes else H for s in cell.fed_back)
        check_shapes(cell, sizes, H)
        self.number = dtype.itemsize
        self.sizes = tuple(math.prod(shape) * self.number for shape in shapes)  # bytes of each tensor given
        self._sizes = (x[0], x[1], x[2]), rows, widths, plain
        self._how, self._eps = (reverse, nonzeros, heads, threads), eps
        self._backward: dict[tuple[bool, ...], Pass] = {}
        ends = {f"{s}_end": (1, x[1], n) for s, n in zip(cell.fed_back, widths)}
        self.forward = self._pass("forward", save, ends)
        self.kept = form((self.forward.workspace.kept,), dtype)
        self.errors = [self.program.places["backward"][n] for n in ("dOut", *(f"d_{s}_end" for s in cell.fed_back))]

    def backward(self, needed: tuple[bool, ...]) -> Pass:
        """The backward pass when gradients of some of the tensors given are needed."""
        if needed not in self._backward:
            self._backward[needed] = self._plan_backward(needed)
        return self._backward[needed]

    def _plan_backward(self, needed: tuple[bool, ...]) -> Pass:
        targets = [target_of(name, self.program.own_rec) for name in self.names]
        stages, places = 0, self.program.places["backward"]
        for target, need in zip(targets, needed):
            stages |= target.stage if need else 0
        computed = [
            k
            for k, (target, need) in enumerate(zip(targets, needed))
            if target.name in places and (target.stage & stages if target.stage else need or target.each)
        ]
        each = [k for k in computed if targets[k].each]
        B = self._sizes[0][1]
        results = {targets[k].name: (B, *self.shapes[k]) if k in each else self.shapes[k] for k in computed}
        done = self._pass("backward", True, results)._replace(computed=tuple(computed), each=tuple(each))
        done.table[places["stage"]] |= stages
        return done

    def _pass(self, part: str, save: bool, results: dict[str, tuple[int, ...]]) -> Pass:
        workspace, places = self.program.workspace(part, *self._sizes, save, *self._how), self.program.places[part]
        spare = len(workspace.table)
        found = [places.get(name, spare) for name in (*self.names, "kept", "out", *results)]
        run, table = self.program.runner(part, workspace), workspace.table + array("q", [0])
        table[places["eps"]] = struct.unpack("q", struct.pack("d", self._eps))[0]
        shapes = [*[workspace.shape] * (part == "forward"), *results.values()]
        made = tuple(form(shape, self.dtype) for shape in shapes)
        return Pass(part, run, workspace, table, tuple(found), tuple(results.values()), made)


plan = per_cell(Plan, maxsize=1024)


class Kind:
    """The arguments of a run that are not tensors.

    Args:
        names: of the tensors that may need gradients, as in the kernels' tables.
        plain: whether U reads nothing but the outputs of the step before.
        bare: whether there is no mask, no lengths and no reset.
        nonzeros: entries of U that may be other than zero; 0: U is dense.
        heads: blocks on the diagonal of U for every gate.

    Attributes:
        latest: the plan of the latest call.
    """

    def __init__(
        self,
        cell: Any,
        names: tuple[str, ...],
        reverse: bool,
        eps: float,
        plain: bool,
        bare: bool,
        nonzeros: int = 0,
        heads: int = 1,
    ) -> None:
        self.cell, self.names, self.reverse, self.eps, self.plain, self.bare = cell, names, reverse, eps, plain, bare
        self.nonzeros, self.heads = nonzeros, heads
        self.latest: Plan | None = None

    def plan(self, save: bool, threads: int, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...]) -> Plan:
        """The plan for tensors of this dtype and these shapes."""
        how = self.plain, save, self.reverse, self.eps, self.nonzeros, self.heads, threads
        return plan(self.cell, self.names, shapes, dtype, *how)


def names_of(
    cell: Any, biases: int, recurrent: bool, initial: tuple[bool, ...], params: int, numbers: int, norm: bool
) -> tuple[str, ...]:
    """The names in the kernels' tables of the tensors given, in order.

    Args:
        biases: how many of b_x and bias_hh there are.
        recurrent: whether there is U.
        initial: for parts of the initial state, whether they are given; ().
        params, numbers: how many there are.
    """
    names = ["x", "W", *("b_x", "bias_hh")[:biases], *["U"] * recurrent]
    names += [f"{s}_0" for s, given in zip(cell.fed_back, initial) if given]
    names += [f"{p}_all" for p in cell.params[:params]] + [f"{m}_t" for m in cell.per_step[:numbers]]
    return (*names, *["gamma", "beta"] * norm)


def _kind(cell: Any, sizes: Any, given: tuple[Any, ...], *options: Any) -> Kind:
    return Kind(cell, names_of(cell, *given), *options)  # one for every size: each has its own latest plan


kind_of = per_cell(Kind, maxsize=64)
kind_of_call = per_cell(_kind, maxsize=1024)  # the same, by shapes of x and W and the arguments of `names_of`


def forget() -> None:
    """Clear all plans."""
    for cache in (plan, kind_of, kind_of_call):
        cache.cache_clear()
