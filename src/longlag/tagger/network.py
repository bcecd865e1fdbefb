"""The network: words and their characters, bidirectional LSTMs, a score for every tag. [BILSTM-CRF 3]

Letters: B sentences, T words, F different words, K tags, H units of an LSTM in each direction.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longlag.layers import LSTM
from longlag.tagger.batches import Batch
from longlag.tagger.vocabulary import AFFIXES, UNKNOWN, Forms, Vocabulary

WORD, AFFIX, CHARACTER, FILTERS = 100, 25, 32, 100  # widths of the features
WINDOW = 3  # characters read together
SPELLED = 512  # words described at once in prediction
RARE = 0.25  # a word seen n times is hidden with probability RARE/(RARE + n), so that its characters are trusted


class Noise(NamedTuple):
    """Random numbers of a whole batch, drawn at once: the same however the batch is split over processes."""

    hidden: Tensor  # (B, T): words read as unknown
    masks: list[Tensor]  # (B, 1, D), what each LSTM and the read-out keep: one draw per sentence, the same at all times

    def rows(self, chosen: slice) -> Noise:
        """Of some of the sentences."""
        return Noise(self.hidden[chosen], [mask[chosen] for mask in self.masks])


class Network(nn.Module):
    """Scores B[t] = V h_t + c of the tags, h_t = [h_f(t); h_b(t)] of the last LSTM [BILSTM-CRF 3].

    Args:
        vocabulary: of words, characters, affixes and tags.
        hidden: H.
        layers: LSTMs on top of each other.
        dropout: share of every LSTM's input and of the read-out's that is left out in training, per sentence.
        vectors: (V, D) pretrained, row 0 for words without one; these vectors are not trained.
    """

    vectors: Tensor | None
    rarity: Tensor

    def __init__(
        self, vocabulary: Vocabulary, hidden: int, layers: int, dropout: float, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.words = nn.Embedding(len(vocabulary.words) + 2, WORD)
        self.affixes = nn.Embedding(len(vocabulary.affixes) + 2, AFFIX)
        self.characters = nn.Embedding(len(vocabulary.characters) + 2, CHARACTER, padding_idx=0)
        self.windows = nn.Linear(WINDOW * CHARACTER, FILTERS)
        self.register_buffer("vectors", vectors, persistent=False)
        self.register_buffer("rarity", RARE / (RARE + torch.tensor(vocabulary.counts)), persistent=False)
        width = WORD + FILTERS + AFFIX * len(AFFIXES) + (0 if vectors is None else vectors.shape[1])
        self.widths = [width] + [2 * hidden] * layers
        self.lstms = nn.ModuleList(
            LSTM(inputs, hidden, batch_first=True, bidirectional=True) for inputs, _ in pairwise(self.widths)
        )
        self.emit = nn.Linear(2 * hidden, len(vocabulary.tags))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Embeddings of length about 1; the rest as torch has it."""
        for embedding in (self.words, self.affixes, self.characters):
            nn.init.normal_(embedding.weight, std=embedding.embedding_dim**-0.5)
        self.characters.weight[0] = 0

    def draw(self, batch: Batch) -> Noise:
        """Noise for a batch, from torch's generator."""
        rarity = self.rarity[batch.forms.words][batch.places]
        keep, B = 1 - self.dropout, len(batch.lengths)
        masks = [rarity.new_empty(B, 1, width).bernoulli_(keep) / keep for width in self.widths]
        return Noise(torch.rand_like(rarity) < rarity, masks)

    def spell(self, forms: Forms) -> Tensor:
        """Features of words except the word embedding (F, D): windows of characters, affixes, pretrained vector."""
        longest = forms.characters.shape[1]
        letters = self.characters(F.pad(forms.characters, (WINDOW // 2, WINDOW // 2)))  # (F, C + WINDOW − 1, ·)
        windows = self.windows(torch.cat([letters[:, k : k + longest] for k in range(WINDOW)], -1))  # (F, C, FILTERS)
        strongest = windows.masked_fill((forms.characters == 0).unsqueeze(-1), -torch.inf).amax(1)
        parts = [F.relu(strongest), self.affixes(forms.affixes).flatten(1)]
        if self.vectors is not None:
            parts.append(F.embedding(forms.vectors, self.vectors))
        return torch.cat(parts, -1)

    def describe(self, forms: Forms) -> Tensor:
        """The first LSTM's input for each word (F, D), without noise."""
        order = (forms.characters != 0).sum(1).argsort()  # short words together: there is less padding to read
        spelled = torch.cat([self.spell(forms.chosen(some)) for some in order.split(SPELLED)])
        return torch.cat([self.words(forms.words), spelled[order.argsort()]], -1)

    def forward(self, batch: Batch, noise: Noise) -> Tensor:
        """Scores (B, T, K) in training."""
        words = batch.forms.words[batch.places].masked_fill(noise.hidden, UNKNOWN)
        spelled = F.embedding(batch.places, self.spell(batch.forms))  # its gradient adds up in a fixed order
        return self.run(torch.cat([self.words(words), spelled], -1), batch.lengths, noise.masks)

    def run(self, x: Tensor, lengths: Tensor, masks: list[Tensor] | None = None) -> Tensor:
        """Scores (B, T, K) of described words (B, T, D)."""
        for k, lstm in enumerate(self.lstms):
            x, _ = lstm(x if masks is None else x * masks[k], lengths=lengths)
        return self.emit(x if masks is None else x * masks[-1])  # [BILSTM-CRF 3]
