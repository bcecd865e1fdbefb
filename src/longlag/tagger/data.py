"""Files of tagged sentences: columns in, sentences out, every complaint with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 16  # bytes asked of a stream at once; a pipe gives what it has


class DataError(ValueError):
    """A file that cannot be used; the message says where and why."""


class Sentence(NamedTuple):
    """Words, their tags (none in raw text), and the line of the first word."""

    words: list[str]
    tags: list[str]
    line: int = 1


def read(path: str | Path) -> list[Sentence]:
    """The sentences of a file with a word and a tag on every line, a blank line after each sentence.

    Columns are split at TABs where a line has one, else at blanks; the first is the word, the last the tag, those
    between are not read. A word may hold any character but a line feed and the separator.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.tsv").write_text("The\\tDET\\ncat\\tNOUN\\n\\nRun\\tVERB\\n")
    ...     read(Path(folder, "a.tsv"))
    [Sentence(words=['The', 'cat'], tags=['DET', 'NOUN'], line=1), Sentence(words=['Run'], tags=['VERB'], line=4)]
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"tagger: {path} must be a file, {'got a folder' if path.is_dir() else 'there is none'}")
    with path.open("rb") as stream:
        found = [sentence for chunk in sentences(stream, str(path), tagged=True) for sentence in chunk]
    if not found:
        raise DataError(f"tagger: {path} must hold tagged sentences, it is empty")
    return found


def sentences(stream: BinaryIO, name: str, *, tagged: bool) -> Iterator[list[Sentence]]:
    """The sentences of a stream as they arrive, in lists of those that are complete; without tags, first columns."""
    words, tags, start, columns = [], [], 1, 0
    number = 0
    for lines in chunks(stream, name):
        complete = []
        for line in lines:
            number += 1
            if not line.strip():  # blank, or a TAB or a no-break space all alone
                if words:
                    complete.append(Sentence(words, tags, start))
                words, tags, start = [], [], number + 1
                continue
            parts = split(line)
            if tagged:
                columns = columns or len(parts)
                _check_columns(parts, columns, f"{name}:{number}")
                tags.append(parts[-1])
            if not parts[0]:
                raise DataError(f"tagger: {name}:{number}: the word must not be empty, got {line!r}")
            words.append(parts[0])
        if complete:
            yield complete
    if words:
        yield [Sentence(words, tags, start)]


def split(line: str) -> list[str]:
    """Columns; a no-break space or the like belongs to its word, blanks around a tag do not."""
    parts = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
    return [*parts[:-1], parts[-1].strip()] if len(parts) > 1 else parts


def _check_columns(parts: list[str], columns: int, where: str) -> None:
    if len(parts) == 1:
        raise DataError(
            f"tagger: {where}: a line must be a word, TAB or blanks, and a tag, got one column: {parts[0]!r}"
        )
    if len(parts) != columns:
        raise DataError(f"tagger: {where}: every line must have {columns} columns like the first, got {len(parts)}")
    if not parts[-1]:
        raise DataError(f"tagger: {where}: the tag must not be empty, got {parts!r}")


def chunks(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """The lines of a stream, in lists of what one reading gives: a slow pipe is served at once, a file in bulk."""
    read_some = getattr(stream, "read1", stream.read)
    rest, number = b"", 0
    while data := read_some(CHUNK):
        rest += data
        *lines, rest = rest.split(b"\n") if b"\n" in data else [rest]
        if lines:
            yield _decoded(lines, number, name)
            number += len(lines)
    if rest:
        yield _decoded([rest], number, name)


def _decoded(lines: Iterable[bytes], before: int, name: str) -> list[str]:
    found = []
    for number, line in enumerate(lines, before + 1):
        line = line.removeprefix(BOM) if number == 1 else line
        try:
            found.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
            raise DataError(f"tagger: {name}:{number}: text must be UTF-8, {byte}") from error
    return found
