"""The estimators of river: its own checks, and that a step is one of `learn.Online`."""

import math
import pickle

import pytest
import torch
from river import datasets, evaluate, metrics, preprocessing
from river.checks import yield_checks

import longlag as ll
from longlag.estimators import StreamClassifier, StreamRegressor
from longlag.estimators.stream import usual_rule
from longlag.learn import RTRL, LocalForward, Online, TruncatedRTRL, cross_entropy

MODELS = [StreamClassifier(hidden_size=8), StreamRegressor(hidden_size=8)]
CHECKS = [(model, check) for model in MODELS for check in yield_checks(model)]


@pytest.mark.parametrize(("model", "check"), CHECKS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_checks_of_river(model, check):
    check(model.clone())


def samples(count):
    """A counter to three, with a feature that disappears and a class that comes late."""
    for k in range(count):
        yield {"mark": float(k % 3 == 0), **({"even": float(k % 2)} if k < 9 else {})}, f"{k % 3}"


def test_a_step_is_one_of_online():
    model = StreamClassifier("lstm", 8, seed=3, rule=TruncatedRTRL())
    torch.manual_seed(3)
    layer, readout = ll.LSTM(32, 8), torch.nn.Linear(8, 16)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=0.01)
    learner = Online(layer, readout, cross_entropy, TruncatedRTRL(), optimizer, clip=1.0)
    learner.plan("python")
    for k, (x, y) in enumerate(samples(15)):
        if k == 12:
            model.restart()
        x_t = torch.tensor([x.get("even", 0.0), x["mark"], *[0.0] * 30])
        seen = min(k, 3)
        found = model.predict_proba_one(x)
        output = learner.step(x_t, None if k == 7 else torch.tensor(k % 3), reset=torch.tensor(k == 12))
        expected = torch.softmax(output[:seen].double(), -1)
        assert list(found) == ["0", "1", "2"][:seen]
        torch.testing.assert_close(torch.tensor(list(found.values())), expected, rtol=0, atol=1e-5, check_dtype=False)
        model.learn_one(x, None if k == 7 else y)
    assert model.features == {"even": 0, "mark": 1}


def test_looking_ahead_changes_nothing_and_a_copy_goes_on():
    model = StreamRegressor(hidden_size=8)
    stream = [({"now": math.sin(k / 5)}, math.sin((k + 1) / 5)) for k in range(40)]
    for x, y in stream[:20]:
        model.learn_one(x, y)
    twin = pickle.loads(pickle.dumps(model))
    for x, y in stream[20:]:
        expected = model.predict_one(x)
        assert model.predict_one(x) == expected
        assert twin.predict_one({**x, "unknown": 1.0}) == expected
        model.learn_one(x, y)
        twin.learn_one(x, y)


def test_a_stream_of_river_is_learned():
    """Phishing is shuffled, so a memory does not help; the network must do as well as river's logistic regression."""
    model = preprocessing.StandardScaler() | StreamClassifier(hidden_size=8)
    accuracy = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())
    assert accuracy.get() > 0.85
    assert model["StreamClassifier"].learner.engine_for()[0] == "cpu"


@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        (ll.LocalFeedback(2, 3), LocalForward),
        (ll.LSTM97(2, 2), TruncatedRTRL),
        (ll.GRU(2, 3), TruncatedRTRL),
        (ll.GRU(2, 3, num_layers=2), RTRL),
    ],
)
def test_the_rule_that_is_chosen(layer, rule):
    assert type(usual_rule(layer)) is rule


def test_what_does_not_fit_is_refused_by_name():
    model = StreamClassifier(max_features=1, max_classes=1)
    model.learn_one({"x": 1}, "a")
    with pytest.raises(ValueError, match="StreamClassifier: max_classes=1 are taken, got another: 'b'"):
        model.learn_one({"x": 1}, "b")
    with pytest.raises(ValueError, match="StreamClassifier: max_features=1 are taken, got 'y'"):
        model.learn_one({"x": 1, "y": 2}, "a")
    with pytest.raises(ValueError, match="StreamRegressor: y must be finite, got nan"):
        StreamRegressor().learn_one({"x": 1}, math.nan)
    with pytest.raises(ValueError, match=r"StreamRegressor: layer must be .* got 'lstn'"):
        StreamRegressor("lstn").learn_one({"x": 1}, 1)
