"""The roads of `Online`: compiled steps where the real-time engine serves the learner, steps in Python elsewhere."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.layers import Layer, State, validation
from longlag.learn import _chunk
from longlag.learn._chunk import Steps, StreamError
from longlag.learn._rule import Trace, Unsupported
from longlag.learn._state import from_numpy, mapped

if TYPE_CHECKING:
    from longlag.learn._compiled import Compiled


HORIZON = 100  # time constant of the running loss, in scored steps


class Streaming:
    """What `Online` adds to a single step in Python: whole chunks, the compiled engine, and the change between them.

    Attributes:
        losses: (T,) of the last `run`, NaN where a step was not scored.
    """

    losses: Tensor

    def _begin(self) -> None:
        self._state: State | None = None
        self._trace: Trace | None = None
        self._compiled: Compiled | None = None
        self._reason: str | None = None  # why there is no compiled engine
        self._planned = False
        self.losses = torch.empty(0, dtype=torch.float64)

    # ------------------------------------------------------------------------------------------------ state and trace
    @property
    def state(self) -> State | None:
        """The layer's state after the last step; None before the first."""
        self._settle()
        return self._state

    @state.setter
    def state(self, value: State | None) -> None:
        self._settle()
        self._state = value

    @property
    def trace(self) -> Trace:
        """The rule's trace after the last step."""
        self._settle()
        assert self._trace is not None
        return self._trace

    @trace.setter
    def trace(self, value: Trace) -> None:
        self._settle()
        self._trace = value

    def _settle(self) -> None:
        if self._compiled is not None:
            self._compiled.settle()

    def restore_stream(self, state: State, trace: Trace) -> None:
        """Called by the engine when it hands state and trace back."""
        self._state, self._trace = state, trace

    # ------------------------------------------------------------------------------------------------ roads
    def engine_for(self) -> tuple[str, str]:
        """The engine of `run` and `step`, and the reason: ``"cpu"``, compiled in real time, or ``"python"``.

        >>> import torch, longlag as ll
        >>> layer = ll.LocalFeedback(1, 8)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> ll.learn.Online(layer, None, ll.learn.squared_error, ll.learn.LocalForward(), optimizer).engine_for()
        ('cpu', 'LocalForward on LocalFeedback, compiled')
        >>> ll.learn.Online(layer, None, ll.learn.squared_error, ll.learn.BPTT(), optimizer).engine_for()
        ('python', "the rule is not one of the engine's")
        """
        learner: Any = self
        if self._road() is None:
            return "python", self._reason or ""
        return "cpu", f"{type(learner.rule).__name__} on {learner.layer.class_name}, compiled"

    def _road(self) -> Compiled | None:
        """The compiled engine, planned at the first call; None if the learner is not one that it serves."""
        if not self._planned:
            self.plan("auto")
        return self._compiled

    def plan(self, engine: str = "auto") -> None:
        """Choose the road: ``"auto"``, ``"cpu"`` (an error if the compiled engine does not serve the learner), or
        ``"python"``. Plan again where the learner was changed: another loss, optimiser or parametrisation.
        """
        from longlag.learn._compiled import Compiled  # not above: needs the cells, which are slow to import

        validation.one_of("Online", "engine", engine, ("auto", "cpu", "python"))
        self._settle()
        learner: Any = self
        self._planned, self._compiled, self._reason = True, None, "asked for"
        if engine == "python":
            return
        try:
            self._compiled = Compiled(learner)
        except Unsupported as reason:
            if engine == "cpu":
                raise ValueError(f"Online: engine='cpu' cannot run this learner: {reason}") from None
            self._reason = str(reason)

    # ------------------------------------------------------------------------------------------------ chunks
    def run(
        self,
        xs: Tensor | Any,
        targets: Tensor | Any | None = None,
        mask: Tensor | Any | None = None,
        *,
        active: Tensor | Any | None = None,
        reset: Tensor | Any | None = None,
        scored: Tensor | Any | None = None,
        update: Tensor | Any | None = None,
    ) -> Tensor:
        """A whole chunk of the stream; the same numbers as `step` in a loop, in compiled code where `engine_for` says
        ``"cpu"``. ``losses`` then holds the chunk's losses. NumPy arrays are converted to the layer's dtype.

        Ragged sequences one after another in a single stream: ``reset`` at their first steps, ``scored`` and
        ``update`` at their last ones.

        Args:
            xs: (T, B, I), or (T, I) for a single stream, and then the other arguments without B, too; or integer
                symbols (T, B) or (T,) that stand for one-hot inputs, at the cost of one input.
            targets: one row (B, …) for every step, or for every ``scored`` step; integer classes stand for one-hot
                targets. None: nothing is learned.
            mask: (T, B) which samples are scored, with the rows of ``targets``.
            active, reset: (T, B) as in `Rule.step`.
            scored: (T,) the steps that have a target; outputs are returned for them only. None: all steps.
            update: (T,) the steps after which the weights are updated, in place of every ``every`` steps.

        Returns:
            The outputs, one row (B, l) for every (scored) step.

        Raises:
            StreamError: an input, a state or a loss was not finite. Its ``step`` says where, its ``outputs`` are those
                of the steps before, and so are the parameters; after such a loss, learning may go on at the next step.

        >>> import torch, longlag as ll
        >>> layer, readout = ll.LocalFeedback(1, 8), torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=0.01)
        >>> learner = ll.learn.Online(layer, readout, ll.learn.squared_error, ll.learn.LocalForward(), optimizer)
        >>> x = torch.sin(torch.arange(2001.0) / 5).view(-1, 1)
        >>> learner.run(x[:-1], x[1:]).shape, learner.steps, learner.running_loss < 0.1
        (torch.Size([2000, 1]), 2000, True)
        """
        learner: Any = self
        given = from_numpy(learner.layer, xs, targets, mask, active, reset, scored, update)
        steps, learner.drift_detected = _chunk.checked(learner.layer, *given), False
        road = self._road()
        try:
            outputs = self._in_python(steps) if road is None else self._in_compiled(road, steps)
        except Unsupported:  # the optimiser's state does not fit the engine
            self._settle()
            outputs = self._in_python(steps)
        return outputs.squeeze(1) if steps.single else outputs

    def _one(
        self,
        x: Tensor,
        target: Tensor | None,
        mask: Tensor | None,
        active: Tensor | None,
        reset: Tensor | None,
        teacher: Tensor | None,
    ) -> Tensor:
        """One step of B streams, compiled where the engine serves it."""
        learner: Any = self
        road = self._road() if teacher is None else None
        if road is not None:
            given = (mask, active, reset)
            output = road.step(x, target) if given == (None, None, None) else None
            if output is not None:
                return output
            try:  # the step in Python says what is wrong with an argument
                rows = mapped(lambda value: value.unsqueeze(0), (x, target, *given, None, None))
                steps = road.typed(_chunk.checked(learner.layer, *rows))
            except (TypeError, ValueError):
                steps = None
            if steps is not None and road.batch in (None, x.shape[0]):
                with contextlib.suppress(Unsupported):
                    return self._in_compiled(road, steps)[0]
        x = _chunk.dense(x, learner.layer)
        return learner._step(x, target, mask, active=active, reset=reset, teacher=teacher)

    @torch.no_grad()
    def peek(self, x_t: Tensor | Any) -> Tensor:
        """The output of the next step without taking it: state, trace and weights do not change. x_t as in `step`."""
        learner: Any = self
        (x_t,) = from_numpy(learner.layer, x_t)
        x = _chunk.dense(x_t, learner.layer)
        road = self._compiled
        state = road.state() if road is not None and road.ahead else self._state
        y, _ = learner.layer.step(x if x.dim() == 2 else x.unsqueeze(0), state)
        output = y if learner.readout is None else learner.readout(y)
        return output if x.dim() == 2 else output.squeeze(0)

    def predict(self, xs: Tensor, *, reset: Tensor | None = None, wanted: Tensor | None = None) -> Tensor:
        """The outputs for whole sequences with the weights as they are, from the initial state on.

        Nothing is learned, and the stream's state and trace stay as they are.

        Args:
            xs, reset: as in `run`.
            wanted: (T,) the steps whose outputs are returned; None: all.

        Returns:
            The outputs (T, B, l), one row for every wanted step; NaN from the first input on that is not finite.
        """
        learner: Any = self
        steps = _chunk.checked(learner.layer, xs, None, None, None, reset, None, wanted)
        steps = steps._replace(scored=wanted, update=None)
        road = self._road()
        if road is not None:
            outputs = road.predict(steps)
        else:
            x = _chunk.dense(steps.x, learner.layer)
            with torch.no_grad():
                y, _ = learner.layer.for_analysis()(x, reset=steps.reset)
                outputs = y if learner.readout is None else learner.readout(y)
            outputs = outputs if wanted is None else outputs[wanted]
        return outputs.squeeze(1) if steps.single else outputs

    def _in_python(self, steps: Steps) -> Tensor:
        learner: Any = self
        outputs: list[Tensor] = []
        k, self.losses = 0, torch.full((len(steps.x),), math.nan, dtype=torch.float64)
        for t in range(len(steps.x)):
            scored = steps.targets is not None and (steps.scored is None or bool(steps.scored[t]))
            target = steps.targets[k] if scored and steps.targets is not None else None
            mask = steps.mask[k] if scored and steps.mask is not None else None
            active, reset = (None if value is None else value[t] for value in (steps.active, steps.reset))
            wanted = None if steps.update is None else bool(steps.update[t])
            try:
                x = _chunk.dense(steps.x[t], learner.layer)
                output = learner._step(x, target, mask, active=active, reset=reset, update=wanted)
            except ValueError as error:
                kept = torch.stack(outputs) if outputs else torch.empty(0)
                raise StreamError(str(error), t, kept) from error
            if scored:
                self.losses[t] = learner.loss_now
                k += 1
            if scored or steps.scored is None:
                outputs.append(output)
        return torch.stack(outputs) if outputs else torch.empty(0)

    def _in_compiled(self, road: Compiled, steps: Steps) -> Tensor:
        learner: Any = self
        first = learner.steps
        outputs, failure = road.chunk(steps)
        if learner.detector is not None:
            for t, loss in enumerate(self.losses.tolist()):
                if not math.isnan(loss):
                    learner._detect(loss, first + t)
        if failure is not None:
            text, step = failure
            raise StreamError(text, step, outputs.squeeze(1) if steps.single else outputs)
        return outputs


def warn_skipped(skips: int) -> None:
    """Warn that updates are being skipped."""
    warnings.warn(
        f"Online: the last {skips} updates were skipped because their gradients were not finite; nothing is "
        "being learned. A smaller learning rate or clip= may help",
        RuntimeWarning,
        stacklevel=4,
    )


def diverged(layer: Layer, part: str, step: int) -> str:
    """The message about a state that is not finite."""
    return (
        f"Online: the state {part} of {layer.class_name} is not finite after step {step}: the layer has diverged. A "
        "smaller learning rate, clip=, or bounded feedback (constrain='forget') prevents this"
    )
