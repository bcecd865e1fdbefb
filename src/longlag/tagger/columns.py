"""Which columns of a file are words and tags: FORM and UPOS of CoNLL-U, else first and last, or the user's choice."""

from __future__ import annotations

import re
from typing import NamedTuple

CONLLU = 10  # columns: ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC
FORM, UPOS = 2, 4
DOCUMENT = "-DOCSTART-"  # the CoNLL-2003 mark between documents: not a word


class DataError(ValueError):
    """A file that cannot be used; the message says where and why."""


class Layout(NamedTuple):
    """Columns, counted from 1; of a CoNLL-U file only the lines of words are read."""

    word: int
    tag: int
    width: int  # columns of the first line
    conllu: bool
    chosen: bool  # by the user

    @property
    def note(self) -> str | None:
        """What a user should know who has not chosen the columns; None for a word and a tag."""
        if self.chosen or (self.width == 2 and not self.conllu):
            return None
        if self.conllu:
            return f"CoNLL-U: words from column {FORM} (FORM), tags from column {UPOS} (UPOS)"
        columns = f"words from column {self.word}, tags from column {self.tag}"
        return f"{self.width} columns: {columns}; --columns chooses others"

    def holds_word(self, parts: list[str], where: str) -> bool:
        """Whether a line of CoNLL-U is a word: not a comment, a multiword token (1-2) or an empty node (1.1)."""
        if not self.conllu:
            return True
        if parts[0].startswith("#") or re.fullmatch(r"\d+-\d+|\d+\.\d+", parts[0]):
            return False
        if not parts[0].isdecimal():
            raise DataError(
                f"tagger: {where}: column 1 of CoNLL-U must be a number such as 1, got {parts[0]!r}; "
                f"if the file is not CoNLL-U, choose the columns of word and tag, such as --columns 1,{CONLLU}"
            )
        return True

    def check(self, parts: list[str], where: str) -> None:
        """Refuse a line of a tagged file that has not these columns."""
        if self.chosen:
            if len(parts) < max(self.word, self.tag):
                least = max(self.word, self.tag)
                raise DataError(f"tagger: {where}: a line must have at least {least} columns, got {len(parts)}")
        elif len(parts) == 1:
            raise DataError(
                f"tagger: {where}: a line must be a word, TAB or blanks, and a tag, got one column: {parts[0]!r}"
            )
        elif len(parts) != self.width:
            raise DataError(
                f"tagger: {where}: every line must have {self.width} columns like the first, got {len(parts)}"
            )
        tag = parts[self.tag - 1]
        if not tag or (self.conllu and tag == "_"):
            raise DataError(f"tagger: {where}: the tag must not be empty, got {parts!r}")


def layout_of(parts: list[str], columns: tuple[int, int] | None) -> Layout:
    """The layout of a file by its first line of words.

    >>> layout_of(["cat", "NOUN"], None)[:2], layout_of(["cat", "x", "NOUN"], None)[:2]
    ((1, 2), (1, 3))
    >>> layout_of("1 cat cat NOUN NN _ 0 root _ _".split(), None)[:2]
    (2, 4)
    """
    first_id = re.fullmatch(r"1|1-\d+|0\.1", parts[0]) is not None
    conllu = len(parts) == CONLLU and first_id and (columns is None or columns[0] != 1)
    word, tag = columns or ((FORM, UPOS) if conllu else (1, len(parts)))
    return Layout(word, tag, len(parts), conllu, columns is not None)


def parse(columns: str | None) -> tuple[int, int] | None:
    """``"2,4"`` as (2, 4): the columns of word and tag, counted from 1.

    >>> parse("2,4"), parse(None)
    ((2, 4), None)
    """
    if columns is None:
        return None
    numbers = [int(part) for part in columns.split(",") if re.fullmatch(r"[1-9]\d*", part.strip())]
    if len(numbers) != 2 or columns.count(",") != 1 or numbers[0] == numbers[1]:
        raise ValueError(f"tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got {columns!r}")
    return numbers[0], numbers[1]
