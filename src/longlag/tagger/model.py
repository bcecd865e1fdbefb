"""`Tagger`: tags for the words of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longlag.engines import few_threads
from longlag.layers import validation
from longlag.structured import CRF
from longlag.tagger import folder as folders
from longlag.tagger.batches import Batch, Corpus, buckets
from longlag.tagger.data import Sentence
from longlag.tagger.network import Network, Noise
from longlag.tagger.spans import scheme_of
from longlag.tagger.vocabulary import Vocabulary

HEADS = ("crf", "softmax")
AT_ONCE, WORDS_AT_ONCE = 256, 8192  # sentences and padded words of one prediction


class Tagger(nn.Module):
    """A BiLSTM-CRF tagger: word, character and affix features, bidirectional LSTMs, a linear-chain CRF.

    B[t] = V [h_f(t); h_b(t)] + c; p(tags | words) ∝ exp(Σ B[t, y_t] + Σ A[y_{t−1}, y_t]) [BILSTM-CRF 3].

    Tags that are spans (BIO, BIOES or BILOU) are recognised, and the CRF then allows only what their scheme allows.
    `learn` makes a tagger from files; `save` and `load` keep it in a folder.

    Args:
        vocabulary: words, characters, affixes and tags; see `longlag.tagger.vocabulary.Vocabulary.of`.
        hidden: H, units of an LSTM in each direction.
        layers: LSTMs on top of each other.
        head: ``"crf"``, or ``"softmax"``: the tag of each word is chosen independently.
        dropout: share of features left out in training, one draw per sentence (Gal and Ghahramani 2016).
        vectors: (V, D) pretrained vectors for ``vocabulary.vectors``, row 0 for words without one; not trained.

    >>> import tempfile, longlag as ll
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as place:
    ...     data = Path(place, "cats.tsv")
    ...     _ = data.write_text("the\\tDET\\ncat\\tNOUN\\n\\na\\tDET\\ndog\\tNOUN\\n\\n" * 20)
    ...     tagger = ll.Tagger.learn(data, data, Path(place, "model"), epochs=10, hidden=8, batch=4, rate=0.02)
    ...     again = ll.Tagger.load(Path(place, "model"))
    >>> again.predict([["a", "cat"]])
    [['DET', 'NOUN']]

    Source: Lample et al. 2016; Huang, Xu and Yu 2015.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        hidden: int = 200,
        layers: int = 1,
        head: str = "crf",
        dropout: float = 0.4,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        validation.positive("Tagger", "hidden", hidden)
        validation.positive("Tagger", "layers", layers)
        validation.one_of("Tagger", "head", head, HEADS)
        validation.probability("Tagger", "dropout", dropout)
        self.vocabulary, self.head = vocabulary, head
        self.shape = {"hidden": hidden, "layers": layers, "head": head, "dropout": dropout}
        self.network = Network(vocabulary, hidden, layers, dropout, vectors)
        self.crf = None
        if head == "crf":
            scheme = scheme_of(vocabulary.tags)
            constraints = CRF.constraints_from(vocabulary.tags, scheme) if scheme else None
            self.crf = CRF(len(vocabulary.tags), constraints=constraints)

    @staticmethod
    def learn(train: str | Path, dev: str | Path, folder: str | Path, **settings: Any) -> Tagger:
        """Train on a file of tagged sentences; settings as in `longlag.tagger.train.Settings`."""
        from longlag.tagger.train import Settings, train_tagger

        return train_tagger(train, dev, folder, Settings(**settings))

    # ------------------------------------------------------------------------------------------------ training
    def forward(self, batch: Batch, noise: Noise) -> Tensor:
        """−log p(tags | words) of a batch, summed."""
        scores = self.network(batch, noise)
        if self.crf is not None:
            return -self.crf(scores, batch.tags, batch.mask)
        return F.cross_entropy(scores.flatten(0, 1), batch.tags.flatten(), ignore_index=-1, reduction="sum")

    # ---------------------------------------------------------------------------------------------- predicting
    @overload
    def predict(self, sentences: Sequence[Sequence[str]], marginals: Literal[False] = False) -> list[list[str]]: ...
    @overload
    def predict(
        self, sentences: Sequence[Sequence[str]], marginals: Literal[True]
    ) -> list[list[tuple[str, float]]]: ...
    def predict(self, sentences: Sequence[Sequence[str]], marginals: bool = False) -> Any:
        """Tags of sentences, each a list of words.

        Args:
            sentences: any number of any length; a sentence without words has no tags.
            marginals: with each tag the probability P(y_t = tag | words) that it is right.
        """
        _check_sentences(sentences)
        corpus = Corpus([Sentence(list(words), []) for words in sentences], self.vocabulary)
        found: list[list[Any]] = [[] for _ in sentences]
        names = self.vocabulary.tags
        with few_threads(sum(corpus.lengths)):
            for chosen, tags, sure in self._predicted(corpus, marginals):
                for k, numbers, p in zip(chosen, tags.tolist(), sure.tolist() if marginals else tags):
                    some = [names[number] for number in numbers[: corpus.lengths[k]]]
                    found[k] = list(zip(some, p)) if marginals else some
        return found

    @torch.inference_mode()
    def _predicted(self, corpus: Corpus, marginals: bool) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Batches: which sentences, tag numbers (B, T), their probabilities (B, T) if asked for."""
        order = sorted((k for k, n in enumerate(corpus.lengths) if n), key=corpus.lengths.__getitem__)
        if not order:
            return
        table = self.network.describe(corpus.forms)  # every different word once
        for chosen in buckets(corpus.lengths, order, AT_ONCE, WORDS_AT_ONCE):
            places, lengths = corpus.laid_out(chosen)
            scores = self.network.run(F.embedding(places.clamp(0), table), lengths)
            mask = places >= 0
            tags = scores.argmax(-1) if self.crf is None else self.crf.viterbi(scores, mask)[0]
            sure = scores
            if marginals:
                p = scores.softmax(-1) if self.crf is None else self.crf.marginals(scores, mask)
                sure = p.gather(-1, tags.clamp(0).unsqueeze(-1)).squeeze(-1)
            yield chosen, tags, sure

    # -------------------------------------------------------------------------------------------------- folder
    def save(self, folder: str | Path) -> None:
        """Write a folder that `load` reads: tagger.json and safetensors. One that holds a tagger is not overwritten."""
        folder = Path(folder)
        folders.claim(folder)
        self.write_description(folder)
        self.write_weights(folder)

    def write_description(self, folder: Path, **notes: Any) -> None:
        """Write all but the weights that are trained."""
        if self.network.vectors is not None:
            folders.write_tensors(folder / folders.VECTORS, {"vectors": self.network.vectors})
        folders.write_description(folder, {"shape": self.shape, "vocabulary": asdict(self.vocabulary), **notes})

    def write_weights(self, folder: Path, **notes: Any) -> None:
        """Write the weights that are trained, and notes about them."""
        folders.write_tensors(folder / folders.WEIGHTS, self.state_dict(), **notes)

    @staticmethod
    def load(folder: str | Path) -> Tagger:
        """The tagger in a folder."""
        folder = Path(folder)
        tagger = Tagger.described(folder)
        weights, _ = folders.read_tensors(folder / folders.WEIGHTS)
        folders.fit(tagger, weights, folder / folders.WEIGHTS)
        return tagger.eval()

    @staticmethod
    def described(folder: Path) -> Tagger:
        """The tagger of a folder, as it was before training."""
        description = folders.read_description(folder)
        vectors = None
        try:
            vocabulary = Vocabulary(**description["vocabulary"])
            if vocabulary.vectors:
                vectors = folders.read_tensors(folder / folders.VECTORS)[0]["vectors"]
            with torch.random.fork_rng(devices=[]):  # loading draws no random numbers of the caller's
                return Tagger(vocabulary, **description["shape"], vectors=vectors)
        except (KeyError, TypeError) as error:
            raise folders.FolderError(f"Tagger: {folder / folders.DESCRIPTION} is damaged ({error})") from error


def _check_sentences(sentences: Any) -> None:
    for sentence in sentences:
        if isinstance(sentence, str) or not all(isinstance(word, str) and word for word in sentence):
            raise TypeError(f"Tagger: sentences must be lists of words, none of them empty, got {sentence!r}")
