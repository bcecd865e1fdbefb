"""The estimators of river: its own checks, and that a step is one of `learn.Online`."""

import pytest
from river.checks import yield_checks

from longlag.estimators import StreamClassifier, StreamRegressor

MODELS = [StreamClassifier(hidden_size=4), StreamRegressor(hidden_size=4)]
CHECKS = [(model, check) for model in MODELS for check in yield_checks(model)]


@pytest.mark.parametrize(("model", "check"), CHECKS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_checks_of_river(model, check):
    check(model.clone())
