"""Kernels on NumPy arrays, compiled by Numba for the types they are first called with.

Numba's own cache checks only the file of the kernel: after a change of an imported function it would keep running the
old machine code. These kernels are stored in the cache folder of `machine`, keyed by all their source files.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longlag.engines import _private
from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.cache.folder import folder, read, write


def array_kernel(*made_of: str | Path, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: ``numba.njit`` with a cache on disk.

    Args:
        made_of: source files, or folders of source files, of the kernel; at least ``__file__`` of the module. Files
            shared by all kernels (`machine.SHARED`) need not be named.
        options: as for ``numba.njit``.
    """
    from numba import njit

    files = tuple(Path(each) for each in made_of)

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = njit(**options)(function)
        _private.set_cache(kernel, _Cache(function, files))
        return kernel

    return decorate


class _Cache:
    """The cache that Numba reads before it compiles and writes afterwards."""

    cache_path = None  # shown by Numba; the real folder may change during a process, if it can no longer be trusted

    def __init__(self, function: Callable[..., Any], made_of: tuple[Path, ...]) -> None:
        self._name = re.sub(r"[^\w.]", "_", f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}")
        self._made_of = made_of
        self._building: dict[str, contextlib.ExitStack] = {}

    def _path(self, signature: Any) -> Path:
        key = machine.fingerprint(*self._made_of) + repr(signature)
        return folder() / f"{self._name}_{hashlib.sha256(key.encode()).hexdigest()[:12]}.pickle"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function, or None if it must be compiled."""
        target_context.refresh()
        data = read(self._path(signature))
        if data is not None:
            return _private.from_pickled(target_context, pickle.loads(data))
        building = self._building[repr(signature)] = contextlib.ExitStack()
        building.enter_context(machine.announced(self._name))
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store the compiled function."""
        self._building.pop(repr(signature)).close()
        write(self._path(signature), _private.pickled(compiled))

    def flush(self) -> None:
        """Called by Numba's `recompile`; there is nothing to flush, since keys change with the sources."""
