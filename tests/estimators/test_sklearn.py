"""The estimators of scikit-learn: its own checks, and what they compute on sequences."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import longlag as ll
from longlag.estimators import EchoStateRegressor, RecurrentClassifier, RecurrentRegressor

SMALL = {"hidden_size": 8, "epochs": 30}


@parametrize_with_checks([RecurrentClassifier(**SMALL), RecurrentRegressor(**SMALL), EchoStateRegressor()])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
