"""`StreamClassifier` and `StreamRegressor`: `learn.Online` with the methods of river's models."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from river import base
from torch import Tensor, nn

from longlag.estimators._made import Kind, made_layer, width
from longlag.layers import Layer
from longlag.layers.units import NotLocal
from longlag.learn import RTRL, LocalForward, Online, Rule, TruncatedRTRL, cross_entropy, squared_error


class _Stream(base.Estimator):
    """A layer, a linear read-out and their `Online` learner, which is made at the first sample."""

    layer: Kind
    hidden_size: int
    layer_options: Mapping[str, Any] | None
    rule: Rule | None
    learning_rate: float
    clip: float
    max_features: int
    seed: int

    def _begin(self) -> None:
        self.learner: Online | None = None
        self.features: dict[Any, int] = {}
        self._restarts = False

    def _outputs(self) -> int:
        raise NotImplementedError

    def _make(self) -> Online:
        """The learner before its first step; the weights depend on the seed only."""
        owner, classes = type(self).__name__, isinstance(self, base.Classifier)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layer = made_layer(
                owner, self.layer, self.max_features, self.hidden_size, self.layer_options, torch.float32
            )
            readout = nn.Linear(width(layer), self._outputs())
        weights = [p for p in [*layer.parameters(), *readout.parameters()] if p.requires_grad]
        optimizer = torch.optim.Adam(weights, lr=self.learning_rate)
        loss, rule = cross_entropy if classes else squared_error, self.rule or usual_rule(layer)
        return Online(layer, readout, loss, rule, optimizer, clip=self.clip)

    def _vector(self, x: Mapping[Any, Any]) -> Tensor:
        """The inputs (I,): 0 where a feature is absent; features that have no input yet are left out."""
        found = torch.zeros(self.max_features)
        for name, value in x.items():
            if (place := self.features.get(name)) is not None:
                found[place] = float(value)
        return found

    def _step(self, x: Mapping[Any, Any], target: Tensor | None) -> None:
        for name in sorted(x.keys() - self.features.keys(), key=str):
            if len(self.features) == self.max_features:
                raise ValueError(f"{type(self).__name__}: max_features={self.max_features} are taken, got {name!r}")
            self.features[name] = len(self.features)
        self.learner = self.learner or self._make()
        reset = torch.tensor(True) if self._restarts else None
        self.learner.step(self._vector(x), target, reset=reset)
        self._restarts = False

    def _predicted(self, x: Mapping[Any, Any]) -> Tensor | None:
        """The output of a step that is not taken; None before the first sample."""
        if self.learner is None:
            return None
        x_t = self._vector(x)
        return self.learner.predict(x_t.unsqueeze(0))[0] if self._restarts else self.learner.peek(x_t)

    def restart(self) -> None:
        """The next sample is the first of a new sequence: the layer's state and the rule's traces start again."""
        self._restarts = self.learner is not None

    # ------------------------------------------------------------------------------------------------ copies
    def __getstate__(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name != "learner"}
        if self.learner is not None:
            with tempfile.TemporaryDirectory() as folder:
                self.learner.save(Path(folder) / "learner")
                found["saved"] = (Path(folder) / "learner").read_bytes()
        return found

    def __setstate__(self, found: dict[str, Any]) -> None:
        saved = found.pop("saved", None)
        vars(self).update(found, learner=None)
        if saved is not None:
            self.learner = self._make()
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "learner").write_bytes(saved)
                self.learner.load(Path(folder) / "learner")


def usual_rule(layer: Layer) -> Rule:
    """The cheapest rule that serves a layer: exact for local units; the cuts of 1997; exact at any cost."""
    for rule, cut in ((LocalForward(), False), (TruncatedRTRL(), True)):
        try:
            layer.local_units(cut=cut)
        except NotLocal:
            continue
        return rule
    return RTRL()


class StreamClassifier(_Stream, base.Classifier):
    """A recurrent network that classifies the steps of a stream and learns after each; a classifier of river.

    `predict_one` and `predict_proba_one` look one step ahead and change nothing; `learn_one` takes the step. A sample
    without a class (``learn_one(x, None)``) moves the state only. Features may come and go: one that is absent is 0.
    Scale features before, for example with ``river.preprocessing.StandardScaler() | StreamClassifier()``.

    Args:
        layer, hidden_size, layer_options: as in `RecurrentClassifier`.
        rule: of `longlag.learn`; None: `LocalForward` for local layers, else `TruncatedRTRL` where it serves the layer,
            else `RTRL`.
        learning_rate: of Adam.
        clip: largest norm of the gradients.
        max_features, max_classes: inputs and outputs of the network. Features and classes take them as they appear.
        seed: of the weights.

    Attributes:
        learner: the `learn.Online`, None before the first sample; features: name -> input; classes, by output.

    >>> import longlag as ll
    >>> from river import evaluate, metrics
    >>> model = ll.estimators.StreamClassifier("lstm", 8)
    >>> stream = [({"x": float(k % 3 == 0)}, k % 3) for k in range(600)]  # a counter to three
    >>> evaluate.progressive_val_score(stream[:400], model, metrics.Accuracy()).get() > 0.8
    True
    """

    def __init__(
        self,
        layer: Kind = "lstm",
        hidden_size: int = 16,
        layer_options: Mapping[str, Any] | None = None,
        rule: Rule | None = None,
        learning_rate: float = 0.01,
        clip: float = 1.0,
        max_features: int = 32,
        max_classes: int = 16,
        seed: int = 0,
    ) -> None:
        self.layer, self.hidden_size, self.layer_options, self.rule = layer, hidden_size, layer_options, rule
        self.learning_rate, self.clip, self.seed = learning_rate, clip, seed
        self.max_features, self.max_classes = max_features, max_classes
        self.classes: list[Any] = []
        self._begin()

    @property
    def _multiclass(self) -> bool:
        return True

    def _outputs(self) -> int:
        return self.max_classes

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Take a step of the stream, and learn its class unless that is None."""
        if y is not None and y not in self.classes:
            if len(self.classes) == self.max_classes:
                raise ValueError(f"StreamClassifier: max_classes={self.max_classes} are taken, got another: {y!r}")
            self.classes.append(y)
        self._step(x, None if y is None else torch.tensor(self.classes.index(y)))

    def predict_proba_one(self, x: dict[Any, Any], **_: Any) -> dict[Any, float]:
        """The probability of each class that has appeared."""
        output = self._predicted(x)
        if output is None or not self.classes:
            return {}
        found = torch.softmax(output[: len(self.classes)].double(), -1)
        return dict(zip(self.classes, found.tolist()))


class StreamRegressor(_Stream, base.Regressor):
    """A recurrent network that predicts the steps of a stream and learns after each; a regressor of river.

    As `StreamClassifier`, with numbers for classes and the squared error; predictions before the first sample are 0.
    Scale targets too: ``river.preprocessing.TargetStandardScaler(StreamRegressor())``.

    Attributes:
        learner: the `learn.Online`, None before the first sample; features: name -> input.

    >>> import math, longlag as ll
    >>> from river import evaluate, metrics
    >>> wave = [math.sin(k / 5) for k in range(601)]
    >>> stream = [({"now": now}, after) for now, after in zip(wave, wave[1:])]
    >>> evaluate.progressive_val_score(stream, ll.estimators.StreamRegressor("lstm", 8), metrics.MAE()).get() < 0.3
    True
    """

    def __init__(
        self,
        layer: Kind = "lstm",
        hidden_size: int = 16,
        layer_options: Mapping[str, Any] | None = None,
        rule: Rule | None = None,
        learning_rate: float = 0.01,
        clip: float = 1.0,
        max_features: int = 32,
        seed: int = 0,
    ) -> None:
        self.layer, self.hidden_size, self.layer_options, self.rule = layer, hidden_size, layer_options, rule
        self.learning_rate, self.clip, self.max_features, self.seed = learning_rate, clip, max_features, seed
        self._begin()

    def _outputs(self) -> int:
        return 1

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Take a step of the stream, and learn its target unless that is None."""
        if y is not None and not math.isfinite(y):
            raise ValueError(f"StreamRegressor: y must be finite, got {y}")
        self._step(x, None if y is None else torch.tensor([float(y)]))

    def predict_one(self, x: dict[Any, Any], **_: Any) -> float:
        """The target expected at this step."""
        output = self._predicted(x)
        return 0.0 if output is None else float(output)
