"""Training a tagger from files: `train_tagger`, and ``python -m longlag.tagger.train`` for torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import distributed

from longlag.engines import few_threads
from longlag.layers import validation
from longlag.tagger import folder as folders
from longlag.tagger.batches import Corpus
from longlag.tagger.columns import DataError, parse
from longlag.tagger.data import Sentence, layout, read
from longlag.tagger.loop import Loop, World, reproducible
from longlag.tagger.model import HEADS, Tagger
from longlag.tagger.score import Score, score
from longlag.tagger.spans import scheme_of, spans, written
from longlag.tagger.vectors import read_vectors
from longlag.tagger.vocabulary import Vocabulary


@dataclass(frozen=True)
class Settings:
    """How to train; kept in the model's folder.

    Args:
        epochs: passes over the training data; the learning rate falls to 0 over them.
        seed: of everything random.
        hidden, layers, head, dropout: as in `Tagger`.
        batch: sentences of an update; by default 1/384 of the training sentences, at least 8 and at most 32: few
            sentences need small batches, or an epoch has too few updates.
        rate: highest learning rate.
        patience: stop after so many epochs without a better score on the dev data; epochs before the first score
            above 0 are not counted.
        vectors: text file of pretrained word vectors.
        columns: of word and tag in the files, such as "2,4"; see `longlag.tagger.data.read` for the default.
    """

    epochs: int = 12
    seed: int = 0
    hidden: int = 200
    layers: int = 1
    head: str = "crf"
    dropout: float = 0.4
    batch: int | None = None
    rate: float = 2e-3
    patience: int = 5
    vectors: str | None = None
    columns: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "hidden", "layers", "patience", *(["batch"] if self.batch is not None else [])):
            validation.positive("tagger", name, getattr(self, name))
        validation.positive("tagger", "seed", self.seed, least=0)
        validation.probability("tagger", "dropout", self.dropout)
        validation.one_of("tagger", "head", self.head, HEADS)
        parse(self.columns)
        if not 0 < self.rate < 1:
            raise ValueError(f"tagger: rate must be a number between 0 and 1, got {self.rate!r}")


class Watch:
    """Called during training; this base class does nothing."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def batch(self, epoch: int, epochs: int, done: int, batches: int) -> None:
        """``done`` of ``batches`` batches of an epoch are finished; epochs count from 0."""

    def epoch(self, epoch: int, epochs: int, loss: float, dev: Score, best: bool) -> None:
        """An epoch is finished, scored and on disk; ``best``: its weights are now the model's."""


def train_tagger(
    train: str | Path,
    dev: str | Path,
    folder: str | Path,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    world: World | None = None,
) -> Tagger:
    """Train on one file, select the best epoch by another, and write the model to a folder.

    After every epoch the folder holds a model that can be loaded and a checkpoint for resuming. The same files and
    settings give the same bytes.

    Args:
        train, dev: tagged sentences; see `longlag.tagger.data.read`.
        folder: new or empty; with ``resume`` one that an interrupted training has left.
        resume: continue after the last finished epoch; the result is that of uninterrupted training.
        watch: is called with notes and progress.
        world: processes that share the batches; the first writes.
    """
    settings, watch, world = settings or Settings(), watch or Watch(), world or World()
    folder, paths = Path(folder), [Path(train), Path(dev)]
    columns = parse(settings.columns)
    sentences = load(paths[0], watch, columns=columns)
    tags = {tag for s in sentences for tag in s.tags}
    dev_sentences = load(paths[1], watch, tags, columns)
    origin = {"settings": asdict(settings), "data": folders.fingerprint(*paths)}
    tagger = Tagger.described(folder) if resume and folders.begun(folder) else None
    if tagger is not None:
        check_origin(folders.read_description(folder)["training"], origin, folder)
        if folders.finished(folder):
            watch.note(f"{folder} is finished: nothing to resume")
            return Tagger.load(folder)
    with reproducible(), few_threads(4 * settings.hidden):  # the gates of a layer: 4 H columns
        torch.manual_seed(settings.seed)
        resumed, tagger = tagger is not None, tagger or new_tagger(sentences, settings)
        batch = settings.batch or usual_batch(len(sentences))
        how = {"batch_size": batch, "rate": settings.rate, "epochs": settings.epochs}
        loop = Loop(tagger, Corpus(sentences, tagger.vocabulary), **how, world=world)
        if resumed:
            loop.read(folder)
            if world.rank == 0:
                folders.remove_half_written(folder)
            watch.note(f"resuming after epoch {loop.epoch}")
        elif world.rank == 0:
            folders.claim(folder)
            loop.write(folder)
            tagger.write_description(folder, training=origin)  # last: from now on training can be resumed
        while loop.epoch < settings.epochs and loop.epochs_without_progress < settings.patience:
            one_epoch(loop, dev_sentences, folder, watch)
    if loop.best == 0:
        watch.note("no epoch got anything right on the dev data; train for more epochs, or check the two files")
    if world.rank == 0:
        (folder / folders.CHECKPOINT).unlink()
    loop.agreed(0.0)  # all processes wait until the first has written
    return Tagger.load(folder)


def usual_batch(sentences: int) -> int:
    """Sentences of an update, for a training file of so many.

    >>> usual_batch(3_394), usual_batch(12_544)
    (8, 32)
    """
    return min(32, max(8, sentences // 384))


def one_epoch(loop: Loop, dev: Sequence[Sentence], folder: Path, watch: Watch) -> None:
    """Train, score, write: first the model if it is the best so far, then the checkpoint that records its score."""
    epoch, first = loop.epoch, loop.world.rank == 0
    loss = loop.run_epoch(lambda done, of: watch.batch(epoch, loop.epochs, done, of))
    found = score([s.tags for s in dev], loop.averaged.predict([s.words for s in dev])) if first else None
    value = loop.agreed(found.value if found else 0.0)
    if better := value > loop.best:
        loop.best, loop.best_epoch = value, loop.epoch
    if found:
        if better:
            loop.averaged.write_weights(folder, epoch=loop.epoch, dev=value)
        loop.write(folder)
        watch.epoch(loop.epoch, loop.epochs, loss, found, better)


def load(
    path: Path, watch: Watch, known: Collection[str] | None = None, columns: tuple[int, int] | None = None
) -> list[Sentence]:
    """The sentences of a file, ready for training or scoring; ``watch`` gets a note of everything unusual.

    Tags that break their scheme are corrected so that the spans that conlleval finds stay. Tags that training never
    saw stay too; no tagger can guess such a tag, so each counts as an error.

    Args:
        path: of the file.
        watch: gets the notes.
        known: the tags of the training data; None for the training data themselves.
        columns: of word and tag; see `longlag.tagger.data.read`.
    """
    sentences = read(path, columns)
    if (used := layout(path, columns)) is not None and used.note:
        watch.note(f"{path}: {used.note}")
    scheme = scheme_of(known or [tag for s in sentences for tag in s.tags])
    if scheme is not None:
        legal = [s._replace(tags=mended(s.tags, scheme)) for s in sentences]
        pairs = [(old, new) for s, t in zip(sentences, legal) for old, new in zip(s.tags, t.tags)]
        if changed := sum(old != new and scheme_of([old]) is not None for old, new in pairs):
            watch.note(f"{path}: {changed} tags break {scheme} (an I- with no B- …) and were mended; no span changes")
    else:
        legal = sentences
    if known is not None:
        note_new_tags(sentences, legal, known, path, watch)
    return legal


def mended(tags: Sequence[str], scheme: str) -> list[str]:
    """Tags as their scheme has them; a tag that is not of the scheme is a span of its own kind.

    >>> mended(["O", "I-per", "GPE"], "BIO")
    ['O', 'B-per', 'B-GPE']
    """
    ours = [tag if tag == "O" or scheme_of([tag]) else f"B-{tag}" for tag in tags]
    return written(spans(ours), len(ours), scheme)


def note_new_tags(
    sentences: Sequence[Sentence], legal: Sequence[Sentence], known: Collection[str], path: Path, watch: Watch
) -> None:
    """Note the tags that training never saw, as the file has them; refuse a file that has no other."""
    new: Counter[str] = Counter()
    first = 0
    for sentence, mended in zip(sentences, legal):
        for tag, mended_tag, line in zip(sentence.tags, mended.tags, sentence.lines):
            if mended_tag not in known:
                new[tag] += 1
                first = first or line
    words = sum(len(s.tags) for s in sentences)
    if new.total() == words:
        here, there = (", ".join(sorted(tags)[:20]) for tags in (new, known))
        raise DataError(f"tagger: {path}: no tag is known from training ({there}), got {here}")
    if new:
        named = ", ".join(f"{tag} {n}" for tag, n in new.most_common(10)) + (", …" if len(new) > 10 else "")
        watch.note(
            f"{path}: {new.total()} of {words:,} words have tags that training never saw and count as errors: "
            f"{named} (first in line {first})"
        )


def columns_of(folder: Path) -> str | None:
    """The columns chosen for training; None if by default."""
    return folders.read_description(folder).get("training", {}).get("settings", {}).get("columns")


def check_origin(then: dict, now: dict, folder: Path) -> None:
    """Refuse to resume with settings or data that differ from those at the start."""
    if then["data"] != now["data"]:
        raise folders.FolderError(
            f"Tagger: {folder} was begun with other training or dev data; resume with the same files"
        )
    old, new = then["settings"], now["settings"]
    if changed := [f"{name} was {old.get(name)!r}, now {new[name]!r}" for name in new if new[name] != old.get(name)]:
        raise folders.FolderError(f"Tagger: {folder} was begun with other settings: {'; '.join(changed)}")


def new_tagger(sentences: Sequence[Sentence], settings: Settings) -> Tagger:
    """An untrained tagger for these sentences."""
    tags = sorted({tag for s in sentences for tag in s.tags})
    vocabulary, vectors = Vocabulary.of([s.words for s in sentences], tags), None
    if settings.vectors:
        numbers, vectors = read_vectors(settings.vectors)
        vocabulary = replace(vocabulary, vectors=numbers)
    shape = {name: getattr(settings, name) for name in ("hidden", "layers", "head", "dropout")}
    return Tagger(vocabulary, **shape, vectors=vectors)


class Lines(Watch):
    """Notes, and one line per epoch, on standard error."""

    def note(self, text: str) -> None:
        print(f"longlag: {text}", file=sys.stderr, flush=True)

    def epoch(self, epoch: int, epochs: int, loss: float, dev: Score, best: bool) -> None:
        kind = "accuracy" if dev.spans is None else "F1"
        line = f"epoch {epoch}/{epochs}  loss {loss:.4f}  dev {kind} {100 * dev.value:.2f} %"
        print(line + ("  best so far" if best else ""), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, in one process or in those that torchrun starts; as ``longlag tag train`` does."""
    parser = argparse.ArgumentParser(prog="longlag.tagger.train", description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    for field in fields(Settings):
        kind = {"batch": int, "vectors": str, "columns": str}.get(field.name) or type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    options = vars(parser.parse_args(arguments))
    train, dev, out, resume = (options.pop(name) for name in ("train", "dev", "out", "resume"))
    world = World(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    watch = Lines() if world.rank == 0 else Watch()
    try:
        if world.size > 1:
            distributed.init_process_group("gloo")
        train_tagger(train, dev, out, Settings(**options), resume=resume, watch=watch, world=world)
    except (ValueError, OSError) as error:
        watch.note(str(error))
        return 2
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
