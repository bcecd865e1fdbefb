"""`watch`: measurements of any training loop, taken through hooks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from longlag.flow._run import NonFinite, as_layer
from longlag.flow._sample import ForwardCall, LayerSample, RecurrentModule, sample
from longlag.layers.validation import positive
from longlag.results import Result
from longlag.style import COLOURS, HEAT, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHRUNK = 1 - 1e-3  # a gradient that lost more than a thousandth of its norm before the update was clipped


@runtime_checkable
class ScalarWriter(Protocol):
    """An object with the method ``add_scalar`` of ``torch.utils.tensorboard.SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object: ...


class TrainingMonitor(Result):
    """The measurements of a training loop, and the context in which they are taken; see `watch`.

    Attributes:
        history: quantity -> [(update, value), …]. Quantities: ``gradient`` (norm of the whole gradient as the
            optimiser sees it), ``gradient/<parameter>``, ``clip`` (share of the gradient's norm that is left, at
            updates where clipping reduced the norm), and for each recurrent layer ``<layer>/lag/<q>`` (norm of the
            last scored output's gradient, q steps back in time), ``<layer>/gate/<gate>/low`` and ``/high`` (share of
            values in the outer tenths of the gate's range), ``<layer>/dead``, ``<layer>/drifting`` (shares of units),
            ``<layer>/non_finite`` (the first such step).
        samples: layer -> its latest sample, with the indices of ``dead`` outputs and ``drifting`` states.
        skipped: layer -> why it could not be sampled.
        update: number of updates so far.
    """

    def __init__(
        self, model: nn.Module, to: str | Path | ScalarWriter | None, every: int, budget: float, sequences: int
    ) -> None:
        self.model, self.every, self.budget, self.sequences = model, every, budget, sequences
        self.history: dict[str, list[tuple[int, float]]] = {}
        self.samples: dict[str, LayerSample] = {}
        self.skipped: dict[str, str] = {}
        self.update = 0
        self._path = Path(to) if isinstance(to, str | Path) else None
        self._writer = to if isinstance(to, ScalarWriter) else None
        self._file: TextIO | None = None
        self._names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self._calls: dict[str, ForwardCall] = {}
        self._after_backward: dict[Tensor, Tensor] = {}  # parameter -> norm of its gradient
        self._clips: list[tuple[int, Tensor, Tensor]] = []
        self._handles: list[Any] = []
        self._spent = self._begun = 0.0
        self._sampling = True

    # -------------------------------------------------------------------------------------------- the context
    def __enter__(self) -> TrainingMonitor:
        self._begun = time.perf_counter()
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", newline="", encoding="utf-8")
            self._file.write("update,quantity,value\n")
        self._handles = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._names]
        for name, module, reason in _recurrent(self.model):
            if reason is not None:
                self._skip(name, reason)
            else:
                hook = self._on_forward(name)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self._handles.append(register_optimizer_step_pre_hook(self._on_optimizer))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()
        self._write_clips()
        if self._file is not None:
            self._file.close()

    # --------------------------------------------------------------------------------------------------- hooks
    def _on_gradient(self, parameter: Tensor) -> None:
        start = time.perf_counter()
        assert parameter.grad is not None
        self._after_backward[parameter] = torch.linalg.vector_norm(parameter.grad)
        self._spent += time.perf_counter() - start

    def _on_forward(self, name: str) -> Any:
        def hook(module: RecurrentModule, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if not self._sampling or not torch.is_grad_enabled():
                return output
            given = dict(zip(("x", "state"), args)) | kwargs
            x, state = given.get("x", given.get("input")), given.get("state", given.get("hx"))
            if not isinstance(x, Tensor) or given.get("reset") is not None:
                self._skip(name, "watch: cannot sample a call with a PackedSequence or with resets")
                return output
            parts = (state,) if isinstance(state, Tensor) else state
            lengths = given.get("lengths")
            lengths = None if lengths is None else torch.as_tensor(lengths)
            self._calls[name] = ForwardCall(module, x, parts, lengths)
            return self._calls[name].record_gradients(output)

        return hook

    def _on_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if any(p in self._names for group in optimizer.param_groups for p in group["params"]):
            self.step()

    # --------------------------------------------------------------------------------------------- one update
    @torch.no_grad()
    def step(self) -> None:
        """Record one update. ``torch.optim`` optimisers call this method; a loop without an optimiser must call it."""
        start = time.perf_counter()
        gradients = {name: p.grad for p, name in self._names.items() if p.grad is not None}
        if gradients:
            total = nn.utils.get_total_norm(list(gradients.values()))
            if self._after_backward:
                before = torch.linalg.vector_norm(torch.stack(list(self._after_backward.values())))
                self._clips.append((self.update, before, total))
            if self._sampling:
                self._sample(gradients, total)
        self._after_backward.clear()
        self._calls.clear()
        self.update += 1
        now = time.perf_counter()
        self._spent += now - start
        due = self.update % self.every == 0
        if due:
            self._write_clips()
        self._sampling = due and self._spent <= self.budget * (now - self._begun)

    def _sample(self, gradients: dict[str, Tensor], total: Tensor) -> None:
        self._record("gradient", float(total))
        for name, gradient in gradients.items():
            self._record(f"gradient/{name}", float(torch.linalg.vector_norm(gradient)))
        for name, call in self._calls.items():
            try:
                self.samples[name] = sample(call, self.sequences)
            except NonFinite as error:
                self._record(f"{name}/non_finite", float(error.step))
                self._skip(name, str(error))
            else:
                for quantity, value in self.samples[name].numbers.items():
                    self._record(f"{name}/{quantity}", value)
        if self._file is not None:
            self._file.flush()

    def _write_clips(self) -> None:
        """Record the clip events since the last call; until now their norms stayed on the device."""
        for update, before, after in self._clips:
            left = float(after / before)
            if left < SHRUNK:
                self._record("clip", left, update)
        self._clips.clear()

    def _record(self, quantity: str, value: float, update: int | None = None) -> None:
        update = self.update if update is None else update
        self.history.setdefault(quantity, []).append((update, value))
        if self._file is not None:
            self._file.write(f"{update},{quantity},{value!r}\n")
        elif self._writer is not None:
            self._writer.add_scalar(quantity, value, update)

    def _skip(self, name: str, reason: str) -> None:
        if name not in self.skipped:
            warnings.warn(f"{reason} ({name})", stacklevel=3)
        self.skipped[name] = reason

    # ------------------------------------------------------------------------------------------------- results
    def columns(self) -> dict[str, list[Any]]:
        rows = [(update, quantity, value) for quantity, points in self.history.items() for update, value in points]
        rows.sort(key=lambda row: row[0])
        return {name: [row[i] for row in rows] for i, name in enumerate(("update", "quantity", "value"))}

    def plot(self) -> Figure:
        """Norm of the gradient and clip events; gradient by lag of the first recurrent layer."""
        with style():
            figure, (left, right) = new_figure(1, 2, width=7.6, height=3.3)
            if points := self.history.get("gradient"):
                left.plot(*zip(*points), color=COLOURS[0], label="gradient")
            if clips := self.history.get("clip"):
                for i, (update, _) in enumerate(clips):
                    left.axvline(update, ymax=0.04, color=COLOURS[1], lw=0.8, label="" if i else "clipped")
            left.set_yscale("log")
            left.set_xlabel("update")
            left.set_title("Norm of the gradient")
            left.legend(loc="lower left", bbox_to_anchor=(0, 0.04))
            self._plot_lags(right)
        return figure

    def _plot_lags(self, axes: Any) -> None:
        from matplotlib.colors import LogNorm

        lags = {q: v for q, v in self.history.items() if "/lag/" in q}
        if not lags:
            axes.set_axis_off()
            return
        name = next(iter(lags)).partition("/lag/")[0]
        rows = {int(q.rpartition("/")[2]): dict(v) for q, v in lags.items() if q.startswith(f"{name}/lag/")}
        updates = sorted({update for row in rows.values() for update in row})
        grid = torch.tensor([[row.get(update, torch.nan) for update in updates] for row in rows.values()])
        top = float(grid.nan_to_num().max()) or 1.0
        mesh = axes.imshow(
            grid.clamp(min=top * 1e-8).numpy(), norm=LogNorm(top * 1e-8, top), cmap=HEAT, aspect="auto", origin="lower",
            extent=(updates[0] - 0.5, updates[-1] + 0.5, -0.5, len(rows) - 0.5), interpolation="nearest",
        )  # fmt: skip
        axes.get_figure().colorbar(mesh, ax=axes, label="norm", extend="min")
        axes.set_yticks(range(len(rows)), [str(q) for q in rows])
        axes.grid(False)
        axes.set_xlabel("update")
        axes.set_ylabel("lag q (steps)")
        axes.set_title(f"Gradient by lag: {name}")


def watch(
    model: nn.Module,
    to: str | Path | ScalarWriter | None = None,
    *,
    every: int = 10,
    budget: float = 0.05,
    sequences: int = 2,
) -> TrainingMonitor:
    """Watch a training loop: gradients by parameter and by lag, clipping, saturated gates, dead and drifting units.

    Works on longlag's layers and on ``torch.nn.RNN``, ``LSTM`` and ``GRU`` anywhere inside ``model``. Every step of a
    ``torch.optim`` optimiser is an update; loops without an optimiser call ``step()``. Clipping is recorded at every
    update, the rest is sampled. Layers are sampled without dropout.

    Args:
        model: the module that is trained.
        to: a CSV file to write (update, quantity, value), or an object with ``add_scalar`` such as
            ``torch.utils.tensorboard.SummaryWriter``. All measurements are also kept in ``history``.
        every: number of updates from one sample to the next.
        budget: share of the run time that watching may take; samples are left out while it has taken more.
        sequences: how many sequences of a batch are sampled.

    >>> import torch, longlag as ll
    >>> from longlag import flow
    >>> layer, x = ll.LSTM(3, 8), torch.randn(20, 4, 3)
    >>> optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    >>> with flow.watch(layer) as watched:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         layer(x)[0][-1].square().sum().backward()
    ...         optimizer.step()
    >>> watched.update, [q for q in watched.history if "/lag/" in q]
    (3, ['LSTM/lag/1', 'LSTM/lag/2', 'LSTM/lag/4', 'LSTM/lag/8', 'LSTM/lag/16'])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch: model must be a torch.nn.Module, got {type(model).__name__}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"watch: model must have trainable parameters, got {type(model).__name__} without")
    if to is not None and not isinstance(to, str | Path | ScalarWriter):
        raise TypeError(f"watch: to must be a path or have add_scalar, got {type(to).__name__}")
    if not 0 < budget <= 1:
        raise ValueError(f"watch: budget must be a number in (0, 1], got {budget!r}")
    return TrainingMonitor(
        model, to, positive("watch", "every", every), budget, positive("watch", "sequences", sequences)
    )


def _recurrent(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """The outermost recurrent layers inside a model: name, layer, and the reason if it cannot be sampled."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        reason = None
        try:
            as_layer("watch", module)
        except TypeError:  # no recurrent layer
            continue
        except ValueError as error:
            reason = str(error)
        inside.update(module.modules())
        yield name or type(module).__name__, module, reason
