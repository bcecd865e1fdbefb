"""The estimators of scikit-learn: its own checks, and what they compute on sequences."""

import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import longlag as ll
from longlag.estimators import EchoStateRegressor, RecurrentClassifier, RecurrentRegressor

SMALL = {"hidden_size": 8, "epochs": 30, "learning_rate": 0.02}


@parametrize_with_checks([RecurrentClassifier(**SMALL), RecurrentRegressor(**SMALL), EchoStateRegressor()])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def ragged(count=24, seed=0):
    """Sequences of 2 features, and whether feature 0 was positive one step ago, per step."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((length, 2)) for length in rng.integers(2, 9, size=count)]
    return X, [np.array(["no", *np.where(x[:-1, 0] > 0, "yes", "no")]) for x in X]


def with_padding(arrays, value):
    longest = max(map(len, arrays))
    return np.stack([np.concatenate([a, np.full((longest - len(a), *a.shape[1:]), value)]) for a in arrays])


@pytest.mark.parametrize("per_step", [False, True])
def test_lists_and_padded_arrays_are_the_same_sequences(per_step):
    X, labels = ragged()
    y = labels if per_step else [label[-1] for label in labels]
    options = {"layer": "lstm", "per_step": per_step, "layer_options": {"bidirectional": True}, "random_state": 0}
    options = {**options, **SMALL, "epochs": 60}
    listed = RecurrentClassifier(**options).fit(X, y)
    array = with_padding(X, np.nan)
    stacked = RecurrentClassifier(**options).fit(array, with_padding(y, "?") if per_step else y)
    alone = [listed.predict_proba([x])[0] for x in X]  # no padding at all
    for one, two, three in zip(listed.predict_proba(X), stacked.predict_proba(array), alone):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, three, atol=1e-6)
    assert listed.score(X, y) > 0.9


def test_the_end_of_a_sequence_is_read_in_both_directions():
    X, _ = ragged()
    options = {"layer_options": {"bidirectional": True}, "epochs": 1, "random_state": 0}
    net = RecurrentRegressor("lstm", 8, **options).fit(X, [len(x) for x in X])
    network, found = net.network_, net.predict(X)
    for x, y in zip(X, found):
        outputs, _ = network.layer(network.readout.weight.new_tensor(net.scaling_(x)))
        ends = torch.cat([outputs[-1, :8], outputs[0, 8:]])  # the last step forwards, the first step backwards
        assert net.target_scaling_.back(network.readout(ends).detach().numpy())[0] == pytest.approx(y, abs=1e-5)


def test_an_echo_state_network_solves_the_ridge_regression():
    X, _ = ragged()
    y = np.array([[x[0, 0] + x[-1, 1], len(x)] for x in X])
    net = EchoStateRegressor(15, ridge=0.1, density=1.0, random_state=0).fit(X, y)
    ends = []
    for x in X:
        scaled = net.network_.any_weight.new_tensor(net.scaling_(x))
        ends.append(np.concatenate([net.network_.reservoir(scaled)[0][-1].numpy(), scaled[-1].numpy()]))
    expected = Ridge(0.1).fit(ends, y).predict(ends)
    np.testing.assert_allclose(net.predict(X), expected, rtol=1e-9)


def test_an_echo_state_network_per_step():
    wave = np.sin(np.arange(300) / 5)
    net = EchoStateRegressor(40, warmup=30, per_step=True, random_state=0).fit([wave[:-1]], [wave[1:]])
    (found,) = net.predict([wave[:-1]])
    assert found.shape == (299,)
    assert np.abs(found - wave[1:])[30:].max() < 1e-3
    assert net.network_.warmup == 30


@pytest.mark.parametrize("layer", [ll.cells.mgu, "mgu", ll.LocalFeedback])
def test_layers_by_name_cell_or_class(layer):
    X, labels = ragged()
    net = RecurrentClassifier(layer, 3, epochs=1, random_state=0).fit(X, [label[-1] for label in labels])
    assert net.network_.layer.cell is (ll.cells.mgu if layer is not ll.LocalFeedback else ll.cells.net_feedback)


def test_a_grid_search_takes_lists_of_sequences():
    X, labels = ragged(48)
    search = GridSearchCV(RecurrentClassifier(**SMALL, per_step=True, random_state=0), {"epochs": [0, 30]}, cv=2)
    search.fit(X, labels)
    assert search.best_params_ == {"epochs": 30}
    assert search.best_score_ > 0.85


@pytest.mark.parametrize(
    ("arguments", "X", "y", "message"),
    [
        ({}, [np.ones((3, 2)), np.ones((3, 1))], [0, 1], r"RecurrentRegressor: X\[1\] must have 2 features.* got 1"),
        ({}, [np.ones((3, 2)), np.full((2, 2), np.nan)], [0, 1], r"X\[1\] must be finite"),
        ({}, np.full((2, 3, 1), np.nan), [0, 1], r"X\[0\] must have steps and features, got shape \(0, 1\)"),
        ({"per_step": True}, [np.ones(3), np.ones(2)], [np.ones(3), np.ones(3)], r"y\[1\] must have one target for"),
        ({"layer": "lstn"}, [[0.0], [1.0]], [0, 1], r"layer must be 'elman'.* got 'lstn'"),
        ({"dtype": "float16"}, [[0.0], [1.0]], [0, 1], r"dtype must be 'float32' or 'float64', got 'float16'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, X, y, message):
    with pytest.raises(ValueError, match=message):
        RecurrentRegressor(**arguments).fit(X, y)


@pytest.mark.parametrize(("name", "extra"), [("RecurrentClassifier", "sklearn"), ("StreamRegressor", "river")])
def test_a_missing_extra_is_named(monkeypatch, name, extra):
    module = {"sklearn": "recurrent", "river": "stream"}[extra]
    monkeypatch.delitem(sys.modules, f"longlag.estimators.{module}", raising=False)
    for loaded in [found for found in sys.modules if found.partition(".")[0] == extra]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ModuleNotFoundError, match=rf'{name} needs {extra}: pip install "longlag\[{extra}\]"'):
        getattr(ll.estimators, name)
