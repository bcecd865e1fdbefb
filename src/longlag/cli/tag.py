"""`longlag tag`: train a tagger, measure its accuracy, use it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from longlag.cli._errors import one_line_errors

if TYPE_CHECKING:
    from longlag.tagger.model import Tagger
    from longlag.tagger.train import Watch

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Tag the words of sentences: parts of speech, names, anything with a tag per word.",
)
Model = Annotated[Path, typer.Argument(help="Folder that tag train has written.")]


@app.command()
def train(
    train: Annotated[Path, typer.Argument(help="Training data: word TAB tag, a blank line after each sentence.")],
    dev: Annotated[Path, typer.Option(help="Data to choose the best epoch by; not the test data.")],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    epochs: Annotated[int, typer.Option(help="Passes over the data; the learning rate falls to 0 over them.")] = 12,
    seed: Annotated[int, typer.Option(help="The same seed, the same model, bit for bit.")] = 0,
    head: Annotated[str, typer.Option(help="crf, or softmax: each tag for itself.")] = "crf",
    hidden: Annotated[int, typer.Option(help="Units of the LSTM in each direction.")] = 200,
    layers: Annotated[int, typer.Option(help="LSTMs on top of each other.")] = 1,
    dropout: Annotated[float, typer.Option(help="Share of features left out in training; more for less data.")] = 0.4,
    vectors: Annotated[str | None, typer.Option(help="Text file of word vectors: word v1 v2 …")] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of word and tag, such as 2,5. Default: 2,4 of CoNLL-U, else first and last."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last finished epoch.")] = False,
) -> None:
    """Learn to tag from a file of tagged sentences.

    Tags of spans (BIO, BIOES, BILOU) are recognised: the model is then chosen by F1, else by accuracy. After every
    epoch the folder holds a model that works; if training is killed, the same command with --resume continues.

    [bold]Example[/bold]

        longlag tag train train.tsv --dev dev.tsv --out model/
        longlag tag eval model/ test.tsv
        echo "Can you book me a table?" | longlag tag predict model/ --raw -
    """
    with one_line_errors("stopped; the same command with --resume goes on"):
        from longlag.tagger.train import Settings, train_tagger

        settings = Settings(
            epochs=epochs,
            seed=seed,
            head=head,
            hidden=hidden,
            layers=layers,
            dropout=dropout,
            vectors=vectors,
            columns=columns,
        )
        begun = time.perf_counter()
        with watching() as watch:
            train_tagger(train, dev, out, settings, resume=resume, watch=watch)
        typer.echo(f"{out}: done in {(time.perf_counter() - begun) / 60:.1f} minutes")


@app.command("eval")
def evaluate(
    model: Model,
    test: Annotated[Path, typer.Argument(help="Tagged sentences, as for training.")],
    report: Annotated[Path | None, typer.Option(help="Write an error analysis as one HTML page.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of word and tag, such as 2,5; by default those that training read.")
    ] = None,
) -> None:
    """See how good a model is on tagged sentences it has not seen.

    Prints the accuracy, also of words not seen in training, F1 of spans as conlleval counts it, the most frequent
    mistakes, and sentences per second from words to tags (without loading and reading, after a first call). Tags that
    training never saw count as errors.

    [bold]Example[/bold]

        longlag tag eval model/ test.tsv --report errors.html
    """
    with one_line_errors():
        from longlag import files
        from longlag.tagger.columns import parse
        from longlag.tagger.errors import analyse
        from longlag.tagger.model import Tagger
        from longlag.tagger.train import columns_of, load

        if report is not None and report.suffix != ".html":
            raise ValueError(f"tagger: report must end in .html, got {report}")
        tagger = Tagger.load(model)
        with watching() as watch:
            sentences = load(test, watch, tagger.vocabulary.tags, parse(columns or columns_of(model)))
        words = [s.words for s in sentences]
        tagger.predict(words[:64])  # compiled kernels are loaded at the first call
        begun = time.perf_counter()
        guessed = tagger.predict(words)
        seconds = time.perf_counter() - begun
        found = analyse(tagger, sentences, guessed)
        for line in found.lines():
            typer.echo(line)
        typer.echo(f"{len(words)} sentences in {seconds:.2f} s: {len(words) / seconds:,.0f} sentences per second")
        if report is not None:
            typer.echo(files.replace(report, found.html(f"{test.name} by {model.name}")))


@app.command()
def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="Sentences to tag; - for standard input.")] = "-",
    raw: Annotated[
        bool, typer.Option("--raw", help="Text, one sentence per line, instead of one word per line.")
    ] = False,
    marginals: Annotated[bool, typer.Option("--marginals", help="Add the probability that the tag is right.")] = False,
) -> None:
    """Tag sentences: word TAB tag on standard output, a blank line after each sentence.

    Input is one word per line with a blank line after each sentence (of several columns the first is read, of CoNLL-U
    FORM), or with --raw plain text with a sentence per line. Works in a pipe: sentences are written as they arrive, in
    their order, and memory does not grow.

    [bold]Example[/bold]

        longlag tag predict model/ words.txt > tagged.tsv
        echo "Can you book me a table?" | longlag tag predict model/ --raw --marginals -
    """
    with one_line_errors():
        from longlag.tagger.model import Tagger

        tagger = Tagger.load(model)
        with source(file) as stream:
            for some in texts(stream, file, raw):
                write(tagger, some, marginals)


def texts(stream: BinaryIO, name: str, raw: bool) -> Iterator[list[list[str]]]:
    """Sentences as they arrive."""
    from longlag.tagger.data import chunks, sentences
    from longlag.tagger.tokens import tokenize

    if raw:
        for lines in chunks(stream, name):
            yield [words for words in map(tokenize, lines) if words]
    else:
        for some in sentences(stream, name, tagged=False):
            yield [sentence.words for sentence in some]


def write(tagger: Tagger, some: list[list[str]], marginals: bool) -> None:
    """Tag some sentences and write them out at once."""
    lines = []
    if marginals:
        for words, tags in zip(some, tagger.predict(some, marginals=True)):
            lines += [f"{word}\t{tag}\t{p:.4f}" for word, (tag, p) in zip(words, tags)] + [""]
    else:
        for words, tags in zip(some, tagger.predict(some)):
            lines += [f"{word}\t{tag}" for word, tag in zip(words, tags)] + [""]
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
    sys.stdout.buffer.flush()


@contextmanager
def source(file: str) -> Iterator[BinaryIO]:
    """A file, or standard input."""
    if file == "-":
        yield sys.stdin.buffer
    elif not Path(file).is_file():
        raise ValueError(f"tagger: {file} must be a file, or - for standard input")
    else:
        with Path(file).open("rb") as stream:
            yield stream


@contextmanager
def watching() -> Iterator[Watch]:
    """A progress bar with the time left on a terminal; elsewhere a line per epoch."""
    from longlag.tagger.train import Lines

    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        class Bar(Lines):
            task = None

            def batch(self, epoch: int, epochs: int, done: int, batches: int) -> None:
                if self.task is None:
                    self.task = progress.add_task("training", total=epochs - epoch)
                    self.first = epoch
                progress.update(
                    self.task, completed=epoch - self.first + done / batches, description=f"epoch {epoch + 1}/{epochs}"
                )

        yield Bar()
