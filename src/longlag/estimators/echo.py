"""`EchoStateRegressor`: an echo state network as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted

from longlag.estimators._sequences import Scaling, padded, read, read_steps
from longlag.layers import EchoState


class EchoStateRegressor(RegressorMixin, BaseEstimator):
    """An echo state network (`longlag.EchoState`) that maps sequences to numbers; an estimator of scikit-learn.

    X and y are those of `RecurrentRegressor`. Inputs are standardised. One long series with a target per step:
    ``EchoStateRegressor(per_step=True).fit([x], [y])``. The network computes in float64.

    Args:
        hidden_size, spectral_radius, leak, density, input_scale, bias_scale, ridge: as in `longlag.EchoState`.
        warmup: if ``per_step``, the first steps of every sequence, which have no part in `fit`.
        per_step: y holds a target for every step; otherwise the read-out sees the end of each sequence.
        random_state: seed of the reservoir.

    Attributes:
        network_: the `longlag.EchoState`.

    >>> import numpy as np, longlag as ll
    >>> x = np.sin(np.arange(400) / 5)
    >>> net = ll.estimators.EchoStateRegressor(50, warmup=50, per_step=True, random_state=0)
    >>> net.fit([x[:-1]], [x[1:]]).score([x[:-1]], [x[1:]]) > 0.999
    True
    """

    def __init__(
        self,
        hidden_size: int = 100,
        *,
        spectral_radius: float = 0.9,
        leak: float = 1.0,
        density: float = 0.1,
        input_scale: float = 1.0,
        bias_scale: float = 0.0,
        ridge: float = 1e-6,
        warmup: int = 0,
        per_step: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden_size = hidden_size
        self.spectral_radius = spectral_radius
        self.leak = leak
        self.density = density
        self.input_scale = input_scale
        self.bias_scale = bias_scale
        self.ridge = ridge
        self.warmup = warmup
        self.per_step = per_step
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Draw the reservoir, run it over the sequences, solve for the read-out."""
        owner = type(self).__name__
        if y is None:
            raise ValueError(f"{owner}: requires y to be passed, but the target y is None")
        xs = read(self, X, reset=True)
        check_consistent_length(xs, y)
        if self.per_step:
            targets = read_steps(owner, y, xs)
        else:
            targets = list(check_array(y, ensure_2d=False, dtype="float64", input_name="y")[:, None])
        self._single = targets[0].ndim == 1
        targets = [np.asarray(target, float).reshape(len(target), -1) for target in targets]
        self.scaling_ = Scaling(np.concatenate(xs))
        self.network_ = EchoState(
            xs[0].shape[1], self.hidden_size, targets[0].shape[1], spectral_radius=self.spectral_radius,
            leak=self.leak, density=self.density, input_scale=self.input_scale, bias_scale=self.bias_scale,
            ridge=self.ridge, warmup=self.warmup if self.per_step else 0,
            seed=check_random_state(self.random_state).randint(2**31 - 1), dtype=torch.float64,
        )  # fmt: skip
        x, lengths = padded([self.scaling_(x) for x in xs], torch.float64)
        if self.per_step:
            self.network_.fit(x, padded(targets, torch.float64)[0], lengths=lengths)
        else:
            ends = torch.arange(len(x))[:, None] == lengths - 1
            target = torch.as_tensor(np.concatenate(targets)).expand(len(x), -1, -1)
            self.network_.fit(x, target, lengths=lengths, scored=ends)
        return self

    def predict(self, X: Any) -> Any:
        """The targets: (B,) or (B, outputs), or a list of (T,) or (T, outputs) if ``per_step``."""
        check_is_fitted(self)
        x, lengths = padded([self.scaling_(x) for x in read(self, X, reset=False)], torch.float64)
        y = self.network_.predict(x, lengths=lengths).numpy()
        y = y[..., 0] if self._single else y
        if self.per_step:
            return [y[:n, k] for k, n in enumerate(lengths)]
        return y[lengths - 1, np.arange(len(lengths))]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R², of all steps if ``per_step``."""
        if not self.per_step:
            return super().score(X, y, sample_weight)
        found = self.predict(X)
        return float(r2_score(np.concatenate(read_steps(type(self).__name__, y, found)), np.concatenate(found)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
