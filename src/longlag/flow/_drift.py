"""Internal state drift over training, and the effect of a negative input-gate bias. [LSTM-97 4 drift]"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from longlag.engines import few_threads
from longlag.layers import LSTM97
from longlag.layers.validation import positive
from longlag.results import Result
from longlag.style import COLOURS, DASHES, new_figure, style
from longlag.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = {"4s-2": 2.0, "2s-1": 1.0, "logistic": 1.0, "tanh": 1.0, "identity": math.inf}  # sup |g|


@dataclass(frozen=True, repr=False)
class Drift(Result):
    """Internal states at the ends of the sequences, update by update; one row per input-gate bias.

    Attributes:
        biases: the K initial biases of the input gates.
        state: (K, U) mean |s| over sequences and cells.
        largest: (K, U) largest |s|.
        bound: (K, U) largest sup|g| Σ_t y_ig(t), which no |s| exceeds. [LSTM-97 4 drift]
        slope: (K, U) mean h′(s)/h′(0), the factor by which an error shrinks when it enters a cell.
        gate: (K, U) mean y_ig.
        loss: (K, U) mean ½ Σ (y − target)².
    """

    biases: tuple[float, ...]
    state: Tensor
    largest: Tensor
    bound: Tensor
    slope: Tensor
    gate: Tensor
    loss: Tensor

    def columns(self) -> dict[str, Tensor]:
        K, U = self.state.shape
        numbers = {
            name: getattr(self, name).flatten() for name in ("state", "largest", "bound", "slope", "gate", "loss")
        }
        update = {
            "update": torch.arange(U).repeat(K),
            "input_gate_bias": torch.tensor(self.biases).repeat_interleave(U),
        }
        return update | numbers

    def plot(self) -> Figure:
        """Drift of |s| and what is left of h′(s), against updates."""
        with style():
            figure, (left, right) = new_figure(1, 2, width=7.6, height=3.4)
            for axes, values, title in (
                (left, self.state, "Internal state |s| (mean)"),
                (right, self.slope, "Error let in, h′(s)/h′(0) (mean)"),
            ):
                for k, row in enumerate(values):
                    label = f"input-gate bias {self.biases[k]:g}"
                    axes.plot(row, color=COLOURS[k % 7], ls=DASHES[k % 7], label=label)
                axes.set_xlabel("update")
                axes.set_xlim(0, max(1, values.shape[1] - 1))
                axes.set_title(title)
            left.set_yscale("log")
            right.set_ylim(0, 1.04)
            right.legend(loc="center right")
        return figure


def drift(
    network: nn.Module,
    task: Task,
    *,
    biases: Iterable[float] = (0.0, -3.0, -6.0),
    updates: int = 150,
    batch: int = 8,
    learning_rate: float = 0.5,
    seed: int = 0,
) -> Drift:
    """Train copies of a network that differ in the bias of their input gates; record their internal states.

    Learning is gradient descent with the truncated gradient of 1997: the fed-back activations are constants.
    [LSTM-97 3.4]

    Args:
        network: `LSTM97` with biased gates and output units; copies are trained, the network itself is not.
        task: one that scores the end of its sequences, such as ``tasks.Multiplication(50)``.
        biases: initial input-gate biases, one copy each; the other weights and the data are the same.
        updates, batch, learning_rate: of the training; seed: of the data.

    >>> import longlag as ll
    >>> from longlag import flow, tasks
    >>> net = ll.LSTM97(2, blocks=1, block_size=2, output_size=1)
    >>> found = flow.drift(net, tasks.Multiplication(22), biases=(0.0, -6.0), updates=3, batch=2)
    >>> bool(found.state[0, -1] > found.state[1, -1]), bool((found.largest <= found.bound).all())
    (True, True)
    """
    if not isinstance(network, LSTM97) or not network.blocks:
        raise TypeError(f"drift: cannot analyse {type(network).__name__}: it must be LSTM97 with at least one block")
    if "gates" not in network.biased or network.output_size is None:
        raise ValueError("drift: network must have biased gates and output units")
    biases = tuple(float(b) for b in biases)
    positive("drift", "updates", updates)
    positive("drift", "batch", batch)
    with few_threads(network.state_spec.size):
        rows = [_train(network, task, bias, updates, batch, learning_rate, seed) for bias in biases]
    state, largest, bound, slope, gate, loss = torch.stack(rows).movedim(-1, 0)
    return Drift(biases, state, largest, bound, slope, gate, loss)


def _train(
    network: LSTM97, task: Task, bias: float, updates: int, batch: int, learning_rate: float, seed: int
) -> Tensor:
    """(U, 6): the columns of `Drift` for one bias."""
    network, rng, rows = copy.deepcopy(network), np.random.default_rng(seed), []
    network.engine = "reference"  # the faster one for single steps
    nn.init.constant_(network.get_parameter("bias_ig"), bias)
    optimizer = torch.optim.SGD(network.parameters(), learning_rate)
    for update in range(updates):
        x, targets, lengths = task.sample(batch, rng).padded(dtype=network.weight_out.dtype)
        if targets.shape != (batch, network.output_size):
            raise ValueError(f"drift: task must score the end of its sequences, got targets {tuple(targets.shape)}")
        y, s, gates = _truncated_run(network, x, lengths)
        loss = 0.5 * (y - targets).square().sum(-1).mean()
        if not bool(torch.isfinite(loss)):
            raise ValueError(f"drift: loss must be finite, got NaN or infinity at update {update} with bias {bias:g}")
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        rows.append(_measure(network, s.detach(), gates, lengths, float(loss.detach())))
    return torch.tensor(rows)


def _truncated_run(network: LSTM97, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (B, O) and internal states (B, C) at the ends of the sequences, and Σ_t y_ig (B, blocks)."""
    assert network.output_size is not None
    B, (R, C) = x.shape[1], network.state_sizes.values()
    start = network.sections["hid"]
    y, s, out = x.new_zeros(B, R), x.new_zeros(B, C), x.new_zeros(B, network.output_size)
    gates = x.new_zeros(B, network.blocks)
    for t, x_t in enumerate(x.unbind(0)):
        active = (t < lengths).unsqueeze(-1)
        new_out, (new_y, new_s) = network.step(x_t, (y.detach(), s))  # [LSTM-97 3.4] the cut
        out, y, s = (torch.where(active, new, old) for new, old in ((new_out, out), (new_y, y), (new_s, s)))
        gates = gates + torch.where(active, new_y[:, start : start + network.blocks], 0.0).detach()
    return out, s, gates


def _measure(network: LSTM97, s: Tensor, gates: Tensor, lengths: Tensor, loss: float) -> list[float]:
    size = s.abs()
    bound = LARGEST[network.g] * gates  # [LSTM-97 4 drift]
    slope = slope_of_h(network, s) / slope_of_h(network, torch.zeros_like(s))
    mean_gate = gates / lengths.unsqueeze(-1)
    values = (size.mean(), size.max(), bound.max(), slope.mean(), mean_gate.mean())
    return [*(float(v) for v in values), loss]


def slope_of_h(network: LSTM97, s: Tensor) -> Tensor:
    """h′(s), from the memory cell's derived partials: with a closed input gate and no output gate, ∂y/∂s."""
    from longlag.cells import memory_cell

    cell = memory_cell(network.g, network.h, output_gate=False)
    closed = torch.full_like(s, -math.inf)
    return torch.as_tensor(cell.partials(closed, torch.zeros_like(s), s)["y", "s"]).to(s).expand_as(s)
