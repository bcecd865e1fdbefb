"""The report: one self-contained page, the same as Markdown, and the rows as CSV."""

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from longlag import files
from longlag.lab.experiment import Experiment
from longlag.lab.profiles import FIRST_SEED
from longlag.report import text
from longlag.report.collect import Collection, collect
from longlag.report.pictures import examples, learning_curves, learns, spreads
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
        if e.name not in names.setdefault(e.table or BEYOND, []):
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
    outcomes = {k: text.confirmed(rows) if k == BEYOND else text.outcome(paper, k) for k in TITLES}
    tally = Counter(row.outcome for row in paper)
    return template.render(
        tables=[table for table in tables if table[2]], outcomes=outcomes, beyond=BEYOND,
        tally=[(word, tally[word]) for word in OUTCOMES if tally[word]], plural=OUTCOMES, headline=text.headline(paper),
        curves=learning_curves(collection.results), spreads=spreads(rows), examples=examples(collection.results),
        deviations=deviations(collection.results), collection=collection, provenance=text.provenance(collection),
        by_table=names_by_table(collection.results),
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


def write(
    folder: str | Path, experiments: Sequence[Experiment], seed: int = FIRST_SEED, code: str | None = None
) -> list[Path]:
    """Make report.html, report.md and report.csv from the store in a folder; rows without trials say so.

    seed: only trials from this seed on are reported; lower ones were for choosing settings. code: fingerprint of the
    code whose trials are preferred, by default this code; an experiment it did not run shows trials of other code.
    """
    collection = collect(folder, experiments, seed, code)
    lines = rows_of(collection.results)
    paper = paper_rows(lines)
    texts = {
        "html": html(lines, paper, collection),
        "md": text.markdown(lines, paper, collection),
        "csv": text.comma_separated(lines),
    }
    return [files.replace(Path(folder) / f"report.{kind}", content) for kind, content in texts.items()]
