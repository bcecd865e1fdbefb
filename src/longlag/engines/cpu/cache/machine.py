"""Machine code of kernels: kept in the user's cache folder, loaded without Numba, built when it is not there.

A kernel is a C function ``kernel(table, first, last, piece)``; ``table`` holds sizes and addresses. It allocates
nothing and calls nothing but other kernels, so its object file needs no more than LLVM's loader: a process that finds
its kernels in the cache never imports Numba (SymPy it does: a cell is traced when it is made).

Kernels on NumPy arrays (`longlag.engines.cpu.cache.array_kernels`) are kept in the same folder under the same kind of
key: all source files a kernel is made of, the versions of Numba and llvmlite, the processor's name and features.
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
BLOCK = 256  # steps of a sum of outer products taken at a time, so that both factors stay in the cache
PATIENCE = 1.0  # seconds of compiling after which the user is told
SYMBOL = "longlag_kernel"  # its name in every object file
build_seconds: dict[str, float] = {}  # of the kernels that were not in the cache
_lock = threading.RLock()
_loaded: dict[tuple[str, str, str], int] = {}  # addresses of kernels; machine code stays for the life of the process

CPU = Path(__file__).parents[1]
SHARED = (CPU.parent / "_private.py", CPU / "cache", CPU / "simd")  # every kernel is made of these
CELLS = (CPU / "codegen", CPU.parents[1] / "cells")  # the kernels of cells are made of these as well


def load(name: str, key: str, part: str, build: Build) -> int:
    """The address of a kernel, part of the module ``name``: from the cache folder, else built and put there."""
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
    """A kernel to be called from Python: ``kernel(address of the table, first, last, piece)``. It frees the GIL."""
    return _private.callable_kernel(address, 4)


@functools.cache
def fingerprint(*made_of: Path) -> str:
    """Changes with the files (or folders of them) a kernel is made of, with the compiler and with the processor."""
    files = [path for each in (*SHARED, *made_of) for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    parts = [path.read_bytes() for path in files]
    names = [path.name for path in files]
    facts = [*names, metadata.version("numba"), metadata.version("llvmlite"), *_private.processor()]
    return hashlib.sha256(b"\0".join([*parts, *(fact.encode() for fact in facts)])).hexdigest()


@contextlib.contextmanager
def announced(name: str) -> Iterator[None]:
    """Note how long a kernel takes to build, and tell the user when that is long."""
    start = time.perf_counter()
    text = f"longlag: compiling {name} (once; the result is kept in {folder()}) …"
    timer = threading.Timer(PATIENCE, lambda: print(text, file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
        build_seconds[name] = time.perf_counter() - start
    finally:
        timer.cancel()
