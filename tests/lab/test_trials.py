"""A trial: stopping rules against brute force, exact weights at the stop, the example against the kernel."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longlag.lab import beyond, hs97
from longlag.lab.criteria import Goal, TestCriterion, WindowCriterion
from longlag.lab.example import activity, inner_life
from longlag.lab.models import LayerModel, Model, SequenceErrors
from longlag.lab.nets import initial_weights
from longlag.lab.trials import (
    Record,
    TrialState,
    first_hit,
    follow_test,
    follow_window,
    most_active_is_legal,
    satisfies,
    set_is_most_active,
    thinned,
    trial,
)

SIX = hs97.experiment_6(2)
FOUR = hs97.experiment_4(100, "fit")
EASY = Goal("", 14, 0.16)  # reached within a few hundred sequences


def short(goals=(EASY,), cap=900, experiment=FOUR, block=900):
    return replace(experiment, stop=WindowCriterion(0.3, goals, 100, 64, block), cap=cap)


def windowed(run):
    """Run a trial whose criterion is a window."""
    assert isinstance(run.experiment.stop, WindowCriterion)
    follow_window(run, run.experiment.stop)


# ------------------------------------------------------------------------------------------------ stopping rules


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=30), st.integers(1, 8), st.integers(1, 4),
       st.floats(0.1, 1.0), st.integers(0, 10))  # fmt: skip
def test_first_hit_is_the_first(sequence, size, fewer_than, mean, start):
    wrong = np.array([w for w, _ in sequence], bool)
    means = np.round(np.array([m for _, m in sequence], float), 3)
    expected = None
    for end in range(max(start, size - 1), len(sequence)):
        window = slice(end - size + 1, end + 1)
        if wrong[window].sum() < fewer_than and means[window].sum() / size < mean - 1e-9:
            expected = end
            break
    assert first_hit(Goal("", fewer_than, mean - 1e-9), wrong, means, size, start) == expected


def one_by_one(experiment, seed, sequences, block):
    """Train that many sequences singly, drawn in blocks of this size: errors of each, and the model."""
    run, errors = TrialState(experiment, seed), []
    while len(errors) < sequences:
        data = experiment.task.sample(min(block, experiment.cap - len(errors)), run.data)
        for k in range(min(len(data), sequences - len(errors))):
            found = run.model.train(data.take(np.array([k])))
            errors.append((float(found.largest[0]), float(found.mean[0])))
    return errors, run.model


def same_weights(model, other):
    for name, value in model.weights.items():
        np.testing.assert_allclose(value, other.weights[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("block", [50, 900])
def test_a_window_stops_at_the_very_sequence_with_its_weights(block):
    experiment = short(block=block)
    run = TrialState(experiment, 8)
    windowed(run)
    (stage,) = run.reached
    assert stage.sequences % block
    errors, model = one_by_one(experiment, 8, stage.sequences, block)
    held = []
    for n in range(100, len(errors) + 1):
        large, mean = zip(*errors[n - 100 : n])
        held.append(sum(not value < 0.3 for value in large) < 14 and np.mean(mean) < 0.16)
    assert held[-1]
    assert not any(held[:-1])
    assert isinstance(run.model, LayerModel)
    assert isinstance(model, LayerModel)
    same_weights(run.model, model)
    assert run.seen == stage.sequences == run.curve[-1][0]


class Fake(Model):
    """A model of which a test uses one method."""

    def train(self, batch):
        raise NotImplementedError

    def test(self, batch, last=False):
        raise NotImplementedError

    def outputs(self, batch):
        raise NotImplementedError

    def copy(self):
        raise NotImplementedError


class Script(Fake):
    """A model whose errors are written down beforehand; a copy goes on from the same place."""

    def __init__(self, wrong, at=0):
        self.wrong, self.at = wrong, at

    def train(self, batch):
        here = np.where(self.wrong[self.at : self.at + len(batch)], 0.9, 0.1)
        self.at += len(batch)
        return SequenceErrors(here, here, here**2)

    def copy(self):
        return Script(self.wrong, self.at)


@pytest.mark.parametrize("end", [60, 99, 100, 101, 149, 150, 151, 260])
def test_a_window_may_end_anywhere_in_a_block(end):
    """Blocks of 50 and a window of 60: right for the first time at sequence `end`, then wrong again."""
    wrong = np.ones(300, bool)
    wrong[end - 60 : end] = False
    run = TrialState(replace(FOUR, stop=WindowCriterion(0.3, (Goal(),), 60, 0, 50), cap=300), 0)
    run.model = Script(wrong)
    windowed(run)
    assert [stage.sequences for stage in run.reached] == [end] == [run.model.at]


def test_two_goals_are_reached_one_after_the_other():
    goals = (Goal("first", 20), Goal("second", 14, 0.16))
    run = TrialState(short(goals), 3)
    windowed(run)
    first, second = run.reached
    assert (first.goal, second.goal) == ("first", "second")
    alone = TrialState(short((goals[1],)), 3)
    windowed(alone)
    assert first.sequences < second.sequences == alone.reached[0].sequences
    assert isinstance(run.model, LayerModel)
    assert isinstance(alone.model, LayerModel)
    same_weights(run.model, alone.model)


def test_no_success_by_the_cap():
    record = trial(short((Goal("", 1, 0.0),), cap=1234), 0)
    assert (record.success, record.sequences, record.reached, record.example) == (False, 1234, [], None)


class Answers(Fake):
    """A model that is wrong at the given places; it counts the sequences it was tested on."""

    def __init__(self, wrong):
        self.wrong, self.asked = wrong, 0

    def test(self, batch, last=False):
        here = self.wrong[self.asked : self.asked + len(batch)]
        self.asked += len(batch)
        error = np.where(here, 0.9, 0.05)
        return SequenceErrors(error, error, error**2)


@pytest.mark.parametrize("fewer_than", [1, 6])
@pytest.mark.parametrize(
    "places", [(), (0,), (255,), (3, 40, 41, 90, 200), (3, 40, 41, 90, 200, 255), range(0, 256, 2)]
)
def test_the_test_set_is_judged_as_a_whole(fewer_than, places):
    experiment = hs97.experiment_3("a", 100, 3)
    run, wrong = TrialState(experiment, 0), np.isin(np.arange(256), list(places))
    drawn = experiment.task.sample(256, np.random.default_rng(0))
    mean = np.where(wrong, 0.9, 0.05).mean()
    for goal in (Goal("", fewer_than), Goal("", fewer_than, mean + 1e-9), Goal("", fewer_than, mean - 1e-9)):
        run.model = Answers(wrong)
        assert satisfies(run, TestCriterion(0.2, ()), goal, drawn) == (wrong.sum() < fewer_than and mean < goal.mean)
    if len(places) > 100:
        assert run.model.asked < 64, "given up early"


def test_a_fixed_test_set_is_tested_every_hundred():
    stop = TestCriterion(2.0, (Goal("ST1"), Goal("ST2")), final=64)
    run = TrialState(replace(hs97.experiment_3("a", 100, 3), stop=stop), 0)
    follow_test(run, stop)
    assert [(stage.goal, stage.sequences) for stage in run.reached] == [("ST1", 100), ("ST2", 100)]
    assert run.reached[0].test["of"] == 64


def test_legal_symbols_must_be_the_most_active():
    legal = np.array([[True, False, True], [False, True, False]])
    assert set_is_most_active(np.array([[0.6, 0.5, 0.7], [0.1, 0.2, 0.15]]), legal)
    assert not set_is_most_active(np.array([[0.6, 0.6, 0.7], [0.1, 0.2, 0.15]]), legal)
    assert not set_is_most_active(np.array([[0.6, 0.5, 0.7], [0.1, 0.2, 0.25]]), legal)
    one, other = np.array([[0.6, 0.5, 0.7], [0.1, 0.2, 0.15]]), np.array([[0.6, 0.7, 0.6], [0.1, 0.2, 0.15]])
    assert most_active_is_legal(one, legal)
    assert not most_active_is_legal(other, legal)
    assert not set_is_most_active(np.array([[np.nan, 0.5, 0.7], [0.1, 0.2, 0.15]]), legal)


def test_a_net_that_blows_up_is_given_up():
    experiment = short(experiment=replace(FOUR, learner=replace(FOUR.learner, lr=1e300)), cap=50_000)
    record = trial(experiment, 0)
    assert (record.success, record.note) == (False, "diverged")
    assert record.sequences < 5000


# ------------------------------------------------------------------------------------------------ models and records


def test_weights_start_as_the_conditions_say():
    weights = initial_weights(beyond.lstm(hs97.experiment_3("a")), np.random.default_rng(0))
    assert weights["bias_ig"].tolist() == [-1, -3, -5]
    assert weights["bias_og"].tolist() == [-2, -4, -6]
    rest = np.concatenate([w.ravel() for name, w in weights.items() if name not in ("bias_ig", "bias_og")])
    assert 0.08 < np.abs(rest).max() <= 0.1
    assert abs(rest.mean()) < 0.03


@pytest.mark.parametrize(
    "experiment",
    [SIX, hs97.experiment_4(100, "fit"), hs97.experiment_2a("fit"), hs97.experiment_2c(50, 50, "fit"),
     hs97.experiment_3("a", 100, 3, "fit"), hs97.experiment_1(3, 2, 0.5, "fit"), beyond.with_hidden_units(),
     beyond.without_output_gates()],
    ids=lambda e: e.name,
)  # fmt: skip
def test_the_example_shows_what_the_kernel_computes(experiment):
    model = LayerModel(experiment.learner, np.random.default_rng(5))
    data = experiment.task.sample(1, np.random.default_rng(6))
    life, network = inner_life(model, data.dense()), experiment.learner.network
    w = model.weights
    sources = np.hstack([data.dense(), life["cell"]]) if network.input_to_output else life["cell"]
    sources = np.hstack([life["hid"], sources]) if network.hidden_units else sources
    net = sources @ w["weight_out"].T + w.get("bias_out", 0.0)
    softmax = np.exp(net) / np.exp(net).sum(1, keepdims=True)
    outputs = {"linear": net, "logistic": 1 / (1 + np.exp(-net)), "softmax": softmax}[network.output]
    np.testing.assert_allclose(outputs, model.outputs(data), rtol=1e-10)
    shown = activity(experiment, model, np.random.default_rng(6))
    assert shown is not None
    assert len(shown["s"]) == network.cells
    assert len(shown["ig"][0]) == len(shown["s"][0]) == len(np.atleast_2d(shown["inputs"])[0])


def test_a_long_sequence_is_not_kept():
    experiment = hs97.experiment_4(500, "fit")
    model = LayerModel(beyond.lstm(experiment), np.random.default_rng(0))
    assert activity(experiment, model, np.random.default_rng(0)) is None


def test_curves_are_thinned_by_weighted_means():
    curve = [(10 * (k + 1), float(k)) for k in range(1000)]
    thin = thinned(curve)
    assert len(thin) <= 120
    assert thin[-1][0] == 10_000
    widths = np.diff([0, *(n for n, _ in thin)])
    assert (widths * [e for _, e in thin]).sum() / 10_000 == pytest.approx(499.5, rel=1e-3)
    assert thinned([(5, 0.25), (15, 0.5)]) == [(5, 0.25), (15, 0.5)]


def test_the_same_seed_gives_the_same_record_and_another_one_another():
    experiment = short()
    first, again, other = trial(experiment, 3), trial(experiment, 3), trial(experiment, 4)
    assert first == again
    assert first.curve != other.curve
    assert Record.from_dict(first.as_dict()) == first
    with pytest.raises(ValueError, match="trial: seed must be a non-negative int, got -1"):
        trial(experiment, -1)


def test_final_figures_are_those_of_fresh_sequences():
    run = TrialState(short(), 3)
    windowed(run)
    (stage,) = run.reached
    fresh = FOUR.task.sample(64, np.random.default_rng([3, 3]))
    y = run.model.outputs(fresh)[fresh.offsets[1:] - 1]
    error = np.abs(y - fresh.targets)
    assert stage.test["wrong"] == (error.max(1) >= 0.3).sum()
    assert stage.test["mean error"] == pytest.approx(error.mean(), rel=1e-12)
    assert stage.test["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)


def test_e1_is_trained_on_its_set_and_succeeds():
    record = trial(hs97.experiment_1(3, 2, 0.5, "fit"), 0)
    assert record.success
    assert record.sequences % 256 == 0


def test_a_record_depends_on_nothing_outside_the_key(monkeypatch):
    """The guess at lengths and costs orders the work; it must not touch the data."""
    first = trial(short(), 8)
    monkeypatch.setattr(type(FOUR), "length", 7.0)
    monkeypatch.setattr(type(FOUR.learner), "cost", 1e9)
    assert trial(short(), 8) == first
    assert short(block=50).settings != short().settings
