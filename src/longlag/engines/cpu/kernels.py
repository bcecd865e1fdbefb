"""From a cell to compiled kernels: written to the user's cache folder, imported, compiled by Numba once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import pickle
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba

from longlag.cells import Cell
from longlag.engines.cpu import functions, generate, product

PATIENCE = 1.0  # seconds of compiling after which the user is told
compile_seconds: dict[str, float] = {}  # kernel -> time of its first call, most of it compiling
_ready: set[Any] = set()
_told: set[str] = set()


def folder() -> Path:
    """Where generated kernels and their machine code are kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("longlag")) / "kernels"


@functools.cache
def kernels(cell: Any, dtype: str, norm: bool) -> ModuleType:
    """The module of `generate.source`, compiled when called."""
    if not isinstance(cell, Cell):  # units in blocks write their own
        return cell.kernels(dtype, norm)
    return load(f"{cell.name}_{dtype}{'_norm' if norm else ''}", generate.source(cell, dtype, norm))


def load(name: str, source: str) -> ModuleType:
    """Import generated source: from the cache folder if that can be written, else from memory."""
    name = f"{name}_{_fingerprint(source)}"
    cached = source.replace("@njit(**OPTIONS)", "@njit(**OPTIONS, cache=True)")
    path = folder() / f"{name}.py"
    try:
        _write(path, cached)
    except OSError as error:
        _warn_once(f"longlag: cannot write the kernel cache ({error}); kernels are compiled anew in every process")
        module = ModuleType(name)
        exec(compile(source, f"<longlag {name}>", "exec"), module.__dict__)
        return module
    spec = importlib.util.spec_from_file_location(f"longlag_kernel_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Numba looks cached code's module up
    spec.loader.exec_module(module)
    return module


def is_ready(kernel: Any) -> bool:
    """Whether a kernel has been called, hence compiled."""
    return kernel in _ready


def call(kernel: Any, *arguments: Any) -> None:
    """Call a kernel; the first call compiles it, or loads what an earlier process compiled."""
    if kernel in _ready:
        kernel(*arguments)
        return
    name = f"{kernel.__module__.removeprefix('longlag_kernel_').rpartition('.')[2]}.{kernel.__name__}"
    start = time.perf_counter()
    with _announced(name.partition(".")[0]):
        try:
            kernel(*arguments)
        except (ImportError, EOFError, pickle.UnpicklingError):  # damaged machine code
            _forget_machine_code(kernel)
            kernel(*arguments)
    compile_seconds[name] = time.perf_counter() - start
    _ready.add(kernel)


def _fingerprint(source: str) -> str:
    """Changes with the source, with what it imports, and with the compiler: Numba itself looks at the file only."""
    parts = [source, numba.__version__, *(Path(m.__file__ or "").read_text("utf-8") for m in (functions, product))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _write(path: Path, text: str) -> None:
    """Write a file in one move, unless it is there; a damaged one is replaced."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text("utf-8") == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _forget_machine_code(kernel: Any) -> None:
    """Remove Numba's files for a kernel."""
    stem = Path(kernel.py_func.__code__.co_filename).stem
    for path in folder().glob(f"__pycache__/{stem}.*.nb[ic]"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _announced(name: str) -> Iterator[None]:
    """Tell the user, once per kernel file, when compiling takes long."""
    text = f"longlag: compiling {name} (once; the result is kept in {folder()}) …"
    timer = threading.Timer(
        PATIENCE, lambda: None if name in _told else (_told.add(name), print(text, file=sys.stderr))
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
