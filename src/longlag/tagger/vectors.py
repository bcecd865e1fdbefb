"""Pretrained word vectors from a text file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from longlag.tagger.data import DataError, chunks


def read_vectors(path: str | Path) -> tuple[dict[str, int], Tensor]:
    """Words, numbered from 1, and their vectors (V + 1, D), row 0 zeros; from lines ``word v1 v2 …``.

    A first line of two numbers (word2vec's count and width) is skipped. A word may contain blanks. If a word
    occurs twice, its first vector is used. Vectors are scaled to a mean square of 1/D, as long as trained ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "v.txt").write_text("cat 1 0\\ndog 0 1\\n")
    ...     read_vectors(Path(folder, "v.txt"))
    ({'cat': 1, 'dog': 2}, tensor([[0., 0.], [1., 0.], [0., 1.]]))
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"tagger: vectors must be a text file, there is no {path}")
    numbers: dict[str, int] = {}
    rows: list[list[float]] = []
    number = width = 0
    with path.open("rb") as stream:
        for lines in chunks(stream, str(path)):
            for line in lines:
                number += 1
                parts = line.rstrip().split(" ")
                if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
                    continue
                width = width or len(parts) - 1
                row = _values(parts[-width:] if width else [], f"{path}:{number}", width)
                word = " ".join(parts[:-width])
                if not word:
                    raise DataError(f"tagger: {path}:{number}: a line must be a word and {width} numbers")
                if word not in numbers:
                    numbers[word] = len(numbers) + 1
                    rows.append(row)
    if not rows:
        raise DataError(f"tagger: {path} must hold vectors, it is empty")
    table = torch.tensor([[0.0] * width, *rows])
    return numbers, table * (len(rows) / table.square().sum().clamp_min(1e-12)).sqrt()


def _values(parts: list[str], where: str, width: int) -> list[float]:
    try:
        values = [float(part) for part in parts]
    except ValueError as error:
        raise DataError(f"tagger: {where}: a line must be a word and {width} numbers ({error})") from error
    if len(values) != width or not width:
        raise DataError(f"tagger: {where}: a line must be a word and {width or 'some'} numbers, got {len(values)}")
    if not all(abs(value) < float("inf") for value in values):
        raise DataError(f"tagger: {where}: numbers must be finite")
    return values
