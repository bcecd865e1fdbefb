"""Machine code of kernels: stored in the user's cache folder, loaded without Numba, compiled if missing.

A kernel is a C function ``kernel(table, first, last, piece)``; ``table`` holds sizes and addresses. It allocates
nothing and calls nothing but other kernels, so LLVM's loader is enough to load its object file: a process that finds
its kernels in the cache never imports Numba. (It imports SymPy, which traces the cells.)

Kernels on NumPy arrays (`longlag.engines.cpu.cache.array_kernels`) are stored in the same folder under the same kind of
key: all source files of a kernel, the versions of Numba and llvmlite, the processor's name and features.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from longlag.engines import _private
from longlag.engines.cpu.cache.folder import folder, read, write

Kernel = Callable[[int, int, int, int], None]
Build = Callable[[], tuple[str, bytes]]  # the readable source, and the object file

VECTOR_BYTES = 64  # one AVX-512 register, two of AVX2, four of NEON
VECTORS = 2  # per row of a product's tile
BLOCK = 256  # steps of a sum of outer products computed together, so that both factors stay in the CPU cache
PATIENCE = 1.0  # seconds of compilation after which a message is printed
SYMBOL = "longlag_kernel"  # its name in every object file
build_seconds: dict[str, float] = {}  # compile times of the kernels that were not in the cache
_lock = threading.RLock()
_loaded: dict[tuple[str, str, str], int] = {}  # addresses of kernels; machine code stays for the life of the process

CPU = Path(__file__).parents[1]
SHARED = (CPU.parent / "_private.py", CPU / "cache", CPU / "simd")  # source files of every kernel
CELLS = (CPU / "codegen", CPU.parents[1] / "cells")  # additional source files of the kernels of cells


def load(name: str, key: str, part: str, build: Build) -> int:
    """The address of a kernel, part of the module ``name``: from the cache folder, or compiled and stored there."""
    with _lock:
        if (name, key, part) not in _loaded:
            _loaded[name, key, part] = _load(name, key, part, build)
        return _loaded[name, key, part]


def _load(name: str, key: str, part: str, build: Build) -> int:
    stem = folder() / f"{name}_{hashlib.sha256((fingerprint(*CELLS) + key).encode()).hexdigest()[:12]}"
    code = read(stem.with_suffix(f".{part}.o"))
    if code is None:
        with announced(f"{name}.{part}"):
            source, code = build()
        write(stem.with_suffix(".py"), source.encode(), checksum=False)
        write(stem.with_suffix(f".{part}.o"), code)
    return _private.load_object_file(code, SYMBOL)


object_file = _private.object_file


@functools.cache
def callable_at(address: int) -> Kernel:
    """A kernel as a Python function: ``kernel(address of the table, first, last, piece)``. It releases the GIL."""
    return _private.callable_kernel(address, 4)


@functools.cache
def fingerprint(*made_of: Path) -> str:
    """A hash of a kernel's source files (or folders of files), the compilers' versions and the processor."""
    files = [path for each in (*SHARED, *made_of) for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    parts = [path.read_bytes() for path in files]
    names = [path.name for path in files]
    facts = [*names, metadata.version("numba"), metadata.version("llvmlite"), *_private.processor()]
    return hashlib.sha256(b"\0".join([*parts, *(fact.encode() for fact in facts)])).hexdigest()


@contextlib.contextmanager
def announced(name: str, kept: str = "") -> Iterator[None]:
    """Record the compile time of a kernel, and print a message if compilation takes long."""
    start = time.perf_counter()
    text = f"longlag: compiling {name} (once; the result is kept in {kept or folder()}) …"
    timer = threading.Timer(PATIENCE, lambda: print(text, file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
        build_seconds[name] = time.perf_counter() - start
    finally:
        timer.cancel()
