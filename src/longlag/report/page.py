"""The report: one self-contained page, the same as Markdown, and the rows as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from longlag import files
from longlag.lab.experiment import Experiment, Memory
from longlag.lab.profiles import FIRST_SEED
from longlag.lab.store import Store, StoreError
from longlag.lab.trials import Record
from longlag.report import svg
from longlag.report.rows import TITLES, Row, rows_of

Results = Sequence[tuple[Experiment, Sequence[Record]]]
WORDS = ("reproduced", "faster", "partly", "not reproduced", "not run")
SYMBOLS = {"1": "BEPSTVX", "6a": "abcdEBXY", "6b": "abcdEBXY"}


def number(value: float | None) -> str:
    """Sequences, in full; a dash for nothing."""
    return "–" if value is None else f"{value:,.0f}"


def interval(pair: tuple[float, float] | None) -> str:
    """Two ends, in full."""
    return "" if pair is None else f"{pair[0]:,.0f}–{pair[1]:,.0f}"


def rate(row: Row) -> str:
    """Success rate with its interval, in percent."""
    if row.rate is None:
        return "–"
    return f"{row.successes}/{row.trials} = {row.successes / row.trials:.0%} ({row.rate[0]:.0%}–{row.rate[1]:.0%})"


def figures(pairs: Sequence[tuple[str, str]]) -> str:
    """Test figures in words."""
    return ", ".join(f"{name} {value}" for name, value in pairs) or "–"


def counts(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """How often each verdict occurs."""
    return [(word, sum(row.verdict == word for row in rows)) for word in WORDS]


def learning_curves(results: Results) -> dict[str, str]:
    """Experiment name -> picture."""
    pictures = {}
    for name in dict.fromkeys(e.name for e, records in results if records):
        same = [(e, records) for e, records in results if e.name == name and records]
        groups = {e.reading: [record.curve for record in records] for e, records in same}
        pictures[name] = svg.curves(groups, same[0][0].paper[-1].after, f"Learning curves of experiment {name}")
    return pictures


def spreads(rows: Sequence[Row]) -> dict[int, str]:
    """Table -> picture of all trials' sequences until success."""
    pictures = {}
    for table in TITLES:
        lines = [
            (f"{row.name} {row.goal} {row.reading}".replace("  ", " "), row.reading, row.sequences,
             float(row.paper_after.replace(",", "")) if row.paper_after != "none" else None)
            for row in rows if row.table == table and row.sequences
        ]  # fmt: skip
        if lines:
            pictures[table] = svg.spread(lines, f"Sequences until success, table {table}")
    return pictures


def panels_of(experiment: Experiment, example: dict[str, Any]) -> str:
    """Inputs, gates, states and outputs over time."""
    inputs = example["inputs"]
    shown = inputs if isinstance(inputs[0], list) else [inputs]
    parts = [("input" if isinstance(inputs[0], list) else "symbol", shown)]
    names = (("ig", "input gates"), ("og", "output gates"), ("s", "states s"), ("cell", "cell outputs"))
    gated = isinstance(experiment.learner, Memory) and experiment.learner.network.output_gates
    parts += [(title, example[key]) for key, title in names if key != "og" or gated]
    parts += [("outputs", example["outputs"])] if example["outputs"] else []
    return svg.panels(parts, f"Gates and cells of experiment {experiment.name} on one sequence")


def examples(results: Results) -> list[dict[str, str]]:
    """One solved sequence per experiment number: the reading "fit" if it has one, the lowest seed."""
    found: dict[str, dict[str, str]] = {}
    for experiment, records in sorted(results, key=lambda result: result[0].reading):  # fit before text
        solved = next((record for record in records if record.example), None)
        if solved is None or experiment.number in found:
            continue
        example = solved.example
        assert example is not None
        found[experiment.number] = {
            "title": f"{experiment.name}, {experiment.reading}, seed {solved.seed}",
            "target": ", ".join(f"{v:g}" for v in example["target"]) if len(example["target"]) <= 8 else "",
            "output": ", ".join(f"{v:g}" for v in example["output"]) if len(example["output"]) <= 8 else "",
            "symbols": SYMBOLS.get(experiment.number, ""),
            "svg": panels_of(experiment, example),
        }
    return [found[key] for key in sorted(found)]


def deviations(results: Results) -> list[tuple[str, str, str]]:
    """(experiment, how the fit differs from the text, our choices), each text once."""
    texts: dict[tuple[str, str], list[str]] = {}
    for e, _ in results:
        names = texts.setdefault((e.departs, e.note), [])
        names.append(f"{e.name} ({e.reading})")
    return [(", ".join(names), departs, note) for (departs, note), names in texts.items()]


def together(trials: int, seed: int, seconds: float) -> str:
    """What all of it took."""
    return f"{trials:,} trials, seeds from {seed} on, {seconds / 60:,.0f} minutes of processor time together."


def html(rows: Sequence[Row], results: Results, runs: Sequence[dict[str, Any]], took: str) -> str:
    """The whole page."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "interval": interval, "rate": rate, "figures": figures}
    template = environment.from_string(
        resources.files("longlag.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    tables = [(k, title, [row for row in rows if row.table == k]) for k, title in TITLES.items()]
    return template.render(
        tables=[table for table in tables if table[2]], counts=counts(rows), runs=runs, curves=learning_curves(results),
        spreads=spreads(rows), examples=examples(results), deviations=deviations(results), rows=rows,
        trials=sum(len(records) for _, records in results), took=took, by_table=names_by_table(results),
    )  # fmt: skip


def names_by_table(results: Results) -> dict[int, list[str]]:
    """Table -> experiments with curves."""
    names: dict[int, list[str]] = {}
    for e, records in results:
        if records and e.name not in names.setdefault(e.table, []):
            names[e.table].append(e.name)
    return names


def markdown(rows: Sequence[Row], runs: Sequence[dict[str, Any]], took: str) -> str:
    """The tables and verdicts in Markdown."""
    lines = ["# The 1997 experiments, run again", ""]
    lines += [", ".join(f"{count} {word}" for word, count in counts(rows) if count) + f". {took}", ""]
    for run in runs:
        lines += [f"- `{run['command']}`: {run['trials']} trials in {run['seconds']:,.0f} s, {run['jobs']} processes, "
                  f"{run['processor']}, longlag {run['longlag']}, Python {run['python']}, NumPy {run['numpy']}, "
                  f"Numba {run['numba']}"]  # fmt: skip
    heads = ("row", "reading", "success", "mean (95 %)", "median", "test", "paper", "verdict", "reason")
    for table, title in TITLES.items():
        chosen = [row for row in rows if row.table == table]
        if chosen:
            lines += ["", f"## {title}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
            lines += ["| " + " | ".join(cells(row)) + " |" for row in chosen]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the Markdown table."""
    paper = f"{row.paper_success}, {row.paper_after}" + (f", {figures(row.paper_test)}" if row.paper_test else "")
    mean = f"{number(row.mean)} ({interval(row.mean_interval)})" if row.mean_interval else number(row.mean)
    name = f"{row.name} {row.goal}".strip()
    return name, row.reading, rate(row), mean, number(row.median), figures(row.test), paper, row.verdict, row.reason


def comma_separated(rows: Sequence[Row]) -> str:
    """All rows, all fields."""
    text = io.StringIO()
    names = [field.name for field in fields(Row)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow([json.dumps(v) if isinstance(v, tuple) else "" if v is None else v for v in values])
    return text.getvalue()


def results_of(
    folder: str | Path, experiments: Sequence[Experiment], seed: int
) -> tuple[Results, list[dict[str, Any]], float]:
    """The records of a folder, from a seed on, how they were made, and the processor's seconds of all."""
    with Store(folder) as store:
        if store.aside:
            raise StoreError(f"report: {store.path.name} could not be read; it is kept as {store.aside.name}")
        results = [(e, [r for r in store.records(e) if r.seed >= seed]) for e in experiments]
        return results, store.runs(), sum(store.seconds(e, seed) for e in experiments)


def rows(folder: str | Path, experiments: Sequence[Experiment], seed: int = FIRST_SEED) -> list[Row]:
    """The rows of the report."""
    return rows_of(results_of(folder, experiments, seed)[0])


def write(folder: str | Path, experiments: Sequence[Experiment], seed: int = FIRST_SEED) -> list[Path]:
    """Make report.html, report.md and report.csv from the store in a folder; rows without trials say so.

    seed: only trials from this seed on are reported; lower ones were for choosing settings.
    """
    results, runs, seconds = results_of(folder, experiments, seed)
    lines, took = rows_of(results), together(sum(len(records) for _, records in results), seed, seconds)
    texts = {"html": html(lines, results, runs, took), "md": markdown(lines, runs, took), "csv": comma_separated(lines)}
    return [files.replace(Path(folder) / f"report.{kind}", text) for kind, text in texts.items()]
