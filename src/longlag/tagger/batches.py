"""Sentences as tensors: batches of like length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longlag.tagger.data import Sentence
from longlag.tagger.vocabulary import Forms, Vocabulary


class Batch(NamedTuple):
    """Sentences side by side."""

    forms: Forms  # the different words of the batch
    places: Tensor  # (B, T): index of each word in forms; 0 as padding
    lengths: Tensor  # (B,)
    tags: Tensor  # (B, T), −1 beyond a length

    @property
    def mask(self) -> Tensor:
        """(B, T): where words are."""
        return torch.arange(self.places.shape[1]) < self.lengths[:, None]

    def rows(self, chosen: slice) -> Batch:
        """Some of the sentences."""
        return self._replace(places=self.places[chosen], lengths=self.lengths[chosen], tags=self.tags[chosen])


class Corpus:
    """Sentences as numbers, every different word described once.

    >>> vocabulary = Vocabulary.of([["a", "cat"], ["cat"]], ["X", "Y"])
    >>> corpus = Corpus([Sentence(["a", "cat"], ["X", "Y"]), Sentence(["cat"], ["Y"])], vocabulary)
    >>> batch = corpus.batch([0, 1])
    >>> batch.places, batch.tags
    (tensor([[0, 1], [1, 0]]), tensor([[ 0,  1], [ 1, -1]]))
    """

    def __init__(self, sentences: Sequence[Sentence], vocabulary: Vocabulary) -> None:
        numbers: dict[str, int] = {}
        places = [[numbers.setdefault(word, len(numbers)) for word in s.words] for s in sentences]
        tag_number = {tag: k for k, tag in enumerate(vocabulary.tags)}
        self.forms = vocabulary.forms(list(numbers))
        self.lengths = [len(s.words) for s in sentences]
        self.places = [torch.tensor(p, dtype=torch.long) for p in places]
        self.tags = [torch.tensor([tag_number.get(t, -1) for t in s.tags]) for s in sentences]

    def laid_out(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Places of sentences in all the corpus's forms (B, T), −1 beyond a length, and their lengths (B,)."""
        lengths = torch.tensor([self.lengths[k] for k in chosen])
        return pad_sequence([self.places[k] for k in chosen], batch_first=True, padding_value=-1), lengths

    def batch(self, chosen: Sequence[int]) -> Batch:
        """Tagged sentences as a batch."""
        places, lengths = self.laid_out(chosen)
        tags = pad_sequence([self.tags[k] for k in chosen], batch_first=True, padding_value=-1)
        used, inverse = places.unique(return_inverse=True)
        padded = int(used[0] < 0)  # −1, the padding, sorts first
        inverse, used = (inverse - padded).clamp_(0), used[padded:]
        return Batch(self.forms.chosen(used), inverse, lengths, tags)

    def __len__(self) -> int:
        return len(self.lengths)


def buckets(lengths: Sequence[int], order: Sequence[int], size: int, words: int) -> list[list[int]]:
    """Cut ``order`` into groups of at most ``size`` sentences and ``words`` padded words; one may be longer alone."""
    groups: list[list[int]] = []
    longest = 0
    for k in order:
        longest = max(longest, lengths[k])
        if not groups or len(groups[-1]) == size or longest * (len(groups[-1]) + 1) > words:
            groups.append([])
            longest = lengths[k]
        groups[-1].append(k)
    return groups


def shuffled(
    lengths: Sequence[int], size: int, words: int, generator: torch.Generator | None = None
) -> list[list[int]]:
    """One epoch: a random order, sorted by length within pools of 50 batches, the batches again in random order."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    groups: list[list[int]] = []
    for start in range(0, len(order), 50 * size):
        pool = sorted(order[start : start + 50 * size], key=lambda k: lengths[k])
        groups += buckets(lengths, pool, size, words)
    return [groups[k] for k in torch.randperm(len(groups), generator=generator).tolist()]
