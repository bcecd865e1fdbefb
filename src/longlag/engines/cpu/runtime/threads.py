"""Threads for kernels: torch's own OpenMP threads, or a pool.

torch's OpenMP threads spin for a while after every operation; a second thread pool would compete with them.
``GOMP_parallel`` is the entry point that compilers call for a parallel region: GNU's, LLVM's and Intel's OpenMP have
it. Without OpenMP in the process (torch on macOS may have none) a thread pool runs the kernels.
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

Runner = Callable[[int, int, int, int], None]  # (kernel, table, size, threads)


def run_in_threads(kernel: int, table: int, size: int, threads: int) -> None:
    """Run the kernel at an address over the rows 0:size, one part of the rows per thread; ``table`` is an address."""
    if threads == 1:
        machine.callable_at(kernel)(table, 0, size, 0)
    else:
        (_openmp_runner() or _run_in_pool)(kernel, table, size, threads)


def _run_in_pool(kernel: int, table: int, size: int, threads: int) -> None:
    call, bounds = machine.callable_at(kernel), [size * k // threads for k in range(threads + 1)]
    others = [_pool().submit(call, table, bounds[k], bounds[k + 1], k) for k in range(1, threads)]
    call(table, 0, bounds[1], 0)
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="longlag")


def _forget_pool_after_fork() -> None:
    """A forked child has none of its parent's threads. Windows has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_pool.cache_clear)


_forget_pool_after_fork()


@functools.cache
def _openmp_runner() -> Runner | None:
    """Runs a kernel on the OpenMP threads of this process; None if the process has no OpenMP."""
    library = _openmp()
    if library is None:
        return None
    parallel = library.GOMP_parallel
    functions = [
        ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (library.omp_get_thread_num, library.omp_get_num_threads)
    ]
    parallel.argtypes, parallel.restype = [ctypes.c_void_p] * 2 + [ctypes.c_uint] * 2, None
    body = machine.load("threads", "", "body", lambda: ("# see longlag.engines.cpu.runtime.threads\n", _body()))

    def run(kernel: int, table: int, size: int, threads: int) -> None:
        words = array("q", (kernel, table, size, threads, *functions))
        parallel(body, words.buffer_info()[0], threads, 0)

    return run


def _openmp() -> ctypes.CDLL | None:
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in lines if "omp" in line and ".so" in line}
    for path in sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))):
        library = ctypes.CDLL(path)
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


def _body() -> bytes:
    """``body(words)`` of the parallel region: kernel(table, size·k/parts, size·(k + 1)/parts, k) for every n-th part k.

    n is the number of threads, which may be less than the number of parts (``OMP_THREAD_LIMIT``, ``OMP_DYNAMIC``).
    """
    from llvmlite import ir

    word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
    module = ir.Module("threads")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word.as_pointer()]), machine.SYMBOL)
    entry, body, end = (function.append_basic_block() for _ in range(3))
    builder = ir.IRBuilder(entry)
    kernel, table, size, parts, *functions = (builder.load(builder.gep(function.args[0], [word(k)])) for k in range(6))
    count = ir.FunctionType(ir.IntType(32), []).as_pointer()
    thread, threads = (builder.sext(builder.call(builder.inttoptr(f, count), []), word) for f in functions)
    kind = ir.FunctionType(ir.IntType(32), [byte.as_pointer(), byte] + [word] * 4)
    call, nothing = builder.inttoptr(kernel, kind.as_pointer()), builder.alloca(byte)
    builder.cbranch(builder.icmp_signed("<", thread, parts), body, end)
    builder.position_at_end(body)
    k = builder.phi(word)
    next_k = builder.add(k, threads)
    k.add_incoming(thread, entry)
    k.add_incoming(next_k, body)
    first, last = (builder.sdiv(builder.mul(size, value), parts) for value in (k, builder.add(k, word(1))))
    builder.call(call, [nothing, byte(None), table, first, last, k])
    builder.cbranch(builder.icmp_signed("<", next_k, parts), body, end)
    builder.position_at_end(end)
    builder.ret_void()
    return machine.object_file(str(module))
