"""torch's optimisers as the compiled engine reads them: hyperparameters as numbers, moments as packed memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.engines.cpu.realtime import hyper
from longlag.engines.cpu.realtime.stream import Stream
from longlag.learn._rule import Unsupported

KINDS: dict[type, int] = {
    torch.optim.SGD: hyper.SGD,
    torch.optim.Adam: hyper.ADAM,
    torch.optim.AdamW: hyper.ADAM,
    torch.optim.RMSprop: hyper.RMSPROP,
}


class _Group:
    """A group of torch's parameters with the same options.

    Attributes:
        weights: (parameter, places).
        given, numbers: its options, for torch and for the engine; names: of its moments in use.
        words: of the transfers between its moments, which lie at these places, and the stream's memory.
    """

    def __init__(self, weights: list[tuple[Tensor, Tensor]]) -> None:
        self.weights = weights
        self.given: list[Any] | None = None
        self.numbers: list[float] = []
        self.names: dict[int, str] = {}
        self.places: list[int] = []
        self.words = array("q")


class Moments:
    """An optimiser's numbers, between torch's state and a stream's memory.

    Args:
        weights: (parameter, places (n, 2), number of its group of hyperparameters).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Sequence[tuple[Tensor, Tensor, int]]) -> None:
        self.optimizer, self.kind = optimizer, KINDS[type(optimizer)]
        groups = range(len(optimizer.param_groups))
        self.groups = [_Group([(p, places) for p, places, g in weights if g == k]) for k in groups]

    def read(self, stream: Stream) -> None:
        """Hyperparameters and moments into the stream's memory."""
        for k, (options, group) in enumerate(zip(self.optimizer.param_groups, self.groups)):
            given = [value for name, value in options.items() if name != "params"]
            if group.given != given or any(isinstance(value, Tensor) for value in given):
                group.given, group.numbers, group.names = given, self._numbers(options), self._names(options)
            if group.names:
                steps = {self._steps(p) for p, _ in group.weights}
                if len(steps) > 1:
                    raise Unsupported("the optimiser has not updated all parameters equally often")
                group.numbers[hyper.steps] = steps.pop() if steps else 0
            stream.hyper[k * hyper.COUNT : (k + 1) * hyper.COUNT] = array("d", group.numbers)
            if group.names and group.numbers[hyper.steps] == 0:
                stream.moments[k].zero_()
            elif group.names:
                stream.transfer_all(self._jobs(stream, k), out=False)

    def write(self, stream: Stream) -> None:
        """Moments back into torch's state, which is created as torch would."""
        number = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        for k, group in enumerate(self.groups):
            steps = stream.hyper[k * hyper.COUNT + hyper.steps]
            for p, _ in group.weights if group.names else ():
                state = self.optimizer.state[p]
                for name in group.names.values():
                    if state.get(name) is None:
                        state[name] = torch.zeros_like(p)
                if self.kind != hyper.SGD:
                    state["step"] = state["step"].fill_(steps) if "step" in state else torch.tensor(steps, dtype=number)
            if group.names:
                stream.transfer_all(self._jobs(stream, k), out=True)

    def _jobs(self, stream: Stream, k: int) -> array:
        """The transfers of a group's moments, made anew where one has moved."""
        group, states = self.groups[k], self.optimizer.state
        found = [(states[p], p, at) for p, at in group.weights]
        places = [state[name].data_ptr() for state, _, _ in found for name in group.names.values()]
        places.append(stream.moments.data_ptr())
        if places != group.places:
            jobs = [
                stream.moment_job(k, m, state[name], at) for state, _, at in found for m, name in group.names.items()
            ]
            group.places, group.words = places, array("q", [word for job in jobs for word in job])
        return group.words

    def _names(self, group: dict[str, Any]) -> dict[int, str]:
        """The moments in use: number in the memory -> name in torch's state."""
        wanted = {
            hyper.SGD: (group.get("momentum"), False, False),
            hyper.ADAM: (True, True, group.get("amsgrad")),
            hyper.RMSPROP: (True, group.get("centered"), group.get("momentum")),
        }[self.kind]
        return {m: name for m, name in enumerate(hyper.MOMENTS[self.kind]) if name is not None and wanted[m]}

    def _steps(self, p: Tensor) -> float:
        state = self.optimizer.state.get(p, {})
        if self.kind == hyper.SGD:
            return float(state.get("momentum_buffer") is not None)
        return float(state["step"]) if "step" in state else 0.0

    def _numbers(self, group: dict[str, Any]) -> list[float]:
        row = [0.0] * hyper.COUNT
        row[hyper.kind], row[hyper.lr], row[hyper.maximize] = self.kind, float(group["lr"]), group["maximize"]
        row[hyper.decay] = group["weight_decay"]
        if self.kind == hyper.SGD:
            row[hyper.dampening], row[hyper.nesterov] = float(group["dampening"]), group["nesterov"]
        if self.kind == hyper.ADAM:
            row[hyper.beta1], row[hyper.beta2] = map(float, group["betas"])
            row[hyper.amsgrad], row[hyper.decoupled] = group["amsgrad"], group["decoupled_weight_decay"]
        else:
            row[hyper.momentum] = group["momentum"]
        if self.kind == hyper.RMSPROP:
            row[hyper.alpha], row[hyper.centered] = group["alpha"], group["centered"]
        if self.kind != hyper.SGD:
            row[hyper.eps] = group["eps"]
        return row
