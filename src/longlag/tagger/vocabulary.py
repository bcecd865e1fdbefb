"""Words as numbers: the word itself, its characters, its beginnings and endings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

PAD, UNKNOWN = 0, 1  # of every vocabulary; real entries follow
LONGEST = 40  # characters of a word that are read: the first and the last 20
AFFIXES = (-1, -2, -3, -4, 1, 2, 3)  # endings and beginnings, by their number of characters


class Forms(NamedTuple):
    """Different words of a text, as numbers."""

    words: Tensor  # (F,) into the vocabulary of words, 1 if unknown
    affixes: Tensor  # (F, 7)
    characters: Tensor  # (F, C), 0 beyond a word's end
    vectors: Tensor  # (F,) into the pretrained vectors, 0 if there is none

    def chosen(self, which: Tensor) -> Forms:
        """Some of the words, with no more columns of characters than they need."""
        letters = self.characters[which]
        longest = int((letters != PAD).sum(1).max())
        return Forms(self.words[which], self.affixes[which], letters[:, :longest], self.vectors[which])


@dataclass
class Vocabulary:
    """Numbers for words, affixes, characters and tags, from training data.

    Args:
        words, affixes, characters: entry -> number, from 2; 0 is padding, 1 unknown.
        counts: how often each word number occurred in training.
        tags: the names of the tags, in order.
        vectors: word -> number from 1, of pretrained vectors.

    >>> v = Vocabulary.of([["The", "cat"], ["the", "dog"]], ["DET", "NOUN"])
    >>> v.words
    {'the': 2, 'cat': 3, 'dog': 4}
    >>> v.forms(["THE", "cow"]).words
    tensor([2, 1])
    """

    words: dict[str, int]
    counts: list[int]
    affixes: dict[str, int]
    characters: dict[str, int]
    tags: list[str]
    vectors: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], tags: Sequence[str]) -> Vocabulary:
        """The vocabulary of sentences; affixes and characters that occur in one different word only are unknown."""
        counted = Counter(word for words in texts for word in words)
        words: Counter[str] = Counter()
        for word, n in counted.items():
            words[normal(word)] += n
        affixes = Counter(affix for word in counted for affix in affixes_of(word))
        characters = Counter(letter for word in counted for letter in dict.fromkeys(word))
        numbers = {word: k for k, word in enumerate(words, 2)}
        return cls(numbers, [0, 0, *words.values()], _frequent(affixes), _frequent(characters), list(tags))

    def forms(self, words: Sequence[str]) -> Forms:
        """The features of different words."""
        spelled = [[self.characters.get(c, UNKNOWN) for c in _ends(word)] for word in words]
        longest = max(map(len, spelled), default=1)
        letters = [numbers + [PAD] * (longest - len(numbers)) for numbers in spelled]
        known = [self.words.get(normal(word), UNKNOWN) for word in words]
        affixes = [[self.affixes.get(affix, UNKNOWN) for affix in affixes_of(word)] for word in words]
        vectors = [self.vectors.get(word, self.vectors.get(word.lower(), 0)) for word in words]
        return Forms(
            torch.tensor(known, dtype=torch.long),
            torch.tensor(affixes, dtype=torch.long).view(-1, len(AFFIXES)),
            torch.tensor(letters, dtype=torch.long).view(-1, longest),
            torch.tensor(vectors, dtype=torch.long),
        )


def normal(word: str) -> str:
    """Lower case, every digit 0; the characters keep case and digits."""
    return re.sub(r"\d", "0", word.lower())


def affixes_of(word: str) -> list[str]:
    """Endings and beginnings, named so that they cannot be confused."""
    plain = normal(word)
    return [f"{n}{plain[n:] if n < 0 else plain[:n]}" for n in AFFIXES]


def _ends(word: str) -> str:
    return word if len(word) <= LONGEST else word[: LONGEST // 2] + word[-LONGEST // 2 :]


def _frequent(counts: Counter[str]) -> dict[str, int]:
    return {entry: k for k, entry in enumerate((e for e, n in counts.items() if n > 1), 2)}
