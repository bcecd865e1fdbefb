"""Learning from an endless stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longlag.layers import Layer, validation
from longlag.learn import _saving
from longlag.learn._rule import Rule
from longlag.learn._state import from_numpy, mapped
from longlag.learn._streaming import HORIZON, Streaming, diverged, warn_skipped

SKIPS = 10  # skipped updates in a row that cause a warning


class Online(Streaming):
    """Learns from a stream, one step at a time, without storing the past.

    At every step the layer and the rule's trace advance. If there is a target, the loss of the read-out's output gives
    the error dL/dy(t), and the rule turns the error into gradients. After every ``every`` steps the optimiser uses the
    sum of the gradients.

    A state or a loss that is not finite raises; no parameter changes in that step. An update whose gradients are not
    finite is skipped; 10 skipped updates in a row cause a RuntimeWarning.

    Args:
        layer: any layer that the rule supports.
        readout: a module on the layer's output, trained too; None if the layer's output is the prediction.
        loss: ``loss(output, target)``, or ``loss(output, target, mask)`` where a mask is given; see
            `longlag.learn.losses`. Any function that returns a scalar tensor.
        rule: how errors become gradients of the layer.
        optimizer: over the parameters of layer and read-out. The learner sets and clears their ``grad``.
        every: steps from one update to the next.
        clip: largest global norm ν of the gradients; beyond it they are scaled by clip/ν [CLIP 5].
        detector: of drift: any object with a method ``update(value)``, which is given the loss of every scored step,
            and an attribute ``drift_detected``, such as ``ADWIN`` or ``PageHinkley`` of the package river.

    Attributes:
        steps, updates: their numbers; skipped: number of updates skipped because a gradient was not finite.
        loss_now: the loss of the last scored step; running_loss: its exponential mean over some 100 scored steps.
        gradient_norm: ν of the last update, before clipping.
        drift_detected: whether the detector signalled in the last `step` or `run`; drifts: all steps at which it did.

    >>> import torch, longlag as ll
    >>> layer, readout = ll.LocalFeedback(1, 8), torch.nn.Linear(8, 1)
    >>> optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=0.01)
    >>> learner = ll.learn.Online(layer, readout, ll.learn.squared_error, ll.learn.LocalForward(), optimizer)
    >>> x = torch.sin(torch.arange(300.0) / 5).view(-1, 1, 1)
    >>> for x_t, target in zip(x, x[1:]):
    ...     output = learner.step(x_t, target)
    >>> learner.steps, learner.running_loss < 0.1
    (299, True)
    """

    def __init__(
        self,
        layer: Layer,
        readout: nn.Module | None,
        loss: Callable[..., Tensor],
        rule: Rule,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 1,
        clip: float | None = None,
        detector: Any = None,
    ) -> None:
        if not isinstance(rule, Rule):
            raise TypeError(f"Online: rule must be a rule of longlag.learn, got {type(rule).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("Online: optimizer must not need the loss again, as LBFGS does: the past is gone")
        if clip is not None and not clip > 0:
            raise ValueError(f"Online: clip must be positive, got {clip!r}")
        self.layer, self.readout, self.loss, self.rule, self.optimizer = layer, readout, loss, rule, optimizer
        if detector is not None and not (
            callable(getattr(detector, "update", None)) and hasattr(detector, "drift_detected")
        ):
            got = type(detector).__name__
            raise TypeError(f"Online: detector must have update(value) and drift_detected, got {got}")
        self.detector, self.drift_detected, self.drifts = detector, False, list[int]()
        self.every, self.clip = validation.positive("Online", "every", every), clip
        self.steps = self.updates = self.skipped = self._scored = 0
        self._skipped_in_a_row = 0
        self.loss_now, self.running_loss, self.gradient_norm = math.nan, math.nan, math.nan
        self._begin()
        self.trace = rule.start(layer, 1)  # raises for an unsupported layer; replaced at the first step
        self._errors: list[Tensor | None] = []  # of the steps not yet back-propagated, for rules that take several
        self._parameters = dict(layer.named_parameters())
        self._read = [] if readout is None else [p for p in readout.parameters() if p.requires_grad]
        self._trained = [*(p for p in self._parameters.values() if p.requires_grad), *self._read]
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in held for p in self._trained):
            raise ValueError("Online: optimizer must hold parameters of layer or readout, got none of them")

    # ------------------------------------------------------------------------------------------------------ step
    def step(
        self,
        x_t: Tensor | Any,
        target: Tensor | Any | None = None,
        mask: Tensor | Any | None = None,
        *,
        active: Tensor | Any | None = None,
        reset: Tensor | Any | None = None,
        teacher: Tensor | Any | None = None,
    ) -> Tensor:
        """One step of the stream; returns the output, detached. NumPy arrays are converted to the layer's dtype.

        Args:
            x_t: (B, I), or symbols (B,) as in `run`; for a single stream, all arguments without B.
            target: passed to the loss; None: nothing is learned from this step.
            mask: which samples are scored, passed to the loss.
            active, reset, teacher: as in `Rule.step`.
        """
        given = from_numpy(self.layer, x_t, target, mask, active, reset, teacher)
        x_t, target, mask, active, reset, teacher = given
        if not isinstance(x_t, Tensor):
            raise TypeError(f"Online: x_t at step {self.steps} must be a tensor or array, got {type(x_t).__name__}")
        self.drift_detected, single = False, x_t.dim() == int(x_t.dtype != torch.int64)
        if single:
            x_t, target, mask, active, reset, teacher = mapped(lambda value: value.unsqueeze(0), given)
        output = self._one(x_t, target, mask, active, reset, teacher)
        return output.squeeze(0) if single else output

    def _step(
        self,
        x_t: Tensor,
        target: Tensor | None,
        mask: Tensor | None,
        *,
        active: Tensor | None = None,
        reset: Tensor | None = None,
        teacher: Tensor | None = None,
        update: bool | None = None,
    ) -> Tensor:
        read = x_t if active is None else x_t[active]
        if not (math.isfinite(read.sum()) or bool(torch.isfinite(read).all())):  # a sum of large numbers may overflow
            raise ValueError(f"Online: x_t at step {self.steps} must be finite, got NaN or infinity")
        trace = self.trace if self.steps else self.rule.start(self.layer, x_t.shape[0])
        y, self.state, self.trace = self.rule.step(
            self.layer, x_t, self.state, trace, active=active, reset=reset, teacher=teacher
        )
        self._check_state()
        self.steps += 1
        if self.rule.deferred:
            self._errors.append(None)
        output = self._learn(y, target, mask)
        if len(self._errors) == self.rule.window:
            self._collect()
        if self.steps % self.every == 0 if update is None else update:
            self.update()
        return output

    def _check_state(self) -> None:
        """Refuse to learn from a layer that has diverged. No parameter was changed in this step."""
        spec = self.layer.state_spec
        parts = () if self.state is None else spec.parts(self.state)
        for name, part in zip(spec.names, parts):
            if not (math.isfinite(part.sum()) or bool(torch.isfinite(part).all())):
                raise ValueError(diverged(self.layer, name, self.steps))

    def _learn(self, y: Tensor, target: Tensor | None, mask: Tensor | None) -> Tensor:
        """The output; if there is a target, gradients are added to those of the next update."""
        if target is None:
            with torch.no_grad():
                return y if self.readout is None else self.readout(y)
        y = y.detach().requires_grad_()
        with torch.enable_grad():
            output = y if self.readout is None else self.readout(y)
            loss = self.loss(output, target) if mask is None else self.loss(output, target, mask)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ValueError(f"Online: the loss at step {self.steps - 1} is {value}; no parameter was changed")
        dy, *read = torch.autograd.grad(loss, [y, *self._read], materialize_grads=True)
        for parameter, gradient in zip(self._read, read):
            _add(parameter, gradient)
        if self.rule.deferred:
            self._errors[-1] = dy
        else:
            self._add_all(self.rule.gradients(self.layer, self.trace, dy))
        self._scored += 1
        self._detect(value, self.steps - 1)
        self.loss_now = value
        weight = max(1 / self._scored, 1 / HORIZON)
        self.running_loss = value if self._scored == 1 else self.running_loss + weight * (value - self.running_loss)
        return output.detach()

    def _detect(self, loss: float, step: int) -> None:
        """Show the loss of a scored step to the detector of drift."""
        if self.detector is not None:
            self.detector.update(loss)
            if self.detector.drift_detected:
                self.drift_detected = True
                self.drifts.append(step)

    def _add_all(self, gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            _add(self._parameters[name], gradient)

    def _collect(self) -> None:
        """Back-propagate the collected errors."""
        if any(error is not None for error in self._errors):
            self._add_all(self.rule.gradients(self.layer, self.trace, self._errors))
        self._errors = []

    def update(self) -> None:
        """Let the optimiser use the gradients since the last update; `step` calls it every ``every`` steps.

        Call it at the end of a stream for the remaining steps. Without a scored step nothing happens.
        """
        if self._compiled is not None and self._compiled.ahead:
            self._compiled.update()
            return
        self._collect()
        trained = [p for p in self._trained if p.grad is not None]
        if not trained:
            return
        grads = [p.grad for p in trained if p.grad is not None]
        norms = [torch.linalg.vector_norm(gradient) for gradient in grads]
        norm = self.gradient_norm = float(torch.linalg.vector_norm(torch.stack(norms)))  # [CLIP 5 ν]
        if not math.isfinite(norm):
            self.skipped += 1  # [CLIP 5 skip]
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row == SKIPS:
                warn_skipped(SKIPS)
        else:
            if self.clip is not None and norm > self.clip:
                for p, gradient in zip(trained, grads):
                    p.grad = gradient * (self.clip / norm)  # [CLIP 5 dθ]
            self.optimizer.step()
            self.updates += 1
            self._skipped_in_a_row = 0
        for p in trained:
            p.grad = None

    # ------------------------------------------------------------------------------------------------------ file
    def save(self, path: str | Path) -> None:
        """Write the learner into a safetensors file: weights, state, traces, optimiser, counters."""
        _saving.save(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Restore a saved learner, which continues bit for bit. A file that does not fit changes nothing.

        >>> import tempfile, torch, longlag as ll
        >>> net = ll.LSTM97(1, blocks=2, output_size=1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> learner = ll.learn.Online(net, None, ll.learn.squared_error, ll.learn.TruncatedRTRL(), optimizer)
        >>> x, folder = torch.randn(9, 1, 1), tempfile.TemporaryDirectory()
        >>> _ = learner.step(x[0], x[0]), learner.save(folder.name + "/learner.safetensors")
        >>> once = [learner.step(x_t, x_t) for x_t in x]
        >>> learner.load(folder.name + "/learner.safetensors")
        >>> folder.cleanup()
        >>> all(torch.equal(y, learner.step(x_t, x_t)) for x_t, y in zip(x, once))
        True
        """
        _saving.load(self, Path(path))

    @classmethod
    def restore(cls, path: str | Path, device: torch.device | str = "cpu") -> Online:
        """A saved learner, made again from its file alone; it continues bit for bit. Nothing is unpickled.

        For layers of `longlag`, read-outs None or ``nn.Linear``, the losses and rules of `longlag.learn`, and the
        optimisers SGD, Adam, AdamW and RMSprop. A ValueError names any other part: make such a learner as before and
        use `load`. A `detector` is not saved.

        >>> import tempfile, torch, longlag as ll
        >>> net = ll.LSTM97(1, blocks=2, output_size=1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> learner = ll.learn.Online(net, None, ll.learn.squared_error, ll.learn.TruncatedRTRL(), optimizer)
        >>> x, folder = torch.randn(9, 1, 1), tempfile.TemporaryDirectory()
        >>> _ = learner.step(x[0], x[0]), learner.save(folder.name + "/learner.safetensors")
        >>> twin = ll.learn.Online.restore(folder.name + "/learner.safetensors")
        >>> folder.cleanup()
        >>> all(torch.equal(twin.step(x_t, x_t), learner.step(x_t, x_t)) for x_t in x)
        True
        """
        return _saving.restored(cls, Path(path), torch.device(device))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    # never in place: two parameters may share one gradient tensor
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
