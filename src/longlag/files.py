"""Writing files so that a reader never sees half of one; any module may use it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TEMPORARY = ".part"  # suffix of a file that is being written; a killed process leaves it behind


def replace(path: str | Path, data: bytes | str) -> Path:
    """Write a file, or replace it: at any moment ``path`` is the old file or the new one, also after a power cut.

    The data go to a temporary file in the same folder, ``.NAME.RANDOM.part``, which is flushed to disk and renamed.
    If writing fails, the temporary file is removed and the old file stays. Text is written as UTF-8, line ends as
    they are. Permissions are those that the umask gives to a new file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(Path(folder, "a.txt"), "one").read_text()
    'one'
    """
    path = Path(path)
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)
    return path


def is_temporary(path: Path, name: str) -> bool:
    """Whether ``path`` is what a killed `replace` of a file ``name`` has left behind."""
    return path.name.startswith(f".{name}.") and path.name.endswith(TEMPORARY)


def _flush_folder(folder: Path) -> None:
    """Write a renaming to disk. Windows cannot open a folder, and needs no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
