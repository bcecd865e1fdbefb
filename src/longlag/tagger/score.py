"""How good tags are: accuracy by word, and precision, recall and F1 by span as conlleval and seqeval count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from longlag.tagger.spans import scheme_of, spans


@dataclass(frozen=True)
class Count:
    """Numbers of right guesses, of guesses (found), and of items in the data (there)."""

    right: int
    found: int
    there: int

    @property
    def precision(self) -> float:
        """right/found; 0 if nothing was found."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """right/there; 0 if there is nothing to find."""
        return self.right / self.there if self.there else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if nothing was right."""
        return 2 * self.right / (self.found + self.there) if self.right else 0.0


@dataclass(frozen=True)
class Score:
    """What `score` found; ``spans`` is None and ``kinds`` empty if the tags are not spans."""

    right: int
    words: int
    tags: dict[str, Count]
    spans: Count | None
    kinds: dict[str, Count]

    @property
    def accuracy(self) -> float:
        """Words with the right tag."""
        return self.right / self.words if self.words else 0.0

    @property
    def value(self) -> float:
        """The score training selects by: F1 of the spans if there are spans, else accuracy."""
        return self.accuracy if self.spans is None else self.spans.f1


def score(gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]]) -> Score:
    """Compare tags of sentences with the right ones.

    >>> one = score([["B-loc", "I-loc", "O"]], [["B-loc", "O", "O"]])
    >>> round(one.accuracy, 3), one.spans
    (0.667, Count(right=0, found=1, there=1))

    Source: Tjong Kim Sang and Buchholz 2000 (conlleval).
    """
    if [len(tags) for tags in gold] != [len(tags) for tags in guessed]:
        raise ValueError("score: gold and guessed must be sentences of the same lengths")
    pairs = Counter((a, b) for tags, others in zip(gold, guessed) for a, b in zip(tags, others))
    names = sorted({tag for pair in pairs for tag in pair})
    right = {tag: pairs[tag, tag] for tag in names}
    there, found = Counter[str](), Counter[str]()
    for (a, b), n in pairs.items():
        there[a] += n
        found[b] += n
    tags = {tag: Count(right[tag], found[tag], there[tag]) for tag in names}
    whole, kinds = None, {}
    if scheme_of(names):
        kinds = _by_kind(gold, guessed)
        whole = Count(*(sum(getattr(c, name) for c in kinds.values()) for name in ("right", "found", "there")))
    return Score(sum(right.values()), sum(pairs.values()), tags, whole, kinds)


def _by_kind(gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]]) -> dict[str, Count]:
    right, found, there = Counter[str](), Counter[str](), Counter[str]()
    for tags, others in zip(gold, guessed):
        a, b = set(spans(tags)), set(spans(others))
        for counter, some in ((right, a & b), (found, b), (there, a)):
            counter.update(span.kind for span in some)
    return {kind: Count(right[kind], found[kind], there[kind]) for kind in sorted({*found, *there})}
