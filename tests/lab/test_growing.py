"""Sequential construction: blocks are added by the rule, and what was learned stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import longlag as ll
from longlag.lab import beyond, hs97
from longlag.lab.architecture import Architecture, Construction
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.growing import GrowingModel, failed, part_of, places
from longlag.lab.learners import LSTM97Learner
from longlag.lab.models import LayerModel
from longlag.lab.nets import initial_weights
from longlag.lab.trials import TrialState, build, follow_window, trial

GROWN = beyond.lstm(beyond.one_block_at_a_time(2))
SMALL = replace(GROWN, network=replace(GROWN.network, blocks=3), input_gate_bias=(-2.0, -4.0, -6.0))


def growing(**construction):
    return replace(SMALL, construction=Construction(**construction))


def equal(ours, wanted):
    for name, value in wanted.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_the_cell_of_2a_is_added_after_so_many_sequences():
    experiment = hs97.experiment_2a()
    learner = replace(beyond.lstm(experiment), update="step", construction=Construction(start=0, after=300))
    model = build(learner, np.random.default_rng(0))
    assert isinstance(model, GrowingModel)
    data = [experiment.task.sample(100, np.random.default_rng(k)) for k in range(4)]
    start = initial_weights(learner, np.random.default_rng(0))
    for batch in data[:3]:
        assert model.network.blocks == 0
        assert model.test(batch).largest.min() == np.inf == failed(1).largest[0]
        assert list(model.weights) == ["weight_out"]
        model.train(batch)
    assert model.complete
    grown = model.weights
    np.testing.assert_array_equal(grown["weight_out"][:, :101], model.whole["weight_out"][:, :101])
    np.testing.assert_array_equal(grown["weight_out"][:, 101], start["weight_out"][:, 101])
    assert np.abs(grown["weight_out"][:, :101] - start["weight_out"][:, :101]).max() > 1
    model.train(data[3])
    assert np.abs(model.weights["weight_ig"] - grown["weight_ig"]).max() > 0


def test_a_block_is_added_when_the_error_no_longer_falls():
    model = GrowingModel(growing(window=10, patience=2), np.random.default_rng(0))
    means = (0.5, 0.4, 0.399, 0.3, 0.299, 0.2975, 0.2, 0.3, 0.3)
    blocks = (1, 1, 1, 1, 1, 2, 2, 2, 3)  # a window without improvement, then one with: the count starts again
    for mean, wanted in zip(means, blocks):
        for _ in range(10):
            model._follow(1, mean)
        assert model.network.blocks == wanted, mean


def test_the_rule_does_not_depend_on_how_the_data_come():
    data = beyond.one_block_at_a_time(2).task.sample(60, np.random.default_rng(1))
    models = [GrowingModel(growing(window=10, patience=1, improvement=0.5), np.random.default_rng(0)) for _ in range(2)]
    whole = models[0].train(data)
    parts = [models[1].train(data.take(np.arange(k, min(k + 7, 60)))) for k in range(0, 60, 7)]
    assert models[0].network.blocks == models[1].network.blocks > 1
    np.testing.assert_array_equal(whole.mean, np.concatenate([part.mean for part in parts]))
    equal(models[0].weights, models[1].weights)


def test_learned_weights_stay_and_new_ones_are_those_drawn():
    model = GrowingModel(growing(), np.random.default_rng(0))
    drawn = initial_weights(SMALL, np.random.default_rng(0))
    model.train(hs97.experiment_6(2).task.sample(50, np.random.default_rng(1)))
    before, small = model.weights, model.network
    model.add_block()
    after, big = model.weights, model.network
    assert (small.blocks, big.blocks) == (1, 2)
    index = places(after, big, small)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name][index[name]], value)
    fresh = part_of(drawn, SMALL.network, big)
    for name, value in fresh.items():
        new = np.ones(value.shape, bool)
        new[index[name]] = False
        np.testing.assert_array_equal(after[name][new], value[new])
        assert new.any() or name == "bias_out"
    assert after["bias_ig"][1] == -4.0
    assert np.abs(before["weight_cell"] - part_of(drawn, SMALL.network, small)["weight_cell"]).max() > 0


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("gates", [True, False])
def test_blocks_are_added_where_the_layer_adds_them(hidden, gates):
    """The same rows and columns as `LSTM97.add_block`: weights that stay are found at the same places."""
    part = Architecture(3, 1, 2, 2, hidden_units=hidden, output_gates=gates)
    layer = ll.LSTM97(3, blocks=1, block_size=2, output_size=2, hidden_units=hidden, output_gates=gates)
    old = {name: value.detach().clone() for name, value in layer.named_parameters()}
    layer.add_block()
    new = {name: value.detach() for name, value in layer.named_parameters()}
    whole = replace(part, blocks=2)
    assert {name: tuple(new[name].shape) for name in whole.shapes()} == whole.shapes()
    weights = {name: value.numpy() for name, value in new.items()}
    for name, value in part_of({n: weights[n] for n in whole.shapes()}, whole, part).items():
        assert torch.equal(torch.from_numpy(value), old[name]), name


def test_a_copy_grows_alone():
    model = GrowingModel(growing(window=10, patience=1, improvement=0.9), np.random.default_rng(0))
    data = hs97.experiment_6(2).task.sample(40, np.random.default_rng(1))
    model.train(data.take(np.arange(10)))
    twin, weights = model.copy(), {name: value.copy() for name, value in model.weights.items()}
    twin.train(data)
    assert (model.network.blocks, twin.network.blocks) == (1, 3)
    equal(model.weights, weights)
    model.train(data)
    equal(model.weights, twin.weights)


def test_a_window_criterion_sees_the_same_net_when_it_goes_back():
    """A window criterion trains again up to the sequence that met the goal; blocks are added at the same place."""
    learner = growing(window=50, patience=1, improvement=0.5)
    stop = WindowCriterion(2.0, (Goal(mean=0.45),), 120, 0, 500)
    experiment = replace(beyond.one_block_at_a_time(2), learner=learner, cap=1000, stop=stop)
    state = TrialState(experiment, 3)
    follow_window(state, stop)
    (stage,) = state.reached
    alone = GrowingModel(learner, np.random.default_rng([3, 0]))
    data = experiment.task.sample(500, np.random.default_rng([3, 1]))
    alone.train(data.take(np.arange(stage.sequences)))
    assert isinstance(state.model, GrowingModel)
    assert state.model.network.blocks == alone.network.blocks == stage.test["blocks"] > 1
    equal(state.model.weights, alone.weights)


def test_6a_is_solved_one_block_at_a_time():
    record = trial(beyond.one_block_at_a_time(2), 1)
    assert record.success
    assert 1 <= record.reached[0].test["blocks"] <= 4
    assert record.example is not None
    assert len(record.example["ig"]) == record.reached[0].test["blocks"]


def test_a_network_complete_from_the_start_learns_as_without_construction():
    data = hs97.experiment_6(2).task.sample(30, np.random.default_rng(1))
    grown = GrowingModel(growing(start=3), np.random.default_rng(0))
    plain = LayerModel(replace(SMALL, construction=None), np.random.default_rng(0))
    np.testing.assert_array_equal(grown.train(data).mean, plain.train(data).mean)


def test_bad_constructions():
    with pytest.raises(ValueError, match="Construction: window must be an int of at least 1, got 0"):
        Construction(window=0)
    with pytest.raises(ValueError, match=r"construction.start must be at most blocks = 3, got 4"):
        growing(start=4)
    with pytest.raises(ValueError, match=r"construction.start = 0 needs input_to_output"):
        growing(start=0)
    with pytest.raises(ValueError, match="input_gate_bias needs 'ig' among biases"):
        LSTM97Learner(Architecture(2, 1, 1, 1), ("og",), 0.1, 0.5, (-1.0,))


def test_a_mute_block_changes_no_output_when_it_is_added():
    """The output weights of a new cell start at 0; the others are drawn as without `mute`."""
    experiment = hs97.experiment_2a()
    learner = replace(beyond.lstm(experiment), update="step")
    loud, mute = (
        GrowingModel(replace(learner, construction=Construction(start=0, after=5, mute=each)), np.random.default_rng(0))
        for each in (False, True)
    )
    batch = experiment.task.sample(2, np.random.default_rng(0))
    before = mute.outputs(batch)
    mute.add_block()
    loud.add_block()
    np.testing.assert_allclose(mute.outputs(batch), before, rtol=1e-12)
    assert not np.allclose(loud.outputs(batch), before, rtol=1e-6)
    equal({"weight_cell": mute.weights["weight_cell"]}, {"weight_cell": loud.weights["weight_cell"]})
