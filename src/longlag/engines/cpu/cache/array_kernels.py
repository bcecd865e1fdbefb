"""Kernels on NumPy arrays, compiled by Numba for the types they are first called with.

Numba's own cache looks at the file of the kernel alone: after a change of an imported function it would go on running
the old machine code. These kernels are kept in the cache folder of `machine`, under a key of all they are made of.
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
        made_of: source files, or folders of them, that the kernel is made of; ``__file__`` of the module at least. What
            all kernels are made of (`machine.SHARED`) need not be named.
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
    """What Numba asks for machine code before it compiles, and hands machine code to afterwards."""

    cache_path = None  # Numba reports it; ours may change during a process, if the folder cannot be trusted any longer

    def __init__(self, function: Callable[..., Any], made_of: tuple[Path, ...]) -> None:
        self._name = re.sub(r"[^\w.]", "_", f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}")
        self._made_of = made_of
        self._building: dict[str, contextlib.ExitStack] = {}

    def _path(self, signature: Any) -> Path:
        key = machine.fingerprint(*self._made_of) + repr(signature)
        return folder() / f"{self._name}_{hashlib.sha256(key.encode()).hexdigest()[:12]}.pickle"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function, or None if it must be built."""
        target_context.refresh()
        data = read(self._path(signature))
        if data is not None:
            return _private.from_pickled(target_context, pickle.loads(data))
        building = self._building[repr(signature)] = contextlib.ExitStack()
        building.enter_context(machine.announced(self._name))
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was built."""
        self._building.pop(repr(signature)).close()
        write(self._path(signature), _private.pickled(compiled))

    def flush(self) -> None:
        """Numba's `recompile` asks for it; nothing is kept here that would be out of date."""
