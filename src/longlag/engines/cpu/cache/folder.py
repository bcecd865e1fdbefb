"""The folder of the kernel cache, and whether it can be trusted: machine code and pickles are loaded from it.

The folder is used only if it belongs to the user and nobody else can write to it, to a folder above it, or through a
symbolic link. Otherwise kernels are stored in a private temporary folder for the life of the process, and one warning
gives the reason. Windows has no user ids or mode bits; the user's profile is private there, and no check is made.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path


def wanted() -> Path:
    """Where kernels are kept, if that folder can be trusted."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("longlag")) / "kernels"


def folder() -> Path:
    """Where generated kernels and their machine code are kept."""
    path = wanted()
    obstacle = _created(path) or untrusted(path)
    if obstacle is None:
        return path
    warn_once(f"longlag: the kernel cache {path} is not used: {obstacle}; kernels are built anew in every process")
    return Path(_private_folder().name)


def untrusted(path: Path) -> str | None:
    """The reason why somebody else could put a file into this folder; None if nobody can."""
    if os.name == "nt":
        return None
    own = path.stat()
    if own.st_uid != os.getuid():
        return f"it belongs to user {own.st_uid}, not to user {os.getuid()}"
    lexical, real = Path(os.path.abspath(path)), path.resolve()
    for place in dict.fromkeys((lexical, *lexical.parents, real, *real.parents)):
        what = place.lstat()
        if what.st_uid not in (os.getuid(), 0):
            return f"{place} belongs to user {what.st_uid}"
        # Anybody may write into a shared temporary folder, but its sticky bit prevents replacing files of other users.
        mine = place in (lexical, real, lexical.parent, real.parent)
        forbidden = stat.S_IWGRP | stat.S_IWOTH if mine else 0 if what.st_mode & stat.S_ISVTX else stat.S_IWOTH
        if not stat.S_ISLNK(what.st_mode) and what.st_mode & forbidden:
            return f"others can write to {place} (mode {stat.S_IMODE(what.st_mode):o}; chmod go-w, then empty it)"
    return None


def read(path: Path) -> bytes | None:
    """The content of a file made by `write`; None if the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def write(path: Path, data: bytes, *, checksum: bool = True) -> None:
    """Write a file atomically. A failure is only a warning: the kernel is already in memory."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data if checksum else data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        warn_once(f"longlag: cannot write the kernel cache ({error}); kernels are built anew in every process")


@functools.cache
def warn_once(text: str) -> None:
    """A warning that is not repeated in this process."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _created(path: Path) -> str | None:
    """Create the folder and its parent, private to the user; returns the reason if this fails."""
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        for each in (path.parent, path):
            each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return str(error)
    return None


@functools.cache
def _private_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="longlag-")  # mode 700; removed when the process ends
