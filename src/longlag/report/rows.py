"""From records to the rows of a report: one per stage, reading and experiment, the paper's figures beside ours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.lab.paper import table
from longlag.lab.trials import Record
from longlag.report.statistics import bootstrap, fewer, wilson

Interval = tuple[float, float] | None
MISSING = {"RCC": "recurrent cascade-correlation", "CH": "the neural sequence chunker"}
TITLES = {
    1: "Table 1: embedded Reber grammar (experiment 1)",
    2: "Table 2: noise-free and noisy sequences (experiments 2a, 2b)",
    3: "Table 3: long lags among distractors (experiment 2c)",
    4: "Table 4: two-sequence problem (experiment 3a)",
    5: "Table 5: noise on the signal as well (experiment 3b)",
    6: "Table 6: noisy targets (experiment 3c)",
    7: "Table 7: adding (experiment 4)",
    8: "Table 8: multiplication (experiment 5)",
    9: "Table 9: temporal order (experiments 6a, 6b)",
}


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    table: int
    name: str
    method: str
    goal: str
    reading: str
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
    verdict: str
    reason: str
    sequences: tuple[int, ...] = ()  # of each successful trial


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
            figures.append((name, f"{np.mean(values):.3g}"))
    return tuple(figures)


def percent(successes: int, trials: int) -> str:
    """A rate in words."""
    return f"{successes} of {trials}"


def verdict(experiment: Experiment, stage: int, found: Sequence[int], trials: int) -> tuple[str, str]:
    """The verdict on a row and its reason.

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
        return "not reproduced", f"{percent(k, n)} trials succeed; in the paper none does.{few}"
    if k == 0:
        return "not reproduced", f"No trial of {n} met the criterion within {e.cap:,} sequences.{few}"
    mean = float(np.mean(found))
    assert after is not None
    factor = f"the mean of the successful trials is {mean / after:.2f} times the paper's"
    if e.success is not None:
        theirs = round(e.success / 100 * e.paper_trials)
        p = fewer(k, n, theirs, e.paper_trials)
        rates = f"{percent(k, n)} trials succeed, in the paper {percent(theirs, e.paper_trials)}"
        if p < 0.05:
            word = "partly" if k / n >= e.success / 200 else "not reproduced"
            return word, f"{rates} (p = {p:.2g}); {factor}.{few}"
    else:
        rates = f"{percent(k, n)} trials succeed, in the paper some"
    if mean > 2 * after:
        return "partly", f"{rates}, but {factor}.{few}"
    word = "faster" if mean < after / 2 else "reproduced"
    return word, f"{rates}; {factor}.{few}"


def row_of(experiment: Experiment, records: Sequence[Record], stage: int) -> Row:
    """One stage of an experiment."""
    e, found, figures = experiment, afters(records, stage), experiment.paper[stage]
    n, k = len(records), len(found)
    word, reason = verdict(e, stage, found, n)
    return Row(
        e.table, e.name, e.method, e.stop.goals[stage].name, e.reading, str(e.learner.weight_count), n, k,
        wilson(k, n) if n else None,
        float(np.mean(found)) if k else None, bootstrap(found, np.mean),
        float(np.median(found)) if k else None, bootstrap(found, np.median),
        test_figures(records, stage, [name for name, _ in figures.test]),
        "some" if e.success is None else f"{e.success:g} %",
        f"{figures.after:,}" if figures.after is not None else "none",
        e.weights, figures.test, word, reason, tuple(found),
    )  # fmt: skip


def missing_rows() -> list[Row]:
    """Rows of the paper that longlag has no learner for."""
    rows = []
    for number in (1, 2):
        for line in table(number):
            if line["method"] in MISSING:
                name = f"{number if number == 1 else line['task']} {line['method']}"
                reason = (
                    f"longlag has no {MISSING[line['method']].removeprefix('the ')}; the paper's figure stands alone."
                )
                rows.append(Row(
                    number, name, line["method"], "", "text", "–", 0, 0, None, None, None, None, None, (),
                    f"{line['success_percent']} %", f"{int(line['after']):,}", line["weights"], (), "not run", reason,
                ))  # fmt: skip
    return rows


def rows_of(results: Sequence[tuple[Experiment, Sequence[Record]]]) -> list[Row]:
    """All rows, in the order of the paper's tables."""
    rows = [row_of(e, records, stage) for e, records in results for stage in range(len(e.paper))]
    return sorted([*rows, *missing_rows()], key=lambda row: row.table)
