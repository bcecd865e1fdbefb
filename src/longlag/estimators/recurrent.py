"""`RecurrentClassifier` and `RecurrentRegressor`: estimators of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)
from torch import Tensor, nn
from torch.nn import functional as F

from longlag.estimators._made import Kind, made_layer, width
from longlag.estimators._sequences import Arrays, Scaling, padded, read, read_steps
from longlag.layers import Layer


class Network(nn.Module):
    """A layer and a linear read-out: of every step, or of the end of each sequence."""

    def __init__(self, layer: Layer, outputs: int, per_step: bool) -> None:
        super().__init__()
        self.layer, self.per_step = layer, per_step
        self.readout = nn.Linear(width(layer), outputs, dtype=layer.dtype)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (T, B, F) -> (T, B, outputs) or (B, outputs)."""
        x = x.transpose(0, 1) if self.layer.batch_first else x
        y, _ = self.layer(x, lengths=lengths)
        y = y.transpose(0, 1) if self.layer.batch_first else y
        return self.readout(y if self.per_step else self._end(y, lengths))

    def _end(self, y: Tensor, lengths: Tensor) -> Tensor:
        """(B, O): the last step of each sequence; for units that read backwards, the first."""
        last = y[lengths - 1, torch.arange(len(lengths))]
        if not self.layer.bidirectional:
            return last
        half = y.shape[-1] // 2
        return torch.cat([last[:, :half], y[0, :, half:]], -1)


class _Recurrent(BaseEstimator):
    """Arguments, training and prediction of both estimators."""

    def __init__(
        self,
        layer: Kind = "lstm",
        hidden_size: int = 32,
        *,
        layer_options: Mapping[str, Any] | None = None,
        per_step: bool = False,
        epochs: int = 50,
        batch_size: int = 32,
        learning_rate: float = 0.01,
        weight_decay: float = 0.0,
        clip: float = 1.0,
        dtype: str = "float64",
        random_state: Any = None,
    ) -> None:
        self.layer = layer
        self.hidden_size = hidden_size
        self.layer_options = layer_options
        self.per_step = per_step
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip = clip
        self.dtype = dtype
        self.random_state = random_state

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def _train(self, xs: Arrays, targets: Arrays, outputs: int, kind: torch.dtype | None = None) -> Self:
        """Minimise the mean loss; targets are (T, …) per sequence, or (1, …) at its end, numbers or of another kind."""
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"{type(self).__name__}: dtype must be 'float32' or 'float64', got {self.dtype!r}")
        owner, precision = type(self).__name__, getattr(torch, self.dtype)
        self.scaling_ = Scaling(np.concatenate(xs))
        xs = [self.scaling_(x) for x in xs]
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.loss_curve_: list[float] = []
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            layer = made_layer(owner, self.layer, xs[0].shape[1], self.hidden_size, self.layer_options, precision)
            self.network_ = Network(layer, outputs, self.per_step).train()
            trained = [p for p in self.network_.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=self.learning_rate, weight_decay=self.weight_decay)
            for _ in range(self.epochs):
                total = 0.0
                for chosen in torch.randperm(len(xs)).split(self.batch_size):
                    x, lengths = padded([xs[k] for k in chosen], precision)
                    target, scored = padded([targets[k] for k in chosen], kind or precision)
                    output = self.network_(x, lengths)
                    output = output if self.per_step else output.unsqueeze(0)
                    used = torch.arange(len(target))[:, None] < scored
                    loss = self._loss(output[used], target[used])
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(trained, self.clip)
                    optimizer.step()
                    total += float(loss.detach()) * len(chosen)
                self.loss_curve_.append(total / len(xs))
        self.network_.eval()
        return self

    def _outputs(self, X: Any) -> Arrays:
        """The read-out per sequence: (T, outputs), or (1, outputs) at its end."""
        check_is_fitted(self)
        return list(self._run([self.scaling_(x) for x in read(self, X, reset=False)]))

    @torch.no_grad()
    def _run(self, xs: Arrays) -> Iterator[np.ndarray]:
        for first in range(0, len(xs), self.batch_size):
            x, lengths = padded(xs[first : first + self.batch_size], getattr(torch, self.dtype))
            output = self.network_(x, lengths)
            if self.per_step:
                yield from (output[:n, k].double().numpy() for k, n in enumerate(lengths))
            else:
                yield from output.unsqueeze(1).double().numpy()


class RecurrentClassifier(ClassifierMixin, _Recurrent):
    """A recurrent network that classifies sequences, or every step of them; an estimator of scikit-learn.

    X is a list of sequences (T, F) or (T,), or an array (B, T, F) in which steps of NaN at the end of a sequence are
    padding, or a table (B, T): each row is a sequence of T numbers. Inputs are standardised over all steps.

    Args:
        layer: ``"lstm"``, ``"gru"``, ``"elman"``, ``"leaky"``, ``"local"``, the name of a cell in `longlag.cells`, a
            cell, or a callable ``layer(input_size, hidden_size, **layer_options)`` such as a class of layers.
        hidden_size: number of units.
        layer_options: further arguments of the layer, such as ``{"num_layers": 2, "bidirectional": True}``.
        per_step: y holds a class for every step (a list of arrays, or an array padded like X), and so does what
            `predict` returns; otherwise one class per sequence.
        epochs, batch_size, learning_rate, weight_decay: of AdamW, on the cross-entropy.
        clip: largest norm of the gradients.
        dtype: ``"float64"``, as estimators of scikit-learn compute, or ``"float32"``, which is faster; a prediction in
            float32 may depend on the batch it is made in, by rounding.
        random_state: seed of weights and of the order of the sequences.

    Attributes:
        classes_: the classes; network_: the trained module; loss_curve_: mean loss per epoch.

    >>> import numpy as np, longlag as ll
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.standard_normal((length, 2)) for length in rng.integers(5, 12, size=60)]
    >>> y = ["rises" if x[-1, 0] > 0 else "falls" for x in X]
    >>> net = ll.estimators.RecurrentClassifier("gru", 8, random_state=0).fit(X, y)
    >>> net.score(X, y) > 0.95
    True
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Train on sequences and their classes."""
        if y is None:
            raise ValueError(f"{type(self).__name__}: requires y to be passed, but the target y is None")
        xs = read(self, X, reset=True)
        check_consistent_length(xs, y)
        labels = read_steps(type(self).__name__, y, xs) if self.per_step else list(column_or_1d(y, warn=True)[:, None])
        joined = np.concatenate(labels)
        assert_all_finite(joined, input_name="y")
        check_classification_targets(joined)
        self.classes_ = np.unique(joined)
        targets = [np.searchsorted(self.classes_, label) for label in labels]
        return self._train(xs, targets, len(self.classes_), torch.int64)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class: (B, classes), or a list of (T, classes) if ``per_step``."""
        exponents = [np.exp(z - z.max(-1, keepdims=True)) for z in self._outputs(X)]
        found = [e / e.sum(-1, keepdims=True) for e in exponents]
        return found if self.per_step else np.concatenate(found)

    def predict(self, X: Any) -> Any:
        """The most probable classes: (B,), or a list of (T,) if ``per_step``."""
        found = [self.classes_[z.argmax(-1)] for z in self._outputs(X)]
        return found if self.per_step else np.concatenate(found)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right classes, of all steps if ``per_step``."""
        if not self.per_step:
            return super().score(X, y, sample_weight)
        found = self.predict(X)
        return float(np.mean(np.concatenate(found) == np.concatenate(read_steps(type(self).__name__, y, found))))


class RecurrentRegressor(RegressorMixin, _Recurrent):
    """A recurrent network that maps sequences, or every step of them, to numbers; an estimator of scikit-learn.

    The arguments, and what X may be, are those of `RecurrentClassifier`. y is (B,) or (B, outputs); if ``per_step``,
    a list of arrays (T,) or (T, outputs), or an array padded like X. Inputs and targets are standardised; the loss is
    the mean squared error.

    Attributes:
        network_: the trained module; loss_curve_: mean loss of the standardised targets per epoch.

    >>> import numpy as np, longlag as ll
    >>> waves = np.sin(np.arange(24) / 3 + np.arange(40)[:, None])
    >>> X, y = waves[:, :20], waves[:, 20:]  # 20 numbers in, the next 4 out
    >>> net = ll.estimators.RecurrentRegressor("leaky", 16, random_state=0).fit(X, y)
    >>> net.score(X, y) > 0.95, net.predict(X).shape
    (True, (40, 4))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on sequences and their targets."""
        if y is None:
            raise ValueError(f"{type(self).__name__}: requires y to be passed, but the target y is None")
        xs = read(self, X, reset=True)
        check_consistent_length(xs, y)
        if self.per_step:
            targets = read_steps(type(self).__name__, y, xs)
        else:
            targets = list(check_array(y, ensure_2d=False, dtype="float64", input_name="y")[:, None])
        self._single = targets[0].ndim == 1
        targets = [np.asarray(target, float).reshape(len(target), -1) for target in targets]
        self.target_scaling_ = Scaling(np.concatenate(targets))
        targets = [self.target_scaling_(target) for target in targets]
        return self._train(xs, targets, targets[0].shape[1])

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output, target)

    def predict(self, X: Any) -> Any:
        """The targets: (B,) or (B, outputs), or a list of (T,) or (T, outputs) if ``per_step``."""
        found = [self.target_scaling_.back(z) for z in self._outputs(X)]
        found = [z[:, 0] for z in found] if self._single else found
        return found if self.per_step else np.concatenate(found)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R², of all steps if ``per_step``."""
        from sklearn.metrics import r2_score

        if not self.per_step:
            return super().score(X, y, sample_weight)
        found = self.predict(X)
        return float(r2_score(np.concatenate(read_steps(type(self).__name__, y, found)), np.concatenate(found)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
