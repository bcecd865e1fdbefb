"""The report as Markdown and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields

from longlag.lab.cell_rows import ADAM, BATCH, KEPT
from longlag.lab.modern import CAP
from longlag.lab.profiles import FIRST_SEED
from longlag.report.collect import Collection
from longlag.report.distributions import QUANTILES, distributions_of
from longlag.report.today import heads, today
from longlag.report.verdicts import GOOD, PaperRow, Row
from longlag.report.words import BEYOND, TITLES

TODAY = (
    f"Each cell has the number of units whose weights come nearest to those of the paper's net, and at most {CAP:,} "
    "training sequences; successes of trials, and their mean. Rule of 1997: online, errors go back through what a unit "
    "keeps by itself, learning rate and initial range of the paper's net. BPTT + Adam: whole gradient, batches of "
    f"{BATCH}, Adam at {ADAM:g}, weights from ±1/√H, and the gate that keeps the state starts at {KEPT:g} (LSTM, GRU, "
    "sLSTM). Nothing was tuned. The first line shows the paper's LSTM in the reading of the tables."
)
METHODS = (
    "A trial is a pure function of an experiment and a seed: weights, training data, tests and the final test each "
    "have a random stream of their own. It ends at the very sequence that meets the paper's criterion, or at its cap, "
    "which counts as a failure.",
    f"Readings were chosen on seeds below {FIRST_SEED}. Each row is reported on seeds from {FIRST_SEED} on; where the "
    "store has fewer trials there than the paper ran, the row shows the trials of seeds from 2000 on that an earlier "
    "report showed, and says so. The text's reading is always reported beside the one that fits better. A reading "
    "chosen after seeing results is weaker evidence than the text; each row says how many variants were looked at.",
    "Success rates carry Wilson's 95 % interval, means and medians a bootstrap one over the successful trials. A "
    "failed trial does not enter a mean, so a mean with failures beside it is too small.",
    "Every trial is stored with the settings that made it, the seed and a fingerprint of the code; trials of different "
    "code are never mixed within a row. The digest below covers all records reported.",
)


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


def freshness(rows: Sequence[PaperRow]) -> str:
    """How many rows use seeds that were not used to choose settings, in one sentence."""
    run = [row for row in rows if row.outcome != "not run"]
    fresh = [row for row in run if shown(row).fresh]
    old = f"; the other {len(run) - len(fresh)} show trials of earlier seeds" if len(fresh) < len(run) else ""
    return f"{len(fresh)} of these rows stand on seeds from {FIRST_SEED} on, which nobody had looked at before{old}."


def shown(row: PaperRow) -> Row:
    """The reading by which a row of the paper comes out or, if none does, the one with most successes."""
    return max(row.rows, key=lambda r: (r.verdict in GOOD, r.successes / r.trials if r.trials else -1.0))


def open_rows(rows: Sequence[PaperRow]) -> list[tuple[int, str, str]]:
    """(table, name, best figures) of the rows that do not come out."""
    found = []
    for row in rows:
        if row.outcome in ("partly", "does not"):
            best = shown(row)
            mean = "" if best.mean is None else f" after {best.mean:,.0f}"
            figures = f"{best.successes} of {best.trials}{mean}; paper {best.paper_success}, {best.paper_after}"
            found.append((row.table, f"{row.name} {row.goal}".strip(), figures))
    return found


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
    lines.append(f"SHA-256 of the {collection.trials:,} records reported: {collection.digest}.")
    return lines


def anchor(table: int) -> str:
    """The heading's address within the page."""
    return f"table-{table}" if table != BEYOND else "beyond"


def markdown(rows: Sequence[Row], paper: Sequence[PaperRow], collection: Collection) -> str:
    """The tables and verdicts in Markdown."""
    lines = ["# The 1997 experiments, run again", "", f"{headline(paper)} {freshness(paper)} {collection.took}", ""]
    if missing := open_rows(paper):
        lines += ["Rows that do not come out:", ""]
        lines += [f"- [table {table}](#{anchor(table)}): {name} ({figures})" for table, name, figures in missing]
        lines += [""]
    tables = [(k, name, [row for row in rows if row.table == k]) for k, name in TITLES.items()]
    for k, name, chosen in tables:
        if chosen:
            lines.append(f"- [{name}](#{anchor(k)}): {confirmed(rows) if k == BEYOND else outcome(paper, k)}")
    lines += ["- [How the numbers were made](#made)"]
    found, now = distributions_of(collection.results), today(collection.results)
    for k, name, chosen in tables:
        if chosen:
            names = ("row", "experiment", "reading", "weights", "seeds", "success", "mean (95 %)", "median", "test")
            names += ("claim",) if k == BEYOND else ("paper",)
            names += ("verdict", "reason")
            lines += ["", f'<a id="{anchor(k)}"></a>', "", f"## {name}", "", "| " + " | ".join(names) + " |"]
            lines += ["|---" * len(names) + "|", *("| " + " | ".join(cells(row)) + " |" for row in chosen)]
    if found:
        lines += ["", "## Distributions of sequences until success", ""]
        lines += [
            "| row | trials | " + " | ".join(f"{q} %" for q in QUANTILES) + " | |",
            "|---" * (len(QUANTILES) + 3) + "|",
        ]
        for each in found:
            quantiles = " | ".join(number(value) for value in each.quantiles)
            lines.append(f"| {each.experiment.label} | {each.trials:,} | {quantiles} | {each.words} |")
    if now:
        lines += ["", "## What thirty years changed", "", TODAY, ""]
        lines += [f"| cell | learns by | {' | '.join(heads())} |", "|---" * (len(heads()) + 2) + "|"]
        lines += [f"| {line.cell} | {line.rule} | {' | '.join(line.cells)} |" for line in now]
    lines += ["", "## Methods", "", *(f"- {sentence}" for sentence in METHODS)]
    lines += ["", '<a id="made"></a>', "", "## How the numbers were made", ""]
    return "\n".join(lines + [f"- {line}" for line in made(collection)]) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the Markdown table."""
    paper = f"{row.paper_success}, {row.paper_after}" + (f", {figures(row.paper_test)}" if row.paper_test else "")
    mean = f"{number(row.mean)} ({interval(row.mean_interval)})" if row.mean_interval else number(row.mean)
    name = f"{row.name} {row.goal}".strip()
    weights = f"{row.weights} (paper {row.paper_weights})" if row.paper_weights else row.weights
    figure = (
        weights,
        row.seeds.removeprefix("seeds "),
        rate(row),
        mean,
        number(row.median),
        figures(row.test),
        row.claim or paper,
    )
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
