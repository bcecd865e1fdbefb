"""What a search found: every reading with its trials, the best confirmed, and a map of what matters."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.identity import canonical
from longlag.lab.spaces import Range
from longlag.lab.trials import Record

PIECES = 4  # of a range, in the map


@dataclass(frozen=True)
class Judged:
    """A reading and its trials."""

    experiment: Experiment
    values: dict[str, Any]
    records: tuple[Record, ...]

    @property
    def successes(self) -> int:
        """Trials that succeeded."""
        return sum(record.success for record in self.records)

    @property
    def mean(self) -> float | None:
        """Sequences until success, over the successful trials."""
        found = [record.sequences for record in self.records if record.success]
        return sum(found) / len(found) if found else None

    def rank(self) -> tuple[int, float, float]:
        """Better comes first: tried on more seeds, then more successes, then fewer sequences."""
        rate = self.successes / max(1, len(self.records))
        return -len(self.records), -rate, self.mean or float("inf")

    @property
    def sentence(self) -> str:
        """Successes, mean and values in one line."""
        mean = "" if self.mean is None else f" after {self.mean:,.0f}"
        values = "; ".join(f"{axis} = {shown(value)}" for axis, value in self.values.items())
        return f"{self.successes}/{len(self.records)}{mean}: {values}"


def shown(value: Any) -> str:
    """A value in few characters."""
    return canonical(value).replace('"', "")


@dataclass(frozen=True)
class Line:
    """One line of the map: all readings with this value, whatever stood beside it."""

    axis: str
    value: str
    readings: int
    successes: int
    trials: int


@dataclass(frozen=True)
class Search:
    """All readings judged, the best of them on fresh seeds, and how much each axis matters (0 to 1)."""

    experiment: Experiment
    space: Mapping[str, Any]
    judged: tuple[Judged, ...]
    confirmed: tuple[Judged, ...]
    importances: dict[str, float]

    @property
    def trials(self) -> int:
        """Trials behind it, those that confirm counted in."""
        return sum(len(each.records) for each in (*self.judged, *self.confirmed))

    @property
    def best(self) -> Judged | None:
        """The best reading on the seeds for confirming."""
        return min(self.confirmed, key=Judged.rank, default=None)

    def map(self) -> list[Line]:
        """Successes and trials of every value of every axis; the axes that matter most come first."""
        lines = []
        for axis in sorted(self.space, key=lambda axis: -self.importances.get(axis, 0.0)):
            groups: dict[str, list[Judged]] = {name: [] for name in pieces(self.space[axis])}
            for each in self.judged:
                groups[piece_of(self.space[axis], each.values[axis])].append(each)
            lines += [
                Line(axis, name, len(group), sum(j.successes for j in group), sum(len(j.records) for j in group))
                for name, group in groups.items()
            ]
        return lines

    def markdown(self) -> str:
        """The map and the confirmed readings as Markdown."""
        text = [f"| {self.experiment.label} | weight | value: successes/trials |", "|---|---|---|"]
        for axis in dict.fromkeys(line.axis for line in self.map()):
            cells = ", ".join(f"{x.value}: {x.successes}/{x.trials}" for x in self.map() if x.axis == axis)
            text.append(f"| {axis} | {self.importances.get(axis, 0.0):.2f} | {cells} |")
        text += ["", "| confirmed on fresh seeds | reading |", "|---|---|"]
        for each in sorted(self.confirmed, key=Judged.rank):
            figures, _, values = each.sentence.partition(": ")
            text.append(f"| {figures} | {values} |")
        return "\n".join(text) + "\n"

    def save(self, path: str | Path) -> None:
        """Every reading as CSV, the confirming trials first, then the best."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["experiment", "seeds", "successes", "trials", "mean", "cap", *self.space])
            for kind, group in (("fresh", self.confirmed), ("choosing", self.judged)):
                for each in sorted(group, key=Judged.rank):
                    mean = "" if each.mean is None else round(each.mean)
                    row = [self.experiment.label, kind, each.successes, len(each.records), mean, each.experiment.cap]
                    writer.writerow([*row, *(shown(each.values[axis]) for axis in self.space)])

    def plot(self, path: str | Path) -> None:
        """The map as a picture: success rate of every value, the axes that matter most above."""
        from matplotlib.figure import Figure

        lines = self.map()
        figure = Figure(figsize=(7.2, 1.2 + 0.24 * len(lines)), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(line.axis for line in lines))
        places = [k + names.index(line.axis) for k, line in enumerate(lines)]
        rates = [100 * line.successes / line.trials if line.trials else 0.0 for line in lines]
        colours = ["#1f5f99" if names.index(line.axis) % 2 == 0 else "#b3541e" for line in lines]
        axes.barh(places, rates, color=colours, height=0.8)
        for place, rate, line in zip(places, rates, lines):
            axes.text(rate + 0.5, place, f"{line.successes}/{line.trials}", va="center", fontsize=7)
        axes.set_yticks(places, [f"{line.axis.split('.')[-1]} = {line.value}"[:52] for line in lines], fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("trials that succeed, %")
        axes.set_title(f"{self.experiment.label}: {len(self.judged)} readings, {self.trials:,} trials", fontsize=10)
        figure.savefig(path)


def pieces(choices: Any) -> list[str]:
    """The lines that an axis has in the map: its values, or pieces of its range."""
    if not isinstance(choices, Range):
        return [shown(value) for value in choices]
    return [piece_name(choices, k) for k in range(PIECES)]


def piece_of(choices: Any, value: Any) -> str:
    """The line of the map that a value belongs to."""
    if not isinstance(choices, Range):
        return shown(value)
    edges = borders(choices)
    return piece_name(choices, next(k for k in range(PIECES) if value <= edges[k + 1] or k == PIECES - 1))


def piece_name(choices: Range, piece: int) -> str:
    """ "0.1 to 0.2"."""
    edges = borders(choices)
    return f"{edges[piece]:.3g} to {edges[piece + 1]:.3g}"


def borders(choices: Range) -> list[float]:
    """Where the pieces of a range begin and end."""
    shares = [k / PIECES for k in range(PIECES + 1)]
    if choices.log:
        return [choices.low * (choices.high / choices.low) ** share for share in shares]
    return [choices.low + (choices.high - choices.low) * share for share in shares]
