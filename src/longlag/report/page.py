"""The report: one self-contained page, the same as Markdown, the rows as CSV, and everything as JSON."""

import lzma
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from longlag import files
from longlag.lab.experiment import Experiment
from longlag.lab.profiles import FIRST_SEED
from longlag.lab.sqlite import FILE
from longlag.report import text
from longlag.report.collect import Collection, collect
from longlag.report.distributions import QUANTILES, distributions_of
from longlag.report.export import json_text
from longlag.report.pictures import examples, histograms, learning_curves, learns, spreads
from longlag.report.today import heads, is_today, today
from longlag.report.verdicts import PaperRow, Result, Row, paper_rows, rows_of
from longlag.report.words import BEYOND, TITLES

OUTCOMES = {"comes out": "come out", "partly": "partly", "does not": "do not", "not run": "not run"}  # and plural


def deviations(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """(experiments, how the fit differs from the text, our choices), each text once."""
    texts: dict[tuple[str, str], list[str]] = {}
    for e in (result.experiment for result in results):
        names = texts.setdefault((e.departs, e.note), [])
        names.append(f"{e.name} ({e.reading})")
    return [(", ".join(names), departs, note) for (departs, note), names in texts.items()]


def names_by_table(results: Sequence[Result]) -> dict[int, list[str]]:
    """Table -> experiments with learning curves."""
    names: dict[int, list[str]] = {}
    for e in (result.experiment for result in results if result.records and learns(result)):
        if not is_today(e) and e.name not in names.setdefault(e.table or BEYOND, []):
            names[e.table or BEYOND].append(e.name)
    return names


def html(rows: Sequence[Row], paper: Sequence[PaperRow], collection: Collection) -> str:
    """The whole page."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    names = ("number", "interval", "share", "share_interval", "figures", "anchor")
    environment.filters |= {"kind": kind, **{name: getattr(text, name) for name in names}}
    template = environment.from_string(
        resources.files("longlag.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    tables = [(k, name, [row for row in rows if row.table == k]) for k, name in TITLES.items()]
    found = distributions_of(collection.results)
    own = [result for result in collection.results if not is_today(result.experiment)]
    outcomes = {k: text.confirmed(rows) if k == BEYOND else text.outcome(paper, k) for k in TITLES}
    tally = Counter(row.outcome for row in paper)
    return template.render(
        tables=[table for table in tables if table[2]], outcomes=outcomes, beyond=BEYOND,
        tally=[(word, tally[word]) for word in OUTCOMES if tally[word]], plural=OUTCOMES, headline=text.headline(paper),
        curves=learning_curves(own), spreads=spreads(rows), examples=examples(own),
        deviations=deviations(own), collection=collection, provenance=text.provenance(collection),
        by_table=names_by_table(own), freshness=text.freshness(paper), open_rows=text.open_rows(paper),
        distributions=list(zip(found, histograms(found))), quantiles=QUANTILES,
        today=today(collection.results), heads=heads(), today_note=text.TODAY, methods=text.METHODS,
    )  # fmt: skip


def kind(verdict: str) -> str:
    """The style class of a verdict or an outcome."""
    good = ("reproduced", "faster", "comes out", "confirmed")
    middling, none = ("partly", "undecided"), ("not run", "measured")
    kinds = {"good": good, "middling": middling, "none": none}
    return next((name for name, words in kinds.items() if verdict in words), "bad")


def rows(folder: str | Path, experiments: Sequence[Experiment], seed: int = FIRST_SEED) -> list[Row]:
    """The rows of the report."""
    return rows_of(collect(folder, experiments, seed).results)


@contextmanager
def results_in(folder: Path) -> Iterator[Path]:
    """The folder, or one for the time being with its results.sqlite.xz unpacked."""
    packed = folder / "results.sqlite.xz"
    if (folder / FILE).exists():
        yield folder
    elif packed.exists():
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / FILE).write_bytes(lzma.decompress(packed.read_bytes()))
            yield Path(place)
    else:
        raise ValueError(f"report: out must be a folder with results, got {folder}; run longlag reproduce first")


def write(
    folder: str | Path,
    experiments: Sequence[Experiment],
    seed: int = FIRST_SEED,
    code: str | None = None,
    into: str | Path | None = None,
) -> list[Path]:
    """Make report.html, .md, .csv and .json from the store in a folder, there or `into` another.

    Rows without trials say so.

    seed: only trials from this seed on are reported; lower ones were for choosing settings. code: fingerprint of the
    code whose trials are preferred, by default this code; an experiment it did not run shows trials of other code.
    """
    collection = collect(folder, experiments, seed, code)
    everything = rows_of(collection.results)
    today_too = {result.experiment.name for result in collection.results if is_today(result.experiment)}
    lines = [row for row in everything if row.name not in today_too]  # these have a table of their own
    paper = paper_rows(lines)
    texts = {
        "html": html(lines, paper, collection),
        "md": text.markdown(lines, paper, collection),
        "csv": text.comma_separated(everything),
        "json": json_text(everything, paper, collection),
    }
    return [files.replace(Path(into or folder) / f"report.{kind}", content) for kind, content in texts.items()]
