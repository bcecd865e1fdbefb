"""Spaces of readings: which fields of an experiment may take which values; how a reading is drawn from them."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.identity import canonical
from longlag.lab.sweeps import check_field, with_field


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`: ints if both are ints; log: drawn evenly on a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Only ints?"""
        return isinstance(self.low, int) and isinstance(self.high, int)


Axis = Sequence[Any] | Range
Space = Mapping[str, Axis]


def paths(axis: str) -> list[str]:
    """The fields of an axis: "learner.network.g, learner.network.h" are two that change together."""
    return [path.strip() for path in axis.split(",")]


def check_space(experiment: Experiment, space: Space) -> None:
    """Refuse fields that are not there, and axes without a value, by name."""
    if not space:
        raise ValueError("search: space must name at least one field, got none")
    for axis, values in space.items():
        for path in paths(axis):
            check_field("search", experiment, path)
        if isinstance(values, Range):
            if not values.low <= values.high or (values.log and not values.low > 0):
                raise ValueError(f"search: {axis} must have a range with low <= high (positive if log), got {values}")
        elif isinstance(values, str) or not len(values):
            raise ValueError(f"search: {axis} must have a list of values or a Range, got {values!r}")
        elif len(paths(axis)) > 1 and any(len(each) != len(paths(axis)) for each in values):
            raise ValueError(f"search: each value of {axis} must have {len(paths(axis))} parts, got {list(values)!r}")


def size(space: Space) -> float:
    """How many readings there are."""
    return math.prod(math.inf if isinstance(values, Range) else len(values) for values in space.values())


def labelled(values: Sequence[Any]) -> dict[str, Any]:
    """Values by their text."""
    return {canonical(value): value for value in values}


def reading(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with these values, all set at once as far as the fields of one object go."""
    for axis, value in values.items():
        parts = paths(axis)
        for path, one in zip(parts, value if len(parts) > 1 else (value,)):
            experiment = with_field(experiment, path, one)
    return experiment


def value_at(experiment: Experiment, axis: str) -> Any:
    """The value that an experiment has on an axis."""
    found = []
    for path in paths(axis):
        thing: Any = experiment
        for name in path.split("."):
            thing = getattr(thing, name)
        found.append(thing)
    return found[0] if len(found) == 1 else tuple(found)


def suggested(trial: Any, space: Space) -> dict[str, Any]:
    """A value per axis, as an Optuna trial suggests them."""
    values: dict[str, Any] = {}
    for axis, choices in space.items():
        if isinstance(choices, Range):
            suggest = trial.suggest_int if choices.whole else trial.suggest_float
            values[axis] = suggest(axis, choices.low, choices.high, log=choices.log)
        else:
            known = labelled(choices)
            values[axis] = known[trial.suggest_categorical(axis, list(known))]
    return values


def neighbours(experiment: Experiment, space: Space) -> Iterator[dict[str, Any]]:
    """Readings to begin with, as parameters of Optuna: the experiment's own, then one axis changed at a time."""
    own = {}
    for axis, choices in space.items():
        value = value_at(experiment, axis)
        if isinstance(choices, Range):
            own[axis] = min(max(value, choices.low), choices.high)
        else:
            known = list(labelled(choices))
            own[axis] = canonical(value) if canonical(value) in known else known[0]
    yield own
    changes = [
        {axis: label}
        for axis, choices in space.items()
        for label in ([choices.low, choices.high] if isinstance(choices, Range) else labelled(choices))
        if label != own[axis]
    ]
    yield from (own | change for change in itertools.chain(changes))
