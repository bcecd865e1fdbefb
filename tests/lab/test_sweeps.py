"""Sweeps: any field, rates and pictures; the store tells variants apart."""

from dataclasses import replace

import pytest

from longlag import lab
from longlag.lab import hs97
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.sweeps import Sweep, sweep, with_field
from longlag.lab.trials import Record, trial

FOUR = replace(hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=400)


def test_a_field_however_deep():
    assert with_field(FOUR, "cap", 7) == replace(FOUR, cap=7)
    deep = with_field(FOUR, "learner.network.output", "logistic")
    assert deep.learner.network.output == "logistic"
    assert with_field(deep, "learner.network.output", "linear") == FOUR
    with pytest.raises(ValueError, match=r"sweep: field must be one of \['network', .* in LSTM97Learner, got 'rate'"):
        with_field(FOUR, "learner.rate", 1)
    with pytest.raises(ValueError, match=r"sweep: field must be one of .* in float, got 'x'"):
        with_field(FOUR, "learner.lr.x", 1)


def test_each_value_has_its_own_trials(tmp_path):
    found = sweep(FOUR, "learner.lr", [0.1, 0.5], tmp_path, trials=2, jobs=1)
    for value, records in zip(found.values, found.records):
        assert list(records) == [trial(with_field(FOUR, "learner.lr", value), seed) for seed in (0, 1)]
    assert found.records[0] != found.records[1]
    found.plot(tmp_path / "sweep.svg")
    assert "learner.lr" in (tmp_path / "sweep.svg").read_text()


def test_rates_and_means():
    def record(success, n):
        return Record("x", "text", 0, success, n, [], [])

    found = Sweep("f", (1, 2), ((record(True, 10), record(True, 30), record(False, 99)), (record(False, 5),)))
    assert found.rates() == [2 / 3, 0.0]
    assert found.means() == [20, None]


def test_a_change_of_several_fields(tmp_path):
    def closed(experiment, bias):
        return with_field(with_field(experiment, "learner.input_gate_bias", (bias, 2 * bias)), "learner.lr", 0.25)

    found = sweep(FOUR, "bias", [-1.0], tmp_path, trials=1, jobs=1, change=closed)
    assert found.records[0][0] == trial(closed(FOUR, -1.0), 0)
    with pytest.raises(ValueError, match="sweep: values must not be empty"):
        sweep(FOUR, "learner.lr", [], tmp_path)


def test_the_laboratory_loads_its_kernels_late():
    assert lab.sweep is sweep
    assert lab.trial is trial
    with pytest.raises(AttributeError, match="has no attribute 'swoop'"):
        lab.swoop  # noqa: B018


@pytest.mark.parametrize("experiment", [hs97.experiment_1(3, 2, 0.5), FOUR], ids=["gate biases given", "random biases"])
def test_output_gates_may_be_swept(tmp_path, experiment):
    """D15: a network without output gates has no biases of theirs, whatever `biases` names."""
    experiment = replace(experiment, cap=300)
    found = sweep(experiment, "learner.network.output_gates", [True, False], tmp_path, trials=1, jobs=1)
    assert found.records[0] != found.records[1]
    shapes = with_field(experiment, "learner.network.output_gates", False).learner.shapes()
    assert not [name for name in shapes if name.endswith("_og")]
