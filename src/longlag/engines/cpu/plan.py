"""What a call of the CPU engine needs beside its tensors, worked out once for all calls of the same kind.

A call fills in a table: the addresses of what it is given, of what it computes and of its working memory. A plan has
the table with the sizes in it already, and knows where in it each address goes.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any, NamedTuple

import torch

from longlag.engines.cpu.generate import SUM_U, SUM_W
from longlag.engines.cpu.program import Room, program


class Target(NamedTuple):
    """Where a gradient goes: its name in the table, the stage that computes it, whether there is one per sequence."""

    name: str
    stage: int = 0
    each: bool = False


TARGETS = {
    "x": Target("dx"),
    "W": Target("dW", SUM_W),
    "b_x": Target("db", SUM_W),
    "b_too": Target("db_too", SUM_W),
    "U": Target("dU", SUM_U),
    "gamma": Target("dGamma", each=True),
    "beta": Target("dBeta", each=True),
}


def target_of(name: str) -> Target:
    """Of the gradient of the tensor with this name."""
    if name.endswith("_all"):  # the cell's params
        return Target(f"d_{name.removesuffix('_all')}_sum", each=True)
    return TARGETS.get(name) or Target(f"d_{name}")


class Pass(NamedTuple):
    """One pass, forward or backward."""

    room: Room
    table: array  # a word more than the kernel reads: the address of what it does not want goes there
    places: tuple[int, ...]  # of the tensors given, outputs, kept and working memory, final states or gradients
    computed: tuple[int, ...] = ()  # which of the tensors given get a gradient
    each: tuple[int, ...] = ()  # and of which it comes one per sequence


class Plan:
    """For calls with the same cell, the same tensors given and the same sizes.

    Args:
        names: of the tensors given, as in the kernels' tables.
        dtype, x, rows: the numbers, the shape (T, B, I) of x, the rows of W.
        widths: of each state; None is H.
        plain: whether U reads nothing but the outputs of the step before.
        save: whether there will be a backward pass.
        threads: as many may be used.
    """

    def __init__(
        self,
        cell: Any,
        names: tuple[str, ...],
        dtype: torch.dtype,
        x: tuple[int, int, int],
        rows: int,
        widths: tuple[int | None, ...],
        plain: bool,
        save: bool,
        reverse: bool,
        threads: int,
    ) -> None:
        self.program, self.names = program(cell, dtype, "gamma" in names), names
        self._sizes = x, rows, widths, plain
        self._how = reverse, threads
        self.forward = self._pass("forward", save, [f"{s}_end" for s in cell.fed_back])
        self.ends = tuple((1, x[1], n) for n in self.forward.room.widths)
        self.errors = [self.program.places["backward"][n] for n in ("dOut", *(f"d_{s}_end" for s in cell.fed_back))]

    @functools.lru_cache(maxsize=8)  # noqa: B019 (plans live in a cache, too)
    def backward(self, needed: tuple[bool, ...]) -> Pass:
        """The backward pass when gradients of some of the tensors given are needed."""
        targets, places = [target_of(name) for name in self.names], self.program.places["backward"]
        stages = 0
        for target, need in zip(targets, needed):
            stages |= target.stage if need else 0
        computed = [
            k
            for k, (target, need) in enumerate(zip(targets, needed))
            if target.name in places and (target.stage & stages if target.stage else need or target.each)
        ]
        done = self._pass("backward", True, [targets[k].name for k in computed])
        done.table[places["stage"]] |= stages
        return done._replace(computed=tuple(computed), each=tuple(k for k in computed if targets[k].each))

    def _pass(self, part: str, save: bool, results: list[str]) -> Pass:
        room, places = self.program.room(part, *self._sizes, save, *self._how), self.program.places[part]
        nowhere = len(room.table)
        found = [places.get(name, nowhere) for name in (*self.names, "out", "kept", "memory", *results)]
        return Pass(room, room.table + array("q", [0]), tuple(found))


plan = functools.lru_cache(maxsize=1024)(Plan)
