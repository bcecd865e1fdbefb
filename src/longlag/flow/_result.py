"""What every analysis returns: numbers that can be written as CSV and drawn."""

from __future__ import annotations

import abc
import csv
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from longlag.flow._style import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")


class Result(abc.ABC):
    """Numbers of an analysis, ready for a table and for a picture."""

    @abc.abstractmethod
    def columns(self) -> Mapping[str, Sequence[Any] | Tensor]:
        """The numbers as named columns of one length."""

    @abc.abstractmethod
    def plot(self, *args: Any, **options: Any) -> Figure:
        """Draw them."""

    def to_csv(self, path: str | Path) -> Path:
        """Write `columns`; the file appears whole or not at all."""
        columns = {k: v.tolist() if isinstance(v, Tensor) else list(v) for k, v in self.columns().items()}

        def write(temporary: str) -> None:
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))

        return replace(Path(path), write)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture, ``plot(**options)``; the suffix (.png, .svg, .pdf) chooses its format."""
        path = Path(path)
        if path.suffix.lower() not in PICTURES:
            raise ValueError(f"{type(self).__name__}.save: path must end in {', '.join(PICTURES)}, got {path.name!r}")
        kind = path.suffix.lower()[1:]
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with style():
            figure = self.plot(**options)
            return replace(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata))


def replace(path: Path, write: Callable[[str], object]) -> Path:
    """Write to a temporary name beside ``path`` and move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
