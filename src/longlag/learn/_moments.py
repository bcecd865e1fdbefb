"""torch's optimisers as the compiled engine reads them: hyperparameters as numbers, moments as packed memory."""

from __future__ import annotations

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


class Moments:
    """An optimiser's numbers, between torch's state and a stream's memory.

    Args:
        weights: (parameter, places (n, 2), number of its group of hyperparameters).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Sequence[tuple[Tensor, Tensor, int]]) -> None:
        self.optimizer, self.kind, self.weights = optimizer, KINDS[type(optimizer)], weights

    def read(self, stream: Stream) -> None:
        """Hyperparameters and moments into the stream's memory."""
        for k, group in enumerate(self.optimizer.param_groups):
            row = self._numbers(group)
            mine = [(p, places) for p, places, g in self.weights if g == k]
            steps = {self._steps(p) for p, _ in mine}
            if len(steps) > 1:
                raise Unsupported("the optimiser has not updated all parameters equally often")
            row[hyper.steps] = steps.pop() if steps else 0
            stream.hyper[k] = torch.tensor(row, dtype=torch.float64)
            names = self._names(group)
            if names and row[hyper.steps] == 0:
                stream.moments[k].zero_()
            elif names:
                stream.transfer(self._jobs(stream, k, names, mine), out=False)

    def write(self, stream: Stream) -> None:
        """Moments back into torch's state, which is created as torch would."""
        number = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        for k, group in enumerate(self.optimizer.param_groups):
            names, steps = self._names(group), float(stream.hyper[k, hyper.steps])
            mine = [(p, places) for p, places, g in self.weights if g == k]
            for p, _ in mine if names or self.kind != hyper.SGD else ():
                state = self.optimizer.state[p]
                for name in names.values():
                    if state.get(name) is None:
                        state[name] = torch.zeros_like(p)
                if self.kind != hyper.SGD:
                    state["step"] = state["step"].fill_(steps) if "step" in state else torch.tensor(steps, dtype=number)
            if names:
                stream.transfer(self._jobs(stream, k, names, mine), out=True)

    def _jobs(self, stream: Stream, k: int, names: dict[int, str], mine: list[tuple[Tensor, Tensor]]) -> list[Any]:
        state = self.optimizer.state
        return [stream.moment_job(k, m, state[p][name], places) for p, places in mine for m, name in names.items()]

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
