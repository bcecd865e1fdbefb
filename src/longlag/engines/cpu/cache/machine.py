"""Machine code of kernels: kept in the user's cache folder, loaded without Numba, built when it is not there.

A kernel is a C function ``kernel(table, first, last, piece)``; ``table`` holds sizes and addresses. It allocates
nothing and calls nothing but other kernels, so its object file needs no more than LLVM's loader: a process that finds
its kernels in the cache never imports Numba (SymPy it does: a cell is traced when it is made).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

Kernel = Callable[[int, int, int, int], None]
Build = Callable[[], tuple[str, bytes]]  # the readable source, and the object file

VECTOR_BYTES = 64  # one AVX-512 register, two of AVX2, four of NEON
VECTORS = 2  # per row of a product's tile
BLOCK = 256  # steps of a sum of outer products taken at a time, so that both factors stay in the cache
PATIENCE = 1.0  # seconds of compiling after which the user is told
SYMBOL = "longlag_kernel"  # its name in every object file
build_seconds: dict[str, float] = {}  # of the kernels that were not in the cache
_lock = threading.RLock()
_engines: list[Any] = []  # they own the machine code
_C_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_ssize_t] * 3)
_nothing = ctypes.c_void_p()  # Numba's functions write a result even if they have none
_NOTHING = ctypes.addressof(_nothing)


def folder() -> Path:
    """Where generated kernels and their machine code are kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("longlag")) / "kernels"


def load(name: str, key: str, part: str, build: Build) -> int:
    """The address of a kernel, part of the module ``name``: from the cache folder, else built and put there."""
    with _lock:
        stem = folder() / f"{name}_{hashlib.sha256((_fingerprint() + key).encode()).hexdigest()[:12]}"
        code = _read(stem.with_suffix(f".{part}.o"))
        if code is None:
            start = time.perf_counter()
            with _announced(f"{name}.{part}"):
                source, code = build()
            build_seconds[f"{name}.{part}"] = time.perf_counter() - start
            try:
                _write(stem.with_suffix(".py"), source.encode())
                _write(stem.with_suffix(f".{part}.o"), hashlib.sha256(code).digest() + code)
            except OSError as error:
                _warn_once(f"longlag: cannot write the kernel cache ({error}); kernels are built anew in every process")
        return _address(code)


@functools.cache
def callable_at(address: int) -> Kernel:
    """A kernel to be called from Python: ``kernel(address of the table, first, last, piece)``. It frees the GIL."""
    return functools.partial(_C_TYPE(address), _NOTHING, _NOTHING)


def target() -> tuple[str, str]:
    """Name and features of this processor."""
    import llvmlite.binding as llvm

    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on every system; the name alone will do
        features = ""
    return llvm.get_host_cpu_name(), features


@functools.cache
def _fingerprint() -> str:
    """Changes with the code that builds kernels, with the compiler and with the processor."""
    engine = Path(__file__).parents[1]
    writers = [*sorted(engine.rglob("*.py")), *sorted((engine.parents[1] / "cells").glob("*.py"))]
    parts = [path.read_text("utf-8") for path in writers]
    parts += [metadata.version("numba"), metadata.version("llvmlite"), *target()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = target()
    options: dict[str, Any] = {"opt": 3, "cpu": cpu, "features": features, "jit": True, "codemodel": "jitdefault"}
    return llvm.Target.from_default_triple().create_target_machine(**options)


def object_file(assembly: str) -> bytes:
    """LLVM assembly as an object file for this processor."""
    import llvmlite.binding as llvm

    return _machine().emit_object(llvm.parse_assembly(assembly))


def _address(code: bytes) -> int:
    import llvmlite.binding as llvm

    machine = _machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(SYMBOL)


def _read(path: Path) -> bytes | None:
    """An object file; None if it is not there or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write(path: Path, data: bytes) -> None:
    """Write a file in one move: whoever reads it sees all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _announced(name: str) -> Iterator[None]:
    """Tell the user when compiling takes long."""
    text = f"longlag: compiling {name} (once; the result is kept in {folder()}) …"
    timer = threading.Timer(PATIENCE, lambda: print(text, file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
