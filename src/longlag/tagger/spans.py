"""Spans written as tags: which scheme it is, where spans begin and end, and tags that break their scheme."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longlag.structured.schemes import SCHEMES

CLOSES = "ESLU"  # letters after which a span is over
OPENS = "BSU"
LETTERS = {"BIO": "BBII", "BIOES": "SBIE", "BILOU": "UBIL"}  # alone, first, between, last


class Span(NamedTuple):
    """Words start … end − 1 are one thing of a kind."""

    kind: str
    start: int
    end: int


def scheme_of(tags: Iterable[str]) -> str | None:
    """``"BIO"``, ``"BIOES"`` or ``"BILOU"`` if the tags are letters and kinds of one of them (and O); else None.

    >>> scheme_of(["O", "B-loc", "I-loc"]), scheme_of(["O", "S-loc"]), scheme_of(["NOUN", "VERB"])
    ('BIO', 'BIOES', None)
    """
    parts = [re.fullmatch(r"([BIESLU])-(.+)", tag, re.DOTALL) for tag in set(tags) - {"O"}]
    letters = {part[1] for part in parts if part}
    if not parts or None in parts:
        return None
    return next((name for name, scheme in SCHEMES.items() if letters <= set(scheme.letters)), None)


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence as conlleval finds them, whatever the tags: every tag but O belongs to a span.

    A span begins after O, where the kind changes, at B, S or U, and after E, L, S or U. So an I without a B begins one.

    >>> spans(["B-loc", "I-loc", "O", "I-per", "B-per"])
    [Span(kind='loc', start=0, end=2), Span(kind='per', start=3, end=4), Span(kind='per', start=4, end=5)]

    Source: Tjong Kim Sang and Buchholz 2000 (conlleval).
    """
    found: list[Span] = []
    before, kind_before = "O", ""
    for t, tag in enumerate(tags):
        letter, _, kind = tag.partition("-")
        if letter != "O":
            if before == "O" or kind != kind_before or letter in OPENS or before in CLOSES:
                found.append(Span(kind, t, t + 1))
            else:
                found[-1] = found[-1]._replace(end=t + 1)
        before, kind_before = letter, kind
    return found


def written(found: Sequence[Span], length: int, scheme: str) -> list[str]:
    """Spans as the tags of a scheme.

    >>> written([Span("loc", 0, 2), Span("per", 3, 4)], 4, "BIOES")
    ['B-loc', 'E-loc', 'O', 'S-per']
    """
    alone, first, between, last = LETTERS[scheme]
    tags = ["O"] * length
    for kind, start, end in found:
        letters = alone if end == start + 1 else first + between * (end - start - 2) + last
        tags[start:end] = [f"{letter}-{kind}" for letter in letters]
    return tags
