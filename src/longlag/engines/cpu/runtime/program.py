"""A cell's kernels for one dtype, and the workspace of a call."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.codegen import generate
from longlag.engines.cpu.runtime.per_cell import per_cell
from longlag.engines.cpu.runtime.threads import run_in_threads
from longlag.engines.cpu.simd import job

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
WORTH_A_THREAD = 1_000_000  # multiply-adds below which a thread costs more than it saves
CHUNK = 32  # rows of net inputs computed together, if the batch is smaller
# Up to this many rows (T·B) the matrices are not packed: packing would cost more than it saves.
UNPACKED_ROWS = {"forward": 16, "backward": 32}
UNPACKED_PRODUCT = {"forward": "multiply_by_rows", "backward": "multiply_by_columns"}
MOST_NONZEROS = 0.25  # share of entries, times the batch, up to which a product with a sparse U reads only these
SHARED_PRODUCT = 60_000  # multiply-adds of U y, per thread, from which threads share the steps of a single sequence


SCRATCH = 1 << 18  # bytes of scratch memory that a thread keeps; calls that need more allocate their own


class _Scratch(threading.local):
    """Scratch memory of the calls that one thread makes. A kernel reads nothing that it has not written there."""

    address: int

    def new(self) -> int:
        self._block = torch.empty(SCRATCH, dtype=torch.uint8, device="cpu")
        self.address = self._block.data_ptr()
        return self.address


_scratch = _Scratch()


class Workspace(NamedTuple):
    """Memory layout, thread counts and pointer table for one call shape."""

    shape: tuple[int, int, int]  # of the outputs: T, B, H
    threads: int
    save: bool  # whether there will be a backward pass
    kept: int  # numbers in the block that the backward pass reads; without one, the block is part of scratch memory
    memory: int  # numbers in the block that is freed after the call
    table: array  # sizes and offsets are filled in, addresses are not
    tiles: tuple[tuple[int, int], ...] = ()  # of the gradients of W and U: number of tiles, number of threads
    sharing: int = 1  # threads that share every product U y, for a single sequence
    run_shared: str = "run_shared"  # the kernel of these threads
    nonzeros: int = 0  # entries of a sparse U that there is memory for; 0: U is dense
    packed_U: int = 0  # bytes before a packed sparse U


class Program:
    """Kernels of a cell (built on first use), the layout of their tables, and the cell's numbers of gates."""

    def __init__(self, cell: Any, dtype: str, norm: bool) -> None:
        self.cell, self.dtype, self.norm = cell, dtype, norm
        self.input_gates, self.recurrent_gates = len(cell.input_gates), len(cell.recurrent_gates)
        self.structure = generate.structure(cell, norm)
        self.own_rec = self.structure.separate
        self.number = {"float32": 4, "float64": 8}[dtype]
        self.width = machine.VECTORS * machine.VECTOR_BYTES // self.number  # columns of a packed matrix's panel
        self.name = re.sub(r"\W", "_", f"{cell.name}_{dtype}{'_norm' if norm else ''}")
        self.names: dict[str, list[str]] = dict.fromkeys(
            ("forward", "backward"), generate.names(cell, len(self.structure.runs) * bool(self.structure.sources))
        )
        self._kernels: dict[str, int] = {}  # addresses of the kernels used so far
        self.places = {part: {name: k for k, name in enumerate(names)} for part, names in self.names.items()}

    def runner(self, part: str, workspace: Workspace) -> Callable[[array], None]:
        """A function that runs ``forward`` or ``backward`` on the workspace's threads, on a table.

        The table is filled in by the caller, except for the address of scratch memory.
        """
        if part not in self._kernels:
            key = getattr(self.cell, "code_key", self.cell.key)  # one kernel serves all layouts of blocks
            self._kernels[part] = machine.load(self.name, f"{key} {self.norm}", part, lambda: self._build(part))
        kernel, B, places = self._kernels[part], workspace.shape[1], self.places[part]
        call, stage = machine.callable_at(kernel), places["stage"]

        memory, kept, dtype = places["memory"], places["kept"], getattr(torch, self.dtype)
        saved, end = workspace.save, workspace.memory * self.number  # of what every call needs
        size = workspace.memory + (0 if saved else workspace.kept)

        def set_capacity(table: array) -> None:
            """Tell the kernel that packs a sparse U how many entries there is memory for."""
            at = table[memory] + table[places["PU"]] + workspace.packed_U
            ctypes.c_int64.from_address(at + 8 * job.CAPACITY).value = workspace.nonzeros

        def run_small(table: array) -> None:
            try:
                at = _scratch.address
            except AttributeError:  # the first call of this thread
                at = _scratch.new()
            table[memory] = at
            if not saved:
                table[kept] = at + end
            call(table.buffer_info()[0], 0, B, 0)

        def block_for(table: array) -> torch.Tensor:
            block = torch.empty(size, dtype=dtype, device="cpu")
            table[memory] = block.data_ptr()
            if not saved:
                table[kept] = table[memory] + end
            return block

        def run(table: array) -> None:
            block = block_for(table)
            if workspace.nonzeros:
                set_capacity(table)
            call(table.buffer_info()[0], 0, B, 0)
            del block

        def run_stages(table: array) -> None:
            block = block_for(table)
            address, wanted, sharing = table.buffer_info()[0], table[stage], workspace.sharing
            jobs = {m: table[memory] + table[places[m]] for m in ("PW", "PU") if sharing > 1}
            for matrix, at in jobs.items():
                _clear_job(at, sharing if matrix == "PU" else 1)
            if workspace.nonzeros:
                set_capacity(table)
            table[stage] = generate.PACK
            run_in_threads(kernel, address, 0, 1)
            table[stage] = generate.ROWS
            if sharing > 1:
                words = array("q", (kernel, address, jobs["PU"]))
                run_in_threads(product(workspace.run_shared, self.dtype), words.buffer_info()[0], sharing, sharing)
            else:
                run_in_threads(kernel, address, B, workspace.threads)
            for sums, (tiles, threads) in zip((generate.SUM_W, generate.SUM_U), workspace.tiles):
                if wanted & sums:
                    table[stage] = sums
                    run_in_threads(kernel, address, tiles, threads)
            del block

        most = max(workspace.threads, workspace.sharing, *(threads for _, threads in workspace.tiles))
        if most > 1:
            return run_stages
        return run_small if size * self.number <= SCRATCH and not workspace.nonzeros else run

    def _build(self, part: str) -> tuple[str, bytes]:
        from longlag.engines.cpu.cache.compile import machine_code  # loads Numba

        source, kernel = generate.kernel(self.cell, self.dtype, self.norm, part)
        return source, machine_code(kernel)

    def workspace(
        self,
        part: str,
        x: tuple[int, int, int],
        rows: int,
        widths: tuple[int, ...],
        plain: bool,
        save: bool,
        reverse: bool,
        nonzeros: int,
        heads: int,
        most_threads: int,
    ) -> Workspace:
        """The workspace of a call on x (T, B, I) with W (rows, I).

        Args:
            widths: of each state.
            plain: whether U reads nothing but the outputs of the step before.
            save: whether there will be a backward pass.
            nonzeros: entries of U that may be other than zero; 0: U is dense.
            heads: blocks on the diagonal of U for every gate.
            most_threads: the largest number of threads.
        """
        T, B, I = x
        H, number = rows // self.input_gates, self.number
        chunk = max(1, CHUNK // max(B, 1))
        threads = threads_for(B, T * B * (rows * I + self.recurrent_gates * H * H), most_threads)
        scratch = _aligned(generate.scratch(self.cell, self.norm) * H + chunk * B * (H + self.width))
        kept = self.kept(T, B, rows, widths, plain)
        formed = self.structure.sources
        if not save:
            kept |= {"a": chunk * B * rows, **({"rec": B * self.recurrent_gates * H} if self.own_rec else {})}
            kept |= {"source": len(formed) * B * H} if formed else {}
        shapes, unpacked = self.matrices(rows, I, H), UNPACKED_ROWS[part] >= T * B
        sharing = 1
        entries = self.recurrent_gates * H * H
        if unpacked or formed or not 0 < nonzeros * B < MOST_NONZEROS * entries:
            nonzeros = 0
        if unpacked or heads == 1 or H // heads * number < machine.VECTOR_BYTES:  # products of less than a vector
            heads = 0
        if B == 1 and self.cell.dense and not (unpacked or formed or heads):
            sharing = max(1, min(most_threads, (nonzeros or entries) // SHARED_PRODUCT))
        memory = {f"P{m}": 2 if unpacked else self.packed(*shape, part == "forward") for m, shape in shapes.items()}
        if heads:
            memory["PU"] = self.packed_heads(self.recurrent_gates, heads, H // heads)
        if formed:
            del memory["PU"]
            for k, n in self.runs:
                size = self.packed_heads(n, heads, H // heads) if heads else self.packed(n * H, H, part == "forward")
                memory[f"PU_{k}"] = 2 if unpacked else size
        if nonzeros:
            columns = self.recurrent_gates * H if part == "forward" else H
            memory["PU"] = job.sparse_words(columns, nonzeros, number) * 8 // number
        if sharing > 1:
            memory = {name: size + job.words(sharing) * 8 // number for name, size in memory.items()}
        memory |= {"scratch": threads * scratch}
        words = {"T": T, "B": B, "I": I, "H": H, "chunk": chunk, "reverse": reverse, "scratch_size": scratch}
        kernels = ("multiply_shared", "pack_shared") if sharing > 1 else ("multiply", "pack")
        kernels = (UNPACKED_PRODUCT[part], "keep_address") if unpacked else kernels
        of_U = (
            tuple(f"{name}_sparse{'_shared' * (sharing > 1)}" for name in ("multiply", "pack")) if nonzeros else kernels
        )
        of_U = ("multiply_heads", "pack_heads") if heads else of_U
        names = ("multiply", "pack", "multiply_U", "pack_U")
        words |= {name: product(kernel, self.dtype) for name, kernel in zip(names, kernels + of_U)}
        words["heads"] = heads
        words |= {"stage": generate.PACK | generate.ROWS, "source": -1, "save": save, "S": [H, *widths][-1]}
        words |= dict(zip(generate.LAYOUT, getattr(self.cell, "layout", ())))
        tiles = []
        if part == "backward":
            memory |= {"dA": T * B * rows, **({"dRec": T * B * self.recurrent_gates * H} if self.own_rec else {})}
            memory |= {f"d_{s}_own": B * n for s, n in zip(self.cell.fed_back, widths)}
            scratches = [0]
            for m, (M, N) in shapes.items():
                kernel, width = ("outer_narrow", self.width // 2) if self.width // 2 >= N else ("outer", self.width)
                kernel, width = ("outer_heads", self.width) if heads and m == "U" else (kernel, width)
                count = sum(-(-n * H // 8) for _, n in self.runs) if formed and m == "U" else -(-M // 8)
                words |= {f"outer_{m}": product(kernel, self.dtype), f"tiles_{m}": count}
                tiles.append((count, threads_for(count, T * B * M * N, most_threads)))
                scratches.append(tiles[-1][1] * (machine.BLOCK * (8 + -(-N // width) * width) + 16 * width))
            memory |= {"outer_scratch": max(scratches)}
        for sizes in (kept, memory):
            at = 0
            for name, size in sizes.items():
                words[name] = at * number
                at += _aligned(size)
        table = array("q", [words.get(name, 0) for name in self.names[part]])
        n_kept, n_memory = numbers_in(kept), numbers_in(memory)
        run_shared = "run_sparse_shared" if nonzeros else "run_shared"
        packed_U = job.words(sharing) * 8 if sharing > 1 else 0
        return Workspace(
            (T, B, H), threads, save, n_kept, n_memory, table, tuple(tiles), sharing, run_shared, nonzeros, packed_U
        )

    def kept(self, T: int, B: int, rows: int, widths: Sequence[int], plain: bool) -> dict[str, int]:
        """Sizes of the arrays that the backward pass reads: states, net inputs, U y if separate, the input of U."""
        H, states = rows // self.input_gates, self.cell.states
        sizes = {f"{s}_all": T * B * n for s, n in zip(states, widths[len(widths) - len(states) :])}
        sizes |= {"a": T * B * rows}
        sizes |= {"rec": T * B * self.recurrent_gates * H} if self.own_rec else {}
        if self.structure.sources:
            return sizes | {"source": len(self.structure.sources) * T * B * H}
        return sizes | ({"source": T * B * H} if self.cell.dense and not plain else {})

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Place and gates of the pieces of U that are multiplied apart."""
        return [(k, count) for k, (_, count) in enumerate(self.structure.runs)]

    def matrices(self, rows: int, I: int, H: int) -> dict[str, tuple[int, int]]:
        """Shapes of W and, if there is one, U."""
        return {"W": (rows, I), **({"U": (self.recurrent_gates * H, H)} if self.cell.dense else {})}

    def packed_heads(self, gates: int, heads: int, D: int) -> int:
        """Numbers in the packed blocks of U for some gates."""
        return gates * heads * self.packed(D, D, True)

    def packed(self, rows: int, columns: int, transposed: bool) -> int:
        """Numbers in a packed matrix."""
        N, K = (rows, columns) if transposed else (columns, rows)
        return -(-N // self.width) * self.width * K


def _clear_job(address: int, threads: int) -> None:
    """Prepare a job for this many threads."""
    words = (ctypes.c_int64 * job.words(threads)).from_address(address)
    words[:] = [0] * len(words)
    words[job.THREADS] = threads


def _aligned(size: int) -> int:
    """The size rounded up, so that the next part begins at a whole vector."""
    return (size + 15) // 16 * 16


def numbers_in(sizes: dict[str, int]) -> int:
    """The size of a block that holds parts of these sizes."""
    return sum(map(_aligned, sizes.values()))


def _program(cell: Any, dtype: torch.dtype, norm: bool) -> Program:
    """The kernels of a cell."""
    return Program(cell, DTYPES[dtype], norm)


program = per_cell(_program, maxsize=8)


@functools.cache
def product(name: str, dtype: str) -> int:
    """The address of a kernel of `longlag.engines.cpu.simd.product_kernels`."""

    def build() -> tuple[str, bytes]:
        from longlag.engines.cpu.simd import product_kernels  # loads Numba

        return product_kernels.build(name, dtype)

    return machine.load(f"product_{dtype}", "", name, build)


def threads_for(size: int, work: int, most: int) -> int:
    """The number of threads for ``size`` rows with ``work`` multiply-adds in total."""
    return max(1, min(most, size, work // WORTH_A_THREAD))
