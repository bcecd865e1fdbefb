"""Reading files of tagged sentences; every error names file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from longlag.tagger.columns import DOCUMENT, DataError, Layout, layout_of

BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 16  # bytes asked of a stream at once; a pipe gives what it has


class Sentence(NamedTuple):
    """Words, their tags (none in raw text), and the lines they are on (none if not from a file)."""

    words: list[str]
    tags: list[str]
    lines: tuple[int, ...] = ()


def read(path: str | Path, columns: tuple[int, int] | None = None) -> list[Sentence]:
    """The sentences of a file with a word and a tag on every line, a blank line after each sentence.

    Columns are split at TABs where a line has one, else at blanks. CoNLL-U (ten columns, the first a number) is
    recognised: words are FORM, tags UPOS; comments, multiword tokens and empty nodes are left out. Of other files the
    first column is the word and the last the tag. A ``-DOCSTART-`` line only ends a sentence. A word may hold any
    character but a line feed and the separator.

    Args:
        path: of the file.
        columns: of word and tag, counted from 1, where others are wanted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.tsv").write_text("The\\tDET\\ncat\\tNOUN\\n\\nRun\\tVERB\\n")
    ...     read(Path(folder, "a.tsv"))[0]
    Sentence(words=['The', 'cat'], tags=['DET', 'NOUN'], lines=(1, 2))
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"tagger: {path} must be a file, {'got a folder' if path.is_dir() else 'there is none'}")
    with path.open("rb") as stream:
        reader = Reader(stream, str(path), tagged=True, columns=columns)
        found = [sentence for some in reader for sentence in some]
    if not found:
        raise DataError(f"tagger: {path} must hold tagged sentences, it is empty")
    return found


def layout(path: str | Path, columns: tuple[int, int] | None = None) -> Layout | None:
    """Which columns `read` takes; None if the file holds no sentence."""
    with Path(path).open("rb") as stream:
        reader = Reader(stream, str(path), tagged=True, columns=columns)
        next(iter(reader), None)
        return reader.layout


def sentences(stream: BinaryIO, name: str, *, tagged: bool) -> Iterator[list[Sentence]]:
    """The sentences of a stream as they arrive, in lists of those that are complete; see `read` for the columns."""
    return iter(Reader(stream, name, tagged=tagged))


class Reader:
    """Sentences of a stream; ``layout`` is known once the first word was read."""

    def __init__(self, stream: BinaryIO, name: str, *, tagged: bool, columns: tuple[int, int] | None = None) -> None:
        self.stream, self.name, self.tagged, self.columns = stream, name, tagged, columns
        self.layout: Layout | None = None
        self._words: list[str] = []
        self._tags: list[str] = []
        self._lines: list[int] = []
        self._waiting: list[tuple[int, str]] = []  # first lines with a # : comments if the file is CoNLL-U, else words

    def __iter__(self) -> Iterator[list[Sentence]]:
        number = 0
        for lines in chunks(self.stream, self.name):
            complete: list[Sentence] = []
            for line in lines:
                number += 1
                blank = not line.strip()  # nothing, or a TAB or a no-break space all alone
                if blank or (line.startswith(DOCUMENT) and split(line)[0] == DOCUMENT):
                    complete += self._finish()
                elif self.layout is None and line.startswith("#"):
                    self._waiting.append((number, line))
                else:
                    self._take(number, line)
            if complete:
                yield complete
        if rest := self._finish():
            yield rest

    def _finish(self) -> list[Sentence]:
        """The sentence that ends here, if there is one."""
        self._take_waiting()
        found = [Sentence(self._words, self._tags, tuple(self._lines))] if self._words else []
        self._words, self._tags, self._lines = [], [], []
        return found

    def _take_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for number, line in waiting:
            self._take(number, line)

    def _take(self, number: int, line: str) -> None:
        """Read one line that is not blank."""
        parts, where = split(line), f"{self.name}:{number}"
        if self.layout is None:
            self.layout = layout_of(parts, self.columns)
            if not self.layout.conllu and self._waiting:  # those lines were words: the first of them decides
                self.layout = layout_of(split(self._waiting[0][1]), self.columns)
        self._take_waiting()
        if not self.layout.holds_word(parts, where):
            return
        if self.tagged:
            self.layout.check(parts, where)
            self._tags.append(parts[self.layout.tag - 1])
        word = parts[self.layout.word - 1] if self.tagged or self.layout.conllu else parts[0]
        if not word:
            raise DataError(f"tagger: {where}: the word must not be empty, got {line!r}")
        self._words.append(word)
        self._lines.append(number)


def split(line: str) -> list[str]:
    """Columns; a no-break space or the like belongs to its word, blanks around a tag do not."""
    parts = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
    return [*parts[:-1], parts[-1].strip()] if len(parts) > 1 else parts


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
