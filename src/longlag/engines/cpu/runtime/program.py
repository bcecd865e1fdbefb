"""A cell's kernels for one dtype, and what a call must know to use them."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.codegen import generate
from longlag.engines.cpu.codegen.lstm97 import Blocks
from longlag.engines.cpu.runtime.threads import in_pieces

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
WORTH_A_THREAD = 1_000_000  # multiply-adds below which a thread costs more than it brings


CHUNK = 32  # rows of net inputs computed at a time, if the batch is smaller


class Room(NamedTuple):
    """What a call of some size needs."""

    shape: tuple[int, int, int]  # of the outputs: T, B, H
    threads: int
    kept: int  # numbers in the block for the backward pass
    memory: int  # and in the block for the time of the call
    table: array  # sizes and places are in it, addresses are not
    tiles: tuple[tuple[int, int], ...] = ()  # of the sums for W and U: how many, and their threads


class Program:
    """Kernels of a cell (built when first used), their tables, and its numbers of gates."""

    def __init__(self, cell: Any, dtype: str, norm: bool) -> None:
        self.cell, self.dtype, self.norm = cell, dtype, norm
        self.input_gates, self.recurrent_gates = len(cell.input_gates), len(cell.recurrent_gates)
        self.own_rec = cell.dense and cell.input_gates != cell.recurrent_gates
        self.number = {"float32": 4, "float64": 8}[dtype]
        self.width = machine.VECTORS * machine.VECTOR_BYTES // self.number  # columns of a packed matrix's panel
        self.name = re.sub(r"\W", "_", f"{cell.name}_{dtype}{'_norm' if norm else ''}")
        self.names: dict[str, list[str]] = dict.fromkeys(("forward", "backward"), generate.names(cell))
        self._kernels: dict[str, int] = {}  # addresses of those used so far
        self.places = {part: {name: k for k, name in enumerate(names)} for part, names in self.names.items()}

    def runner(self, part: str, r: Room) -> Callable[[array], None]:
        """Runs ``forward`` or ``backward`` on a table, in as many threads as there is room for."""
        if part not in self._kernels:
            key = self.cell.code_key if isinstance(self.cell, Blocks) else self.cell.key
            self._kernels[part] = machine.load(self.name, f"{key} {self.norm}", part, lambda: self._build(part))
        kernel, B, stage = self._kernels[part], r.shape[1], self.places[part]["stage"]
        call = machine.callable_at(kernel)

        def alone(table: array) -> None:
            call(table.buffer_info()[0], 0, B, 0)

        def shared(table: array) -> None:
            at, wanted = table.buffer_info()[0], table[stage]
            table[stage] = generate.PACK
            in_pieces(kernel, at, 0, 1)
            table[stage] = generate.ROWS
            in_pieces(kernel, at, B, r.threads)
            for sums, (tiles, threads) in zip((generate.SUM_W, generate.SUM_U), r.tiles):
                if wanted & sums:
                    table[stage] = sums
                    in_pieces(kernel, at, tiles, threads)

        return alone if r.threads == 1 and all(threads == 1 for _, threads in r.tiles) else shared

    def _build(self, part: str) -> tuple[str, bytes]:
        from longlag.engines.cpu.cache.compile import machine_code  # loads Numba

        source, kernel = generate.kernel(self.cell, self.dtype, self.norm, part)
        return source, machine_code(kernel)

    def room(
        self, part: str, x: tuple, rows: int, widths: tuple, plain: bool, save: bool, reverse: bool, most_threads: int
    ) -> Room:
        """What a call on x (T, B, I) with W (rows, I) needs.

        Args:
            widths: of each state.
            plain: whether U reads nothing but the outputs of the step before.
            save: whether there will be a backward pass.
            most_threads: as many may be used.
        """
        T, B, I = x
        H, number = rows // self.input_gates, self.number
        chunk = max(1, CHUNK // max(B, 1))
        threads = threads_for(B, T * B * (rows * I + self.recurrent_gates * H * H), most_threads)
        scratch = _even(generate.scratch(self.cell, self.norm) * H + chunk * B * (H + self.width))
        kept = self.kept(T, B, rows, widths, plain)
        if not save:
            kept |= {"a": chunk * B * rows, **({"rec": B * self.recurrent_gates * H} if self.own_rec else {})}
        shapes = self.matrices(rows, I, H)
        memory = {f"P{m}": self.packed(*shape, part == "forward") for m, shape in shapes.items()}
        memory |= {"scratch": threads * scratch}
        words = {"T": T, "B": B, "I": I, "H": H, "chunk": chunk, "reverse": reverse, "scratch_size": scratch}
        words |= {"multiply": product("multiply", self.dtype), "pack": product("pack", self.dtype)}
        words |= {"stage": generate.PACK | generate.ROWS, "source": -1, "save": save, "S": [H, *widths][-1]}
        words |= dict(zip(generate.LAYOUT, getattr(self.cell, "layout", ())))
        tiles = []
        if part == "backward":
            memory |= {"dA": T * B * rows, **({"dRec": T * B * self.recurrent_gates * H} if self.own_rec else {})}
            memory |= {f"d_{s}_own": B * n for s, n in zip(self.cell.fed_back, widths)}
            scratches = [0]
            for m, (M, N) in shapes.items():
                kernel, width = ("outer_narrow", self.width // 2) if self.width // 2 >= N else ("outer", self.width)
                words |= {f"outer_{m}": product(kernel, self.dtype), f"tiles_{m}": -(-M // 8)}
                tiles.append((-(-M // 8), threads_for(-(-M // 8), T * B * M * N, most_threads)))
                scratches.append(tiles[-1][1] * (machine.BLOCK * (8 + -(-N // width) * width) + 16 * width))
            memory |= {"outer_scratch": max(scratches)}
        for sizes in (kept, memory):
            at = 0
            for name, size in sizes.items():
                words[name] = at * number
                at += _even(size)
        table = array("q", [words.get(name, 0) for name in self.names[part]])
        n_kept, n_memory = numbers_in(kept), numbers_in(memory)
        return Room((T, B, H), threads, n_kept, n_memory, table, tuple(tiles))

    def kept(self, T: int, B: int, rows: int, widths: Sequence[int], plain: bool) -> dict[str, int]:
        """Numbers that the backward pass reads: states, net inputs, U y where that stands apart, what U read."""
        H, states = rows // self.input_gates, self.cell.states
        sizes = {f"{s}_all": T * B * n for s, n in zip(states, widths[len(widths) - len(states) :])}
        sizes |= {"a": T * B * rows}
        sizes |= {"rec": T * B * self.recurrent_gates * H} if self.own_rec else {}
        return sizes | ({"source": T * B * H} if self.cell.dense and not plain else {})

    def matrices(self, rows: int, I: int, H: int) -> dict[str, tuple[int, int]]:
        """Shapes of W and, if there is one, U."""
        return {"W": (rows, I), **({"U": (self.recurrent_gates * H, H)} if self.cell.dense else {})}

    def packed(self, rows: int, columns: int, transposed: bool) -> int:
        """Numbers in a packed matrix."""
        N, K = (rows, columns) if transposed else (columns, rows)
        return -(-N // self.width) * self.width * K


def _even(size: int) -> int:
    """Rounded up, so that what comes next begins with a whole vector."""
    return (size + 15) // 16 * 16


def numbers_in(sizes: dict[str, int]) -> int:
    """The size of a block that holds parts of these sizes."""
    return sum(map(_even, sizes.values()))


@functools.cache
def program(cell: Any, dtype: torch.dtype, norm: bool) -> Program:
    """The kernels of a cell."""
    return Program(cell, DTYPES[dtype], norm)


@functools.cache
def product(name: str, dtype: str) -> int:
    """The address of ``multiply``, ``pack`` or ``outer``."""

    def build() -> tuple[str, bytes]:
        from longlag.engines.cpu.simd import product_kernels  # loads Numba

        return product_kernels.build(name, dtype)

    return machine.load(f"product_{dtype}", "", name, build)


def threads_for(size: int, work: int, most: int) -> int:
    """How many threads share ``size`` rows of ``work`` multiply-adds in all."""
    return max(1, min(most, size, work // WORTH_A_THREAD))
