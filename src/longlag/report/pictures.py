"""The pictures of a report: learning curves, spreads of all trials, and one solved sequence per experiment."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longlag.lab.experiment import Experiment
from longlag.lab.learners import GuessingLearner, LSTM97Learner
from longlag.report import svg
from longlag.report.distributions import Distribution
from longlag.report.verdicts import Result, Row
from longlag.report.words import BEYOND, TITLES, title

LINES, DOTS = 30, 100  # trials shown in a picture, the first of them; the figures count all
SYMBOLS = {"1": "BEPSTVX", "6a": "abcdEBXY", "6b": "abcdEBXY"}


def learns(result: Result) -> bool:
    """Does the learner learn from its errors? Guessing does not."""
    return not isinstance(result.experiment.learner, GuessingLearner)


def learning_curves(results: Sequence[Result]) -> dict[str, str]:
    """Experiment name -> picture, of those that learn."""
    pictures = {}
    for name in dict.fromkeys(r.experiment.name for r in results if r.records and learns(r)):
        same = [r for r in results if r.experiment.name == name and r.records]
        groups = {r.experiment.reading: [record.curve for record in r.records[:LINES]] for r in same}
        mean = same[0].experiment.paper[-1].after
        pictures[name] = svg.curves(groups, mean, f"Learning curves of experiment {name}")
    return pictures


def spreads(rows: Sequence[Row]) -> dict[int, str]:
    """Table -> picture of all trials' sequences until success."""
    pictures = {}
    for table in TITLES:
        lines = [
            (f"{row.name} {row.goal} {row.reading}".replace("  ", " "), row.reading, row.sequences[:DOTS],
             float(row.paper_after.replace(",", "")) if row.paper_after not in ("none", "") else None)
            for row in rows if row.table == table and row.sequences
        ]  # fmt: skip
        if lines:
            where = f"table {table}" if table != BEYOND else "beyond the tables"
            pictures[table] = svg.spread(lines, f"Sequences until success, {where}", diamonds=table != BEYOND)
    return pictures


def histograms(distributions: Sequence[Distribution]) -> list[str]:
    """One picture per distribution: how many trials ended where, the best form, and the paper's mean."""
    pictures = []
    for found in distributions:
        edges = np.linspace(0, max(found.found), 1 + min(40, max(10, len(found.found) // 12)))
        counts, _ = np.histogram(found.found, edges)
        curve = found.forms[0].density(np.linspace(0, edges[-1], 200)) * len(found.found) * (edges[1] - edges[0])
        after = found.experiment.paper[-1].after
        title_ = f"Sequences until success of experiment {found.experiment.name}, {found.trials:,} trials"
        pictures.append(svg.histogram(edges.tolist(), counts.tolist(), curve.tolist(), after, title_))
    return pictures


def panels_of(experiment: Experiment, example: dict[str, Any]) -> str:
    """Inputs, gates, states and outputs over time."""
    inputs = example["inputs"]
    shown = inputs if isinstance(inputs[0], list) else [inputs]
    parts = [("input" if isinstance(inputs[0], list) else "symbol", shown)]
    names = (("hid", "hidden units"), ("ig", "input gates"), ("og", "output gates"), ("s", "states s"),
             ("cell", "cell outputs"))  # fmt: skip
    gated = isinstance(experiment.learner, LSTM97Learner) and experiment.learner.network.output_gates
    parts += [(name, example[key]) for key, name in names if key in example and (key != "og" or gated)]
    known = {"inputs", "outputs", "output", "target", *(key for key, _ in names)}
    parts += [(f"state {key}", example[key]) for key in example if key not in known]  # of other cells
    parts += [("outputs", example["outputs"])] if example["outputs"] else []
    return svg.panels(parts, f"Gates and cells of experiment {experiment.name} on one sequence")


def examples(results: Sequence[Result]) -> list[dict[str, str]]:
    """One solved sequence per experiment number: the reading "fit" if it has one, the lowest seed."""
    found: dict[str, dict[str, str]] = {}
    for result in sorted(results, key=lambda result: result.experiment.reading):  # fit before text
        experiment = result.experiment
        solved = next((record for record in result.records if record.example), None)
        if solved is None or experiment.number in found:
            continue
        example = solved.example
        assert example is not None
        words = title(experiment.number, experiment.name)
        found[experiment.number] = {
            "title": f"{experiment.name}: {words}" if words != experiment.name else words,
            "made": f"reading {experiment.reading}, seed {solved.seed}",
            "target": ", ".join(f"{v:g}" for v in example["target"]) if len(example["target"]) <= 8 else "",
            "output": ", ".join(f"{v:g}" for v in example["output"]) if len(example["output"]) <= 8 else "",
            "symbols": SYMBOLS.get(experiment.number, ""),
            "svg": panels_of(experiment, example),
        }
    return [found[key] for key in sorted(found)]
