"""The report as Markdown and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields

from longlag.report.collect import Collection
from longlag.report.verdicts import PaperRow, Row
from longlag.report.words import BEYOND, TITLES


def number(value: float | None) -> str:
    """Sequences, in full; a dash for nothing."""
    return "–" if value is None else f"{value:,.0f}"


def interval(pair: tuple[float, float] | None) -> str:
    """Two ends, in full."""
    return "" if pair is None else f"{pair[0]:,.0f}–{pair[1]:,.0f}"


def share(row: Row) -> str:
    """Successes of all trials."""
    return f"{row.successes}/{row.trials} = {row.successes / row.trials:.0%}" if row.trials else "–"


def share_interval(row: Row) -> str:
    """The interval of the success rate, in percent."""
    return "" if row.rate is None else f"{row.rate[0]:.0%}–{row.rate[1]:.0%}"


def rate(row: Row) -> str:
    """Success rate with its interval, in percent."""
    return share(row) if row.rate is None else f"{share(row)} ({share_interval(row)})"


def figures(pairs: Sequence[tuple[str, str]]) -> str:
    """Test figures in words."""
    return ", ".join(f"{name} {value}" for name, value in pairs) or "–"


def headline(rows: Sequence[PaperRow]) -> str:
    """How many rows of the paper come out, in one sentence."""
    run = [row for row in rows if row.outcome != "not run"]
    good = sum(row.outcome == "comes out" for row in run)
    missing = len(rows) - len(run)
    rest = f" {missing} {'row was' if missing == 1 else 'rows were'} not run." if missing else ""
    return f"{good} of the {len(run)} rows of the paper's tables that were run come out.{rest}"


def outcome(rows: Sequence[PaperRow], table: int) -> str:
    """How many rows of one table come out, in few words."""
    run = [row for row in rows if row.table == table and row.outcome != "not run"]
    good = sum(row.outcome == "comes out" for row in run)
    return f"{good} of {len(run)} rows come out" if run else "not run"


def confirmed(rows: Sequence[Row]) -> str:
    """How many claims beyond the tables are confirmed, in few words."""
    run = [row for row in rows if row.table == BEYOND and row.verdict not in ("not run", "measured")]
    good = sum(row.verdict == "confirmed" for row in run)
    return f"{good} of {len(run)} claims confirmed" if run else "not run"


def made(collection: Collection) -> list[str]:
    """How the numbers were made, a sentence per run."""
    lines = [
        f"`{run['command']}`: {run['trials']} trials in {run['seconds']:,.0f} s, {run['jobs']} processes, "
        f"{run['processor']}, longlag {run['longlag']}, Python {run['python']}, NumPy {run['numpy']}, "
        f"Numba {run['numba']}"
        for run in collection.runs
    ]
    return lines + provenance(collection)


def provenance(collection: Collection) -> list[str]:
    """Which trials no run accounts for, and which code made the trials."""
    lines = []
    if collection.unnoted:
        lost = "longlag 0.1 noted a run only at its end, so runs that were killed left their trials but no command"
        lines.append(f"{collection.unnoted} more trials come from runs whose command is not known: {lost}.")
    lines += [
        f"{trials:,} of the trials reported were made by code {code}." for code, trials in collection.codes.items()
    ]
    return lines


def anchor(table: int) -> str:
    """The heading's address within the page."""
    return f"table-{table}" if table != BEYOND else "beyond"


def markdown(rows: Sequence[Row], paper: Sequence[PaperRow], collection: Collection) -> str:
    """The tables and verdicts in Markdown."""
    lines = ["# The 1997 experiments, run again", "", f"{headline(paper)} {collection.took}", ""]
    tables = [(k, name, [row for row in rows if row.table == k]) for k, name in TITLES.items()]
    for k, name, chosen in tables:
        if chosen:
            lines.append(f"- [{name}](#{anchor(k)}): {confirmed(rows) if k == BEYOND else outcome(paper, k)}")
    lines += ["- [How the numbers were made](#made)"]
    for k, name, chosen in tables:
        if chosen:
            heads = ("row", "experiment", "reading", "success", "mean (95 %)", "median", "test")
            heads += ("claim",) if k == BEYOND else ("paper",)
            heads += ("verdict", "reason")
            lines += ["", f'<a id="{anchor(k)}"></a>', "", f"## {name}", "", "| " + " | ".join(heads) + " |"]
            lines += ["|---" * len(heads) + "|", *("| " + " | ".join(cells(row)) + " |" for row in chosen)]
    lines += ["", '<a id="made"></a>', "", "## How the numbers were made", ""]
    return "\n".join(lines + [f"- {line}" for line in made(collection)]) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the Markdown table."""
    paper = f"{row.paper_success}, {row.paper_after}" + (f", {figures(row.paper_test)}" if row.paper_test else "")
    mean = f"{number(row.mean)} ({interval(row.mean_interval)})" if row.mean_interval else number(row.mean)
    name = f"{row.name} {row.goal}".strip()
    figure = (rate(row), mean, number(row.median), figures(row.test), row.claim or paper)
    return name, row.title, row.reading, *figure, row.verdict, row.reason


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
