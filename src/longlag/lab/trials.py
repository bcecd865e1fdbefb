"""A trial: a pure function of (experiment, seed), run inside compiled code, with a record as its result.

Four streams of chance spring from the seed: weights, training data, test data, and the sequences of the final test;
where a trial stops therefore changes nothing before it. Weights are those of the very sequence that met the criterion.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longlag.engines import few_threads
from longlag.lab.batches import BatchModel
from longlag.lab.criteria import Goal, GrammarCriterion, TestCriterion, TrainingSetCriterion, WindowCriterion
from longlag.lab.example import activity
from longlag.lab.experiment import Experiment
from longlag.lab.growing import GrowingModel
from longlag.lab.guessing import NETS_AT_ONCE, GuessingModel, classified
from longlag.lab.learners import CellLearner, GuessingLearner, Learner, LSTM97Learner, PlainLearner
from longlag.lab.models import LayerModel, Model, PlainModel
from longlag.tasks import EmbeddedReber, Ragged

CURVE_POINTS = 120
SETS = 3  # pairs of string sets in E1


@dataclass(frozen=True)
class Reached:
    """A stage: after how many training sequences, and figures of the test that followed."""

    goal: str
    sequences: int
    test: dict[str, float]


@dataclass(frozen=True)
class Record:
    """What a trial found. `curve`: (sequences, mean |error| since the point before); `example`: one solved sequence."""

    experiment: str
    reading: str
    seed: int
    success: bool
    sequences: int
    reached: list[Reached]
    curve: list[tuple[int, float]]
    note: str = ""
    example: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Record":
        """The inverse of `as_dict`."""
        reached = [Reached(**stage) for stage in data["reached"]]
        return cls(**{**data, "reached": reached, "curve": [(int(n), float(e)) for n, e in data["curve"]]})


def build(learner: Learner, rng: np.random.Generator) -> Model:
    """A fresh model of a learner."""
    if isinstance(learner, GuessingLearner):
        return GuessingModel(learner, rng)
    if isinstance(learner, PlainLearner) and learner.rule != "elman":
        return PlainModel(learner, rng)
    if isinstance(learner, LSTM97Learner) and learner.construction:
        return GrowingModel(learner, rng)
    if isinstance(learner, CellLearner) and learner.rule == "bptt":
        return BatchModel(learner, rng)
    return LayerModel(learner, rng)


@dataclass
class TrialState:
    """A trial under way."""

    experiment: Experiment
    seed: int
    seen: int = 0
    guesses: int = 0
    diverged: bool = False
    reached: list[Reached] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        weights, self.data, self.tests, self.final = (np.random.default_rng([self.seed, k]) for k in range(4))
        self.model: Model = build(self.experiment.learner, weights)

    @property
    def goal(self) -> Goal | None:
        """What is to be reached next; None at the end."""
        goals = self.experiment.stop.goals
        return goals[len(self.reached)] if len(self.reached) < len(goals) else None

    def blocks(self, size: int) -> Iterator[Ragged]:
        """Training data, `size` sequences at a time, until the cap, the last goal or a non-finite error."""
        stop, task, rng = self.experiment.stop, self.experiment.task, self.data
        fixed = task.sample(stop.training, rng) if isinstance(stop, TestCriterion) and stop.training else None
        while self.goal is not None and not self.diverged and self.seen < self.experiment.cap:
            n = min(size, self.experiment.cap - self.seen)
            yield task.sample(n, rng) if fixed is None else fixed.take(rng.integers(0, len(fixed), n))

    def learn(self, batch: Ragged) -> NDArray:
        """Train; the largest and the mean error of each sequence, (2, n)."""
        errors = self.model.train(batch)
        self.seen += len(batch)
        self.curve.append((self.seen, float(errors.mean.mean())))
        self.diverged = not np.isfinite(errors.mean).all()
        return np.stack([errors.largest, errors.mean])

    def reach(self) -> None:
        """Note the stage and test it on fresh sequences."""
        stop, goal = self.experiment.stop, self.goal
        assert goal is not None
        count = 0 if isinstance(stop, GrammarCriterion) else stop.final
        test = judge(self, self.experiment.task.sample(count, self.final)) if count else {}
        if self.guesses:
            test["guesses"] = self.guesses
        if isinstance(self.model, GrowingModel) and self.model.construction.start:
            test["blocks"] = self.model.network.blocks
        self.reached.append(Reached(goal.name, self.seen, test))


def judge(state: TrialState, batch: Ragged) -> dict[str, float]:
    """Wrong sequences and errors of a final test. "Correct" is |y − ŷ| < bound for all outputs."""
    stop = state.experiment.stop
    assert not isinstance(stop, GrammarCriterion)
    errors = state.model.test(batch)
    wrong = int((~(errors.largest < stop.bound)).sum())
    mean_square = errors.squared.sum() / (len(batch) * batch.output_size)
    return {
        "wrong": wrong,
        "of": len(batch),
        "misclassified": wrong / len(batch),
        "mean error": float(errors.mean.mean()),
        "rmse": float(np.sqrt(mean_square)),
    }


def first_hit(goal: Goal, wrong: NDArray, mean: NDArray, size: int, start: int) -> int | None:
    """The first position ≥ start where the `size` sequences up to it satisfy a goal."""
    if len(wrong) < size:
        return None
    wrongs, means = (np.concatenate([[0.0], np.cumsum(values)]) for values in (wrong, mean))
    ok = (wrongs[size:] - wrongs[:-size] < goal.fewer_than) & ((means[size:] - means[:-size]) / size < goal.mean)
    ends = np.flatnonzero(ok) + size - 1
    ends = ends[ends >= start]
    return int(ends[0]) if len(ends) else None


def follow_window(state: TrialState, stop: WindowCriterion) -> None:
    """Train until the last `stop.size` training sequences satisfy each goal in turn. [E4] [E5] [E6a] [E6b]"""
    history = np.empty((2, 0))  # largest and mean error of the sequences so far, as many as matter
    for batch in state.blocks(stop.block):
        while len(batch) and state.goal is not None:
            before, seen = state.model.copy(), state.seen
            errors = np.concatenate([history, state.learn(batch)], axis=1)
            start = history.shape[1]
            hit = first_hit(state.goal, ~(errors[0] < stop.bound), errors[1], stop.size, start)
            count = len(batch) if hit is None else hit + 1 - start
            if hit is not None:  # back to the sequence that met the goal
                state.model, state.seen = before, seen
                state.curve.pop()
                state.learn(batch.take(np.arange(count)))
                state.reach()
            history = errors[:, : start + count][:, -(stop.size - 1) :]
            if count == len(batch):
                break
            batch = batch.take(np.arange(count, len(batch)))  # the rest is still to be learned


def satisfies(state: TrialState, stop: TestCriterion, goal: Goal, drawn: Ragged | None) -> bool:
    """Does the net pass the test? Given up as soon as too many are wrong: sequences are tried in growing portions."""
    wrong, total, done, portion = 0, 0.0, 0, 16
    size = stop.size if drawn is None else len(drawn)
    while done < size:
        count = min(portion, size - done)
        if drawn is None:
            batch = state.experiment.task.sample(count, state.tests)
        else:
            batch = drawn if count == size else drawn.take(np.arange(done, done + count))
        errors = state.model.test(batch, stop.last)
        wrong += int((~(errors.largest < stop.bound)).sum())
        total += float(errors.mean.sum())
        done, portion = done + count, 2 * portion
        if not wrong < goal.fewer_than:
            return False
    return total / size < goal.mean


def follow_test(state: TrialState, stop: TestCriterion) -> None:
    """Train, testing frozen weights every so often, until they pass each goal in turn. [E2a] [E2b] [E2c] [E3a]"""
    drawn = None if stop.fresh else state.experiment.task.sample(stop.size, state.tests)
    if drawn is not None and stop.distinct:
        assert drawn.labels is not None
        drawn = drawn.take(np.unique(drawn.labels, return_index=True)[1])
    for batch in state.blocks(stop.every):
        state.learn(batch)
        while state.goal is not None and satisfies(state, stop, state.goal, drawn):
            state.reach()


def follow_grammar(state: TrialState, stop: GrammarCriterion) -> None:
    """Train on strings of a fixed set until they and those of a test set are predicted. [E1]"""
    right = PREDICTED[stop.judged]
    task = state.experiment.task
    assert isinstance(task, EmbeddedReber)
    sets = task.sets(state.seed // 100 * 100 + state.seed % SETS)
    legal = [task.legal(strings) for strings in sets]
    for _ in state.blocks(1):
        state.learn(sets[0].take(state.data.integers(0, len(sets[0]), stop.every)))
        if all(right(state.model.outputs(strings), allowed) for strings, allowed in zip(sets, legal)):
            state.reach()


def follow_training_set(state: TrialState, stop: TrainingSetCriterion) -> None:
    """Guess weights until a net classifies the training set; sequences are counted up to each net's first wrong one."""
    model, cap = state.model, state.experiment.cap
    training = state.experiment.task.sample(stop.size, state.data)
    if not isinstance(model, GuessingModel) or training.scored != "end":
        raise ValueError(
            f"trial: {state.experiment.name} must guess a task scored at the end, got another learner or task"
        )
    while state.goal is not None and state.seen < cap:
        nets = model.draw(NETS_AT_ONCE)
        seen, right, mean = classified(nets, model.learner.hidden, training, stop.bound)
        found = np.flatnonzero(right & (mean < state.goal.mean) & (state.seen + np.cumsum(seen) <= cap))
        drawn = int(found[0]) + 1 if len(found) else len(nets)
        state.guesses += drawn
        state.seen += int(seen[:drawn].sum())
        state.curve.append((min(state.seen, cap), float(mean[:drawn].mean())))
        if len(found):
            model.W = nets[drawn - 1]
            state.reach()
    state.seen = min(state.seen, cap)


def set_is_most_active(outputs: NDArray, legal: NDArray) -> bool:
    """Is every legal output above every other one, at every step?"""
    lowest = np.where(legal, outputs, np.inf).min(1)
    return bool((lowest > np.where(legal, -np.inf, outputs).max(1)).all())


def most_active_is_legal(outputs: NDArray, legal: NDArray) -> bool:
    """Is the highest output a legal one, at every step?"""
    return bool((np.where(legal, outputs, -np.inf).max(1) > np.where(legal, -np.inf, outputs).max(1)).all())


PREDICTED = {"set": set_is_most_active, "most active": most_active_is_legal}


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most CURVE_POINTS points, each the mean over the sequences since the one before."""
    ends, errors = (np.array(column) for column in zip(*curve))
    counts = np.diff(ends, prepend=0)
    starts = np.unique(np.linspace(0, len(curve), CURVE_POINTS, endpoint=False).astype(int))
    means = np.add.reduceat(errors * counts, starts) / np.add.reduceat(counts, starts)
    last = np.append(starts[1:], len(curve)) - 1
    return [(int(n), float(f"{e:.4g}")) for n, e in zip(ends[last], means)]


FOLLOW: dict[type, Callable[[TrialState, Any], None]] = {
    WindowCriterion: follow_window,
    TestCriterion: follow_test,
    GrammarCriterion: follow_grammar,
    TrainingSetCriterion: follow_training_set,
}


def trial(experiment: Experiment, seed: int) -> Record:
    """Train one net as the experiment says, until it succeeds or has seen the cap.

    >>> from longlag.lab.hs97 import experiment_6
    >>> record = trial(experiment_6(symbols=2), seed=1)
    >>> record.success, 10_000 < record.sequences < 80_000, record.reached[0].test["wrong"] < 20
    (True, True, True)
    """
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"trial: seed must be a non-negative int, got {seed!r}")
    with few_threads(1):  # trials run side by side in processes; torch's threads would wait for each other
        state = TrialState(experiment, seed)
        FOLLOW[type(experiment.stop)](state, experiment.stop)
        success, example = state.goal is None, None
        if success and isinstance(state.model, LayerModel):
            example = activity(experiment, state.model, state.final)
    note = "diverged" if state.diverged else ""
    curve = thinned(state.curve)
    return Record(experiment.name, experiment.reading, seed, success, state.seen, state.reached, curve, note, example)
