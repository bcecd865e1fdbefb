"""What every analysis returns: numbers that can be written as CSV and drawn; any module may use it."""

from __future__ import annotations

import abc
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from longlag import files
from longlag.style import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"Tensor{tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"<{type(value).__name__}>"


class Result(abc.ABC):
    """Numbers of an analysis, ready for a table and for a picture."""

    @abc.abstractmethod
    def columns(self) -> Mapping[str, Sequence[Any] | Tensor]:
        """The numbers as named columns of one length."""

    @abc.abstractmethod
    def plot(self, *args: Any, **options: Any) -> Figure:
        """Draw them."""

    def __repr__(self) -> str:
        """The attributes in one line: of a tensor its shape, of other long values the type."""
        public = {name: _short(value) for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in public.items())})"

    def to_csv(self, path: str | Path) -> Path:
        """Write `columns`; the file appears whole or not at all."""
        columns = {k: v.tolist() if isinstance(v, Tensor) else list(v) for k, v in self.columns().items()}
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return files.replace(path, text.getvalue())

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture, ``plot(**options)``; the suffix (.png, .svg, .pdf) chooses its format."""
        path = Path(path)
        if path.suffix.lower() not in PICTURES:
            raise ValueError(f"{type(self).__name__}.save: path must end in {', '.join(PICTURES)}, got {path.name!r}")
        kind = path.suffix.lower()[1:]
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        picture = io.BytesIO()
        with style():
            self.plot(**options).savefig(picture, format=kind, metadata=metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        return files.replace(path, picture.getvalue())
