"""Success over the values of any field of an experiment: learning rates, bias values, numbers of blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from longlag.lab.experiment import Experiment
from longlag.lab.run import reproduce
from longlag.lab.store import Store
from longlag.lab.trials import Record


@dataclass(frozen=True)
class Sweep:
    """Trials per value of a field."""

    field: str
    values: tuple[Any, ...]
    records: tuple[tuple[Record, ...], ...]

    def rates(self) -> list[float]:
        """Success rate at each value."""
        return [sum(r.success for r in records) / len(records) for records in self.records]

    def means(self) -> list[float | None]:
        """Mean sequences until success at each value, over the successful trials."""
        found = [[r.sequences for r in records if r.success] for records in self.records]
        return [sum(ns) / len(ns) if ns else None for ns in found]

    def plot(self, path: str | Path) -> None:
        """Success rate and sequences until success over the values, as a picture file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        places = range(len(self.values))
        above.bar(places, [100 * rate for rate in self.rates()], color="#1f5f99", width=0.6)
        above.set_ylabel("success, %")
        above.set_ylim(0, 105)
        for place, records in zip(places, self.records):
            found = [r.sequences for r in records if r.success]
            below.plot([place] * len(found), found, "o", color="#1f5f99", alpha=0.5)
        below.set_ylabel("sequences until success")
        below.set_xticks(places, [str(value) for value in self.values])
        below.set_xlabel(self.field)
        name = self.records[0][0].experiment
        above.set_title(f"Experiment {name}: {len(self.records[0])} trials per value")
        figure.savefig(path)


def field_names(thing: Any) -> list[str]:
    """The fields of a dataclass object; none of anything else."""
    return [f.name for f in fields(thing)] if is_dataclass(thing) else []


def check_field(owner: str, thing: Any, field: str) -> None:
    """Refuse a field that is not there, however deep, by name."""
    for name in field.split("."):
        known = field_names(thing)
        if name not in known:
            raise ValueError(f"{owner}: field must be one of {known} in {type(thing).__name__}, got {name!r}")
        thing = getattr(thing, name)


def with_field(thing: Any, field: str, value: Any) -> Any:
    """A copy with one field changed; "learner.network.blocks" reaches inside.

    >>> from longlag.lab.hs97 import experiment_4
    >>> with_field(experiment_4(T=100), "learner.lr", 0.25).learner.lr
    0.25
    """
    check_field("sweep", thing, field)
    name, _, rest = field.partition(".")
    return replace(thing, **{name: with_field(getattr(thing, name), rest, value) if rest else value})


def sweep(
    experiment: Experiment,
    field: str,
    values: Sequence[Any],
    out: str | Path,
    *,
    trials: int = 10,
    seed: int = 0,
    jobs: int | None = None,
    change: Callable[[Experiment, Any], Experiment] | None = None,
) -> Sweep:
    """Run an experiment at each value of a field, with seeds for choosing (below 100) by default.

    Args:
        field: such as "learner.lr", "learner.input_gate_bias", "stop.every"; or any name, with `change`.
        out: folder of the results; trials found there are not computed again.
        change: how to set the value where one field is not enough (blocks and their biases).

    >>> from longlag.lab.hs97 import experiment_6
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = sweep(experiment_6(2), "learner.lr", [0.01, 0.5], folder, trials=1, jobs=1)
    >>> found.rates()
    [0.0, 1.0]
    """
    if not values:
        raise ValueError("sweep: values must not be empty")
    variants = [change(experiment, v) if change else with_field(experiment, field, v) for v in values]
    reproduce(variants, out, trials=trials, seed=seed, jobs=jobs)
    wanted = range(seed, seed + trials)
    with Store(out) as store:
        records = [tuple(r for r in store.records(variant) if r.seed in wanted) for variant in variants]
    return Sweep(field, tuple(values), tuple(records))
