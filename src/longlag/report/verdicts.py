"""From records to the rows of a report: one per stage, reading and experiment, the paper's figures beside ours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.lab.paper import table
from longlag.lab.profiles import FIRST_SEED
from longlag.lab.trials import Record
from longlag.report.claims import judged
from longlag.report.statistics import bootstrap, fewer, wilson
from longlag.report.words import BEYOND, CHOSEN, METHODS, reading_of, title

Interval = tuple[float, float] | None
MISSING = ("RCC", "CH")
GOOD = ("reproduced", "faster")


@dataclass(frozen=True)
class Result:
    """The reported trials of an experiment, all made by the same code; `compared`: those its claim speaks of."""

    experiment: Experiment
    records: Sequence[Record]
    code: str = ""
    compared: Sequence[Record] = ()


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    table: int  # 0: beyond the tables
    paper_row: str  # rows of the report with the same table, paper_row and goal belong to one row of the paper
    name: str
    title: str
    method: str
    goal: str
    reading: str
    reading_in_words: str
    weights: str
    trials: int
    successes: int
    rate: Interval  # 95 % interval of the success rate
    mean: float | None  # sequences until success, over the successful trials
    mean_interval: Interval
    median: float | None
    median_interval: Interval
    test: tuple[tuple[str, str], ...]
    paper_success: str
    paper_after: str
    paper_weights: str
    paper_test: tuple[tuple[str, str], ...]
    claim: str
    verdict: str
    reason: str
    code: str = ""  # fingerprint of the code that made the trials
    sequences: tuple[int, ...] = ()  # of each successful trial
    seeds: str = ""
    fresh: bool = False  # are all seeds from FIRST_SEED on?
    departs: str = ""  # how the reading differs from the text
    chosen: str = ""  # how and on which seeds the reading was chosen
    command: str = ""  # that runs these trials again


def seeds_of(records: Sequence[Record]) -> str:
    """The seeds of some trials, as ranges.

    >>> seeds_of([])
    'no seeds'
    """
    found = sorted({record.seed for record in records})
    starts = [seed for seed in found if seed - 1 not in found]
    ends = [seed for seed in found if seed + 1 not in found]
    ranges = [f"{a} to {b}" if a != b else f"{a}" for a, b in zip(starts, ends)]
    return "seeds " + ", ".join(ranges) if ranges else "no seeds"


def afters(records: Iterable[Record], stage: int) -> list[int]:
    """Sequences until a stage, of the trials that reached it."""
    return [record.reached[stage].sequences for record in records if len(record.reached) > stage]


def test_figures(records: Sequence[Record], stage: int, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Means over the trials that reached a stage, of the figures that the paper prints."""
    tests = [record.reached[stage].test for record in records if len(record.reached) > stage]
    figures = []
    for name in names if tests else ():
        values = [test[name] for test in tests]
        if name == "wrong":
            figures.append((name, f"{np.mean(values):.1f} of {tests[0]['of']:.0f} (most {max(values):.0f})"))
        else:
            mean = float(np.mean(values))
            figures.append((name, f"{mean:,.0f}" if mean >= 1000 else f"{mean:.3g}"))
    return tuple(figures)


def verdict(experiment: Experiment, stage: int, found: Sequence[int], trials: int) -> tuple[str, str]:
    """The verdict on a row of a table and its reason.

    Reproduced: success rate not significantly below the paper's (Fisher's exact test, 5 %), mean within a factor of 2.
    Faster: the same, with a mean below half. Partly: at least half of the paper's success rate, or a mean above twice.
    """
    e, n, k, after = experiment, trials, len(found), experiment.paper[stage].after
    few = " Few trials." if n < 5 else ""
    if n == 0:
        return "not run", "No trial in this store."
    if e.success == 0:
        if k == 0:
            return "reproduced", f"No trial of {n} succeeds within {e.cap:,} sequences; the paper has none either.{few}"
        return "not reproduced", f"{k} of {n} trials succeed; in the paper none does.{few}"
    if k == 0:
        return "not reproduced", f"No trial of {n} met the criterion within {e.cap:,} sequences.{few}"
    mean = float(np.mean(found))
    assert after is not None
    factor = f"the mean of the successful trials is {mean / after:.2f} times the paper's"
    if e.success is not None:
        theirs = round(e.success / 100 * e.paper_trials)
        p = fewer(k, n, theirs, e.paper_trials)
        rates = f"{k} of {n} trials succeed, in the paper {theirs} of {e.paper_trials}"
        if p < 0.05:
            word = "partly" if k / n >= e.success / 200 else "not reproduced"
            return word, f"{rates} (p = {p:.2g}); {factor}.{few}"
    else:
        rates = f"{k} of {n} trials succeed, in the paper some"
    if mean > 2 * after:
        return "partly", f"{rates}, but {factor}.{few}"
    word = "faster" if mean < after / 2 else "reproduced"
    return word, f"{rates}; {factor}.{few}"


def command(experiment: Experiment, records: Sequence[Record]) -> str:
    """What runs the trials of a row again; "" for none."""
    if not records:
        return ""
    first = min(record.seed for record in records)
    profile = "" if experiment.table else " --profile all"
    return f"longlag reproduce -e '{experiment.label}'{profile} --seed {first} --trials {len(records)}"


def row_of(result: Result, stage: int) -> Row:
    """One stage of an experiment."""
    e, records = result.experiment, result.records
    found, figures, goal = afters(records, stage), e.paper[stage], e.stop.goals[stage].name
    n, k = len(records), len(found)
    if e.claim is None:
        word, reason = verdict(e, stage, found, n)
        success = "some" if e.success is None else f"{e.success:g} %"
        after = f"{figures.after:,}" if figures.after is not None else "none"
    else:
        word, reason = judged(e, stage, records, result.compared)
        success = after = ""
    return Row(
        e.table or BEYOND, e.row or e.name, e.name, title(e.number, e.name, goal), e.method, goal, e.reading,
        reading_of(e), str(e.learner.weight_count), n, k,
        wilson(k, n) if n else None,
        float(np.mean(found)) if k else None, bootstrap(found, np.mean),
        float(np.median(found)) if k else None, bootstrap(found, np.median),
        test_figures(records, stage, [name for name, _ in figures.test]),
        success, after, e.weights, figures.test if e.claim is None else (),
        f"{e.claim.where}: {e.claim.says}".removeprefix(": ") if e.claim else "",
        word, reason, result.code, tuple(found), seeds_of(records),
        bool(records) and min(r.seed for r in records) >= FIRST_SEED, e.departs,
        CHOSEN.get(f"{e.number}/{e.reading}", "") if e.table else "", command(e, records),
    )  # fmt: skip


def missing_rows() -> list[Row]:
    """Rows of the paper that longlag has no learner for."""
    rows = []
    for number in (1, 2):
        for line in table(number):
            if (method := line["method"]) in MISSING:
                name = f"{number if number == 1 else line['task']} {method}"
                reason = f"longlag has no {METHODS[method].removeprefix('the ')}; the paper's figure stands alone."
                rows.append(Row(
                    number, name, name, METHODS[method], method, "", "text", "as the text says", "–", 0, 0, None, None,
                    None, None, None, (), f"{line['success_percent']} %", f"{int(line['after']):,}", line["weights"],
                    (), "", "not run", reason,
                ))  # fmt: skip
    return rows


def rows_of(results: Sequence[Result]) -> list[Row]:
    """All rows, in the order of the paper's tables; those beyond the tables come last."""
    rows = [row_of(result, stage) for result in results for stage in range(len(result.experiment.paper))]
    return sorted([*rows, *missing_rows()], key=lambda row: row.table or 99)


@dataclass(frozen=True)
class PaperRow:
    """One row of the paper with its outcome: "comes out", "partly", "does not", "not run"."""

    table: int
    name: str
    goal: str
    outcome: str
    rows: tuple[Row, ...]


def paper_rows(rows: Sequence[Row]) -> list[PaperRow]:
    """The rows of the paper's tables.

    A row comes out if one of its readings does: success not significantly below the paper's, and a mean of at most
    twice the paper's. Where a row covers several learning rates, all of them must come out.
    """
    groups: dict[tuple[int, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row.table != BEYOND:
            groups.setdefault((row.table, row.paper_row, row.goal), {}).setdefault(row.reading, []).append(row)
    found = []
    for (number, name, goal), readings in groups.items():
        verdicts = [[row.verdict for row in reading] for reading in readings.values()]
        if any(all(word in GOOD for word in words) for words in verdicts):
            outcome = "comes out"
        elif all(word == "not run" for words in verdicts for word in words):
            outcome = "not run"
        else:
            partly = any(word in (*GOOD, "partly") for words in verdicts for word in words)
            outcome = "partly" if partly else "does not"
        found.append(PaperRow(number, name, goal, outcome, tuple(row for rows in readings.values() for row in rows)))
    return found
