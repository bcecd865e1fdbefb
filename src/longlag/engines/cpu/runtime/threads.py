"""Threads for kernels: those on which torch's own operations run, so that neither waits for the other.

torch's CPU builds use OpenMP. Its threads stay awake for a while after every operation; threads of our own would find
the processors taken. ``GOMP_parallel`` is the entry that compilers use for a parallel region: GNU's OpenMP has it, and
so have LLVM's and Intel's. Where none is loaded (torch on macOS without OpenMP, say) a pool of threads does the work.
"""

from __future__ import annotations

import ctypes
import functools
import os
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from longlag.engines.cpu.cache import machine

Fork = Callable[[int, int, int, int], None]  # (kernel, table, size, threads)


def run_in_threads(kernel: int, at: int, size: int, threads: int) -> None:
    """The kernel at an address, over 0:size of the table at another, one piece per thread."""
    if threads == 1:
        machine.callable_at(kernel)(at, 0, size, 0)
    else:
        (_with_openmp() or _with_pool)(kernel, at, size, threads)


def _with_pool(kernel: int, at: int, size: int, threads: int) -> None:
    call, cuts = machine.callable_at(kernel), [size * k // threads for k in range(threads + 1)]
    others = [_pool().submit(call, at, cuts[k], cuts[k + 1], k) for k in range(1, threads)]
    call(at, 0, cuts[1], 0)
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="longlag")


os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.cache
def _with_openmp() -> Fork | None:
    """Runs pieces on the OpenMP threads of this process, if it has any."""
    library = _openmp()
    if library is None:
        return None
    parallel = library.GOMP_parallel
    numbers = [
        ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (library.omp_get_thread_num, library.omp_get_num_threads)
    ]
    parallel.argtypes, parallel.restype = [ctypes.c_void_p] * 2 + [ctypes.c_uint] * 2, None
    piece = machine.load("team", "", "piece", lambda: ("# see longlag.engines.cpu.runtime.threads\n", _piece()))

    def fork(kernel: int, at: int, size: int, threads: int) -> None:
        words = array("q", (kernel, at, size, threads, *numbers))
        parallel(piece, words.buffer_info()[0], threads, 0)

    return fork


def _openmp() -> ctypes.CDLL | None:
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in lines if "omp" in line and ".so" in line}
    for path in sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))):
        library = ctypes.CDLL(path)
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


def _piece() -> bytes:
    """``piece(words)``, what each of n threads does: kernel(at, size·k/pieces, size·(k + 1)/pieces, k), every n-th k.

    There may be fewer threads than pieces: OpenMP has limits of its own (``OMP_THREAD_LIMIT``, ``OMP_DYNAMIC``).
    """
    from llvmlite import ir

    word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
    module = ir.Module("team")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word.as_pointer()]), machine.SYMBOL)
    entry, body, end = (function.append_basic_block() for _ in range(3))
    builder = ir.IRBuilder(entry)
    kernel, at, size, pieces, *numbers = (builder.load(builder.gep(function.args[0], [word(k)])) for k in range(6))
    count = ir.FunctionType(ir.IntType(32), []).as_pointer()
    mine, threads = (builder.sext(builder.call(builder.inttoptr(f, count), []), word) for f in numbers)
    kind = ir.FunctionType(ir.IntType(32), [byte.as_pointer(), byte] + [word] * 4)
    call, nothing = builder.inttoptr(kernel, kind.as_pointer()), builder.alloca(byte)
    builder.cbranch(builder.icmp_signed("<", mine, pieces), body, end)
    builder.position_at_end(body)
    k = builder.phi(word)
    following = builder.add(k, threads)
    k.add_incoming(mine, entry)
    k.add_incoming(following, body)
    first, last = (builder.sdiv(builder.mul(size, value), pieces) for value in (k, builder.add(k, word(1))))
    builder.call(call, [nothing, byte(None), at, first, last, k])
    builder.cbranch(builder.icmp_signed("<", following, pieces), body, end)
    builder.position_at_end(end)
    builder.ret_void()
    return machine.object_file(str(module))
