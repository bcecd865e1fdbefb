"""A wide search on the rows that do not come out: experiments 1, 2a, 2b, 4 (T = 500) and 6b.

    python tools/open_questions.py --jobs 16 --minutes 20 --out runs/open --csv docs/reproduction/open-questions.csv

Combinations of a few readings are tried on seeds for choosing (below 100), a few trials each: first those that depart
from the text in one point, then in two, … in random order, until the time is up. The best of each question are then
confirmed on fresh seeds (from 200 on, never reported elsewhere). Results are kept in a store: run again to go on.
"""

import argparse
import csv
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.hs97 import experiment_1, experiment_2a, experiment_2b, experiment_4, experiment_6
from longlag.lab.learners import Construction
from longlag.lab.run import reproduce
from longlag.lab.store import Store
from longlag.lab.sweeps import with_field

CHOOSING, FRESH = 0, 200  # first seeds
Axes = dict[str, Sequence[Any]]
RANGES = (("4s-2", "2s-1"), ("2s-1", "4s-2"), ("4s-2", "4s-2"), ("2s-1", "2s-1"))  # g, h
TOGETHER: dict[str, tuple[str, ...]] = {
    "g, h": ("learner.network.g", "learner.network.h"),
    "update": ("learner.update",),
    "reset": ("learner.initial",),
    "reach": ("learner.reach",),
    "lr": ("learner.lr",),
    "biases": ("learner.biases",),
    "output": ("learner.network.output",),
    "cell added after": ("learner.construction",),
    "h": ("learner.network.h",),
    "g": ("learner.network.g",),
    "input gates": ("learner.input_gate_bias",),
    "output gates": ("learner.output_gate_bias",),
    "first pair": ("task.first",),
    "tested every": ("stop.every",),
}
STALLED = Construction(start=0, window=100, patience=1)
ADDED = tuple(Construction(start=0, after=n) for n in (100, 300, 1000, 3000, 10_000))
GATES, ALL = ("ig", "og"), ("ig", "og", "cell", "out")
QUESTIONS: dict[str, tuple[Callable[[], Experiment], Axes]] = {
    "1 3x2": (lambda: experiment_1(3, 2, 0.5), {
        "g, h": RANGES, "update": ("sequence", "step"), "reset": (0.0, 0.5), "reach": (0.1, 0.2, 0.5),
        "lr": (0.1, 0.2, 0.5), "biases": (GATES, ALL), "output gates": ((-1.0, -2.0, -3.0), (0.0, 0.0, 0.0)),
        "tested every": (256, 100),
    }),
    "1 4x1": (lambda: experiment_1(4, 1, 0.5), {
        "g, h": RANGES, "update": ("sequence", "step"), "reset": (0.0, 0.5), "reach": (0.1, 0.2, 0.5),
        "lr": (0.1, 0.5), "biases": (GATES, ALL),
    }),
    "2a": (experiment_2a, {
        "update": ("sequence", "step"), "cell added after": (*ADDED, STALLED),
        "g": ("logistic", "4s-2", "2s-1"), "h": ("identity", "2s-1"), "lr": (0.1, 0.3, 1.0, 2.0), "reach": (0.2, 0.05),
    }),
    "2b": (experiment_2b, {
        "update": ("sequence", "step"), "cell added after": (*ADDED, STALLED),
        "g": ("logistic", "4s-2", "2s-1"), "h": ("identity", "2s-1"), "lr": (0.1, 0.3, 1.0, 2.0), "reach": (0.2, 0.05),
    }),
    "4 T=500": (lambda: experiment_4(500, "fit"), {
        "lr": (0.25, 0.5, 1.0), "input gates": ((-3.0, -6.0), (-2.0, -4.0), (-4.0, -8.0), (-5.0, -5.0)),
        "reset": (0.0, 0.5), "reach": (0.05, 0.1, 0.2, 0.4, 0.8), "first pair": ("minus_one", "zero_value"),
        "output": ("linear", "logistic"),
    }),
    "6b": (lambda: experiment_6(3), {
        "lr": (0.1, 0.2, 0.5), "reset": (0.0, 0.5), "reach": (0.05, 0.1, 0.2, 0.4, 0.8),
        "input gates": ((-2.0, -4.0, -6.0), (-1.0, -2.0, -3.0), (-3.0, -6.0, -9.0)), "g, h": RANGES[:3],
    }),
}  # fmt: skip


def variant(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """The experiment with these values; an axis may set several fields at once."""
    for axis, value in values.items():
        paths = TOGETHER[axis]
        for path, one in zip(paths, value if len(paths) > 1 else (value,)):
            experiment = with_field(experiment, path, one)
    return experiment


def combinations(axes: Axes) -> Iterator[dict[str, Any]]:
    """Every choice of one value per axis."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def result(store: Store, experiment: Experiment, seed: int, trials: int) -> tuple[int, int, float | None]:
    """Successes, trials, mean sequences until success, among the seeds asked for."""
    records = [r for r in store.records(experiment) if seed <= r.seed < seed + trials]
    found = [r.sequences for r in records if r.success]
    return len(found), len(records), sum(found) / len(found) if found else None


def rank(line: dict[str, Any]) -> tuple[float, float]:
    """Better comes first: more successes, then fewer sequences."""
    return -line["successes"] / max(1, line["trials"]), line["mean"] or float("inf")


def search(name: str, asked: argparse.Namespace, until: float) -> list[dict[str, Any]]:
    """Try combinations until the time is up, then confirm the best on fresh seeds."""
    make, axes = QUESTIONS[name]
    base, lines = make(), []
    everything = list(combinations(axes))
    random.Random(97).shuffle(everything)
    everything.sort(key=lambda values: sum(variant(base, {axis: value}) != base for axis, value in values.items()))
    portion = max(1, 4 * asked.jobs // asked.trials)
    for start in range(0, len(everything), portion):
        if time.monotonic() > until:
            break
        chosen = everything[start : start + portion]
        lines += run(name, base, chosen, asked, CHOOSING, asked.trials, "choosing")
    best = [line["values"] for line in sorted(lines, key=rank)[: asked.confirm]]
    return lines + run(name, base, best, asked, FRESH, asked.fresh, "fresh")


def run(
    name: str, base: Experiment, chosen: Sequence[dict], asked: argparse.Namespace, seed: int, trials: int, kind: str
) -> list[dict[str, Any]]:
    """Trials of some combinations."""
    variants = [replace(variant(base, values), cap=min(base.cap, asked.cap)) for values in chosen]
    reproduce(variants, asked.out, trials=trials, seed=seed, jobs=asked.jobs)
    after = base.paper[-1].after
    lines = []
    with Store(asked.out) as store:
        for values, experiment in zip(chosen, variants):
            successes, done, mean = result(store, experiment, seed, trials)
            lines.append({"question": name, "seeds": kind, "successes": successes, "trials": done, "mean": mean,
                          "paper": after, "cap": experiment.cap, "values": values})  # fmt: skip
    print(f"{name}, {kind}: {len(lines)} combinations, best {min(map(rank, lines), default=None)}", flush=True)
    return lines


def shown(value: Any) -> Any:
    """A value as the CSV has it: of a construction only when the cell is added."""
    return (value.after or "plateau") if isinstance(value, Construction) else value


def write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """All lines, best first within each question."""
    heads = ("question", "seeds", "successes", "trials", "mean", "paper", "cap", "values")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        for line in sorted(lines, key=lambda line: (line["question"], line["seeds"] != "fresh", rank(line))):
            values = "; ".join(f"{axis} = {shown(value)}" for axis, value in line["values"].items())
            mean = "" if line["mean"] is None else round(line["mean"])
            writer.writerow([*(line[head] for head in heads[:4]), mean, line["paper"], line["cap"], values])


def print_map(path: Path) -> None:
    """The file's choosing trials as Markdown: successes of every value of every axis, whatever stood beside it."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["seeds"] == "choosing"]
    for name in dict.fromkeys(line["question"] for line in lines):
        print(f"\n| {name} | successes / trials |\n|---|---|")
        counts: dict[str, dict[str, list[int]]] = {}
        for line in (line for line in lines if line["question"] == name):
            for part in line["values"].split("; "):
                axis, _, value = part.partition(" = ")
                count = counts.setdefault(axis, {}).setdefault(value, [0, 0])
                count[0] += int(line["successes"])
                count[1] += int(line["trials"])
        for axis, values in counts.items():
            print(f"| {axis} | {', '.join(f'{value}: {a}/{n}' for value, (a, n) in sorted(values.items()))} |")


def main() -> None:
    """Share the time among the questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--question", action="append", choices=tuple(QUESTIONS), help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="for choosing; confirming comes on top")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trials", type=int, default=4, help="per combination, for choosing")
    parser.add_argument("--fresh", type=int, default=20, help="trials that confirm")
    parser.add_argument("--confirm", type=int, default=3, help="how many of the best are confirmed")
    parser.add_argument("--cap", type=int, default=10**9, help="at most so many sequences a trial")
    parser.add_argument("--out", default="runs/open")
    parser.add_argument("--csv", type=Path, default=Path("runs/open/open-questions.csv"))
    parser.add_argument("--map", action="store_true", help="run nothing: sum up the CSV as Markdown")
    asked = parser.parse_args()
    if asked.map:
        print_map(asked.csv)
        return
    names = asked.question or list(QUESTIONS)
    lines: list[dict[str, Any]] = []
    for name in names:
        lines += search(name, asked, time.monotonic() + 60 * asked.minutes / len(names))
        write(asked.csv, lines)
    print(f"written: {asked.csv}")


if __name__ == "__main__":
    main()
