"""Search among readings of an experiment: successive halving on some seeds, confirmation on others, all of it kept.

A reading is a point in a declared space. Optuna draws readings and halves them; its study is `search.sqlite` beside
the store of the trials. Run the same search again to go on, or with a larger budget to go further.

>>> from longlag.lab.hs97 import experiment_4
>>> search(experiment_4(100), {"learner.lrr": [0.1, 0.5]}, 10)
Traceback (most recent call last):
...
ValueError: search: field must be one of ['network', ..., 'construction'] in LSTM97Learner, got 'lrr'
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from longlag.lab.architecture import check_int
from longlag.lab.experiment import Experiment
from longlag.lab.findings import Judged, Search
from longlag.lab.fingerprint import fingerprint
from longlag.lab.identity import canonical
from longlag.lab.run import reproduce
from longlag.lab.spaces import Range, Space, check_space, neighbours, reading, size, suggested
from longlag.lab.store import Store
from longlag.lab.trials import Record

REDUCTION = 3  # of all readings judged on some seeds, the best third goes on to three times as many
LEAST = 2  # seeds that a reading is judged on at first
BARREN = 200  # suggestions in a row that are known or impossible: the space is taken to be exhausted
STUDIES = "search.sqlite"


def rungs(seeds: int) -> list[int]:
    """Numbers of seeds on which a reading is judged, one after another.

    >>> rungs(18), rungs(4)
    ([2, 6, 18], [4])
    """
    found = [seeds]
    while found[0] % REDUCTION == 0 and found[0] // REDUCTION >= LEAST:
        found.insert(0, found[0] // REDUCTION)
    return found


def loss(record: Record, cap: int) -> float:
    """Less is better: sequences over the cap; for a failure 1 and the part of its first error that is left.

    Failures are thus told apart where nothing succeeds.
    """
    if record.success:
        return record.sequences / cap
    first, last = record.curve[0][1], record.curve[-1][1]
    return 1 + min(1.0, last / first) if first > 0 and last == last else 2.0


def search(
    experiment: Experiment,
    space: Space,
    budget: int,
    seeds: tuple[range, range] = (range(18), range(3000, 3030)),
    *,
    out: str | Path = "runs/search",
    confirm: int = 3,
    jobs: int | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Search:
    """Judge readings by successive halving until `budget` trials are spent, then confirm the best on fresh seeds.

    Args:
        space: field -> values or `Range`. Fields as in `lab.sweep`; "a, b" names fields that change together.
        budget: trials spent on choosing, those of earlier calls of the same search counted in.
        seeds: (for choosing, for confirming); they must have no seed in common.
        out: folder of the trials (results.sqlite) and of Optuna's study (search.sqlite).
        confirm: how many of the best readings are run on the seeds for confirming; these trials come on top.

    Readings that the experiment's own classes refuse are noted, not run.
    """
    check_space(experiment, space)
    check_int("search", "budget", budget, 0)
    check_int("search", "confirm", confirm, 0)
    choosing, confirming = seeds
    if not choosing or set(choosing) & set(confirming):
        raise ValueError(f"search: seeds must be two ranges with none in common, the first not empty, got {seeds}")
    study = study_of(experiment, space, choosing, Path(out))
    found = Searching(experiment, space, choosing, Path(out), jobs, study, say)
    found.go(budget)
    best = sorted((judged for judged in found.judged if judged.records), key=Judged.rank)[:confirm]
    confirmed = [replace(each, records=found.records(each.experiment, confirming)) for each in best]
    return Search(
        experiment, dict(space), tuple(found.judged), tuple(confirmed), importances(study, rungs(len(choosing)))
    )


def optuna() -> Any:
    """The library, where it is installed."""
    try:
        import optuna
    except ImportError as error:
        raise ValueError(f"search needs the extra 'search' (pip install 'longlag[search]'), got {error}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def study_of(experiment: Experiment, space: Space, choosing: range, out: Path) -> Any:
    """Optuna's study of this search by this code, begun or gone on with."""
    library = optuna()
    text = canonical({axis: repr(v) if isinstance(v, Range) else list(v) for axis, v in space.items()})
    key = f"{experiment.settings}|{text}|{choosing}|{fingerprint()}"
    name = f"{experiment.label} {hashlib.sha256(key.encode()).hexdigest()[:12]}"
    out.mkdir(parents=True, exist_ok=True)
    least = rungs(len(choosing))[0]
    study = library.create_study(
        storage=f"sqlite:///{out / STUDIES}",
        study_name=name,
        load_if_exists=True,
        pruner=library.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=REDUCTION),
    )
    study.sampler = library.samplers.TPESampler(seed=len(study.trials), n_startup_trials=40)
    if not study.trials:
        for point in neighbours(experiment, space):
            study.enqueue_trial(point)
    for trial in study.get_trials(states=[library.trial.TrialState.RUNNING]):  # of a search that was killed
        study.enqueue_trial(trial.params or trial.system_attrs.get("fixed_params", {}))
        study.tell(trial.number, state=library.trial.TrialState.FAIL)
    return study


def importances(study: Any, steps: list[int]) -> dict[str, float]:
    """How much each axis matters for being among the best at the first rung (PED-ANOVA), where all were judged."""
    library = optuna()
    first = [trial for trial in study.trials if steps[0] in trial.intermediate_values]
    if len(first) < 4 or len({trial.intermediate_values[steps[0]] for trial in first}) < 2:
        return {}
    flat = library.create_study()
    for trial in first:
        value = trial.intermediate_values[steps[0]]
        flat.add_trial(library.trial.create_trial(params=trial.params, distributions=trial.distributions, value=value))
    evaluator = library.importance.PedAnovaImportanceEvaluator()
    found = library.importance.get_param_importances(flat, evaluator=evaluator)
    return {axis: float(value) for axis, value in found.items()}


class Searching:
    """A search under way."""

    def __init__(
        self, experiment: Experiment, space: Space, choosing: range, out: Path, jobs: int | None, study: Any,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.experiment, self.space, self.choosing, self.out, self.jobs = experiment, space, choosing, out, jobs
        self.study, self.say, self.states = study, say, optuna().trial.TrialState
        self.judged: list[Judged] = []
        self.known: set[str] = set()
        self.spent = 0
        for trial in study.get_trials(states=[self.states.COMPLETE, self.states.PRUNED]):
            values = suggested(trial_again(trial), space)
            self._keep(reading(experiment, values), values, max(trial.intermediate_values))

    def _keep(self, variant: Experiment, values: dict[str, Any], seeds: int) -> None:
        """Note a reading judged on so many seeds."""
        self.known.add(variant.settings)
        self.spent += seeds
        self.judged.append(Judged(variant, values, self.records(variant, self.choosing[:seeds])))

    def records(self, variant: Experiment, seeds: range) -> tuple[Record, ...]:
        """The trials of a reading on these seeds, run where they are not in the store."""
        reproduce([variant], self.out, trials=len(seeds), seed=seeds.start, jobs=self.jobs)
        with Store(self.out) as store:
            return tuple(record for record in store.records(variant) if record.seed in seeds)

    def go(self, budget: int) -> None:
        """Judge readings while the budget lasts and new ones turn up."""
        barren = 0
        while self.spent < budget and len(self.known) < size(self.space) and barren < BARREN:
            trial = self.study.ask()
            values = suggested(trial, self.space)
            try:
                variant = reading(self.experiment, values)
            except ValueError as error:
                trial.set_user_attr("refused", str(error))
                variant = None
            if variant is None or variant.settings in self.known:
                self.study.tell(trial, state=self.states.FAIL)
                barren += 1
                continue
            barren = 0
            self._judge(trial, variant, values)

    def _judge(self, trial: Any, variant: Experiment, values: dict[str, Any]) -> None:
        """Run a reading on more and more seeds while it is among the best third and has succeeded at all."""
        score, state, step = 0.0, self.states.COMPLETE, 0
        steps = rungs(len(self.choosing))
        for step in steps:
            records = self.records(variant, self.choosing[:step])
            score = sum(loss(record, variant.cap) for record in records) / step
            trial.report(score, step)
            if step < steps[-1] and (trial.should_prune() or not any(record.success for record in records)):
                state = self.states.PRUNED
                break
        self.study.tell(trial, None if state == self.states.PRUNED else score, state=state)
        self._keep(variant, values, step)
        self.say(f"{self.spent} trials, {len(self.judged)} readings; {self.judged[-1].sentence}")


def trial_again(trial: Any) -> Any:
    """A finished trial that suggests what it was suggested."""
    return optuna().trial.FixedTrial(trial.params)
