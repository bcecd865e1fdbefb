"""Gates and cells over time on one solved sequence: the picture people know from the paper."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longlag.engines.cpu.online97 import train as online97
from longlag.engines.cpu.online97.network import SQUASH
from longlag.lab.experiment import Experiment
from longlag.lab.models import MemoryModel
from longlag.tasks import Ragged

LONGEST = 250  # steps; a longer sequence is not kept


def sigmoid(x: NDArray) -> NDArray:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def squash(name: str, x: NDArray) -> NDArray:
    """g or h by its name."""
    if name == "identity":
        return x
    scale, shift = SQUASH[name]
    return scale * sigmoid(x) + shift


def inner_life(model: MemoryModel, inputs: NDArray) -> dict[str, NDArray]:
    """Every activation at every step, from the equations: ig, og (T, blocks); s, cell (T, cells). [LSTM-97 2]

    inputs: (T, d_in). Written step by step in NumPy; the kernel that trains computes the same.
    """
    network = model.learner.network
    w = online97.unpack(network, model.weights)
    b = {group: w.get(f"bias_{group}", 0.0) for group in ("ig", "og", "cell")}
    s = np.zeros(network.cells)
    y = np.full(network.units if network.recurrent else 0, model.learner.initial)
    kept: dict[str, list[NDArray]] = {"ig": [], "og": [], "s": [], "cell": []}
    for x in inputs:
        z = np.concatenate([x, y])  # columns [x, ig, og, cell]
        y_ig = sigmoid(w["weight_ig"] @ z + b["ig"])
        y_og = sigmoid(w["weight_og"] @ z + b["og"]) if network.output_gates else np.ones(network.blocks)
        s = s + np.repeat(y_ig, network.block_size) * squash(network.g, w["weight_cell"] @ z + b["cell"])
        y_cell = np.repeat(y_og, network.block_size) * squash(network.h, s)
        if network.recurrent:
            y = np.concatenate([y_ig, y_og, y_cell] if network.output_gates else [y_ig, y_cell])
        for name, value in (("ig", y_ig), ("og", y_og), ("s", s), ("cell", y_cell)):
            kept[name].append(value)
    return {name: np.array(values) for name, values in kept.items()}


def activity(experiment: Experiment, model: MemoryModel, rng: np.random.Generator) -> dict[str, Any] | None:
    """One sequence, what the net did with it, what was wanted; rounded, as plain lists. None if it would be long."""
    batch = shortest(experiment.task.sample(8, rng))
    if len(batch.inputs) > LONGEST:
        return None
    lists = {name: rounded(values.T) for name, values in inner_life(model, batch.dense()).items()}
    outputs, targets = model.outputs(batch), batch.clean_targets
    wanted = np.eye(batch.output_size)[targets] if targets.ndim == 1 else targets
    final = {"output": rounded(outputs[-1]), "target": rounded(wanted[-1])}
    shown = batch.inputs.tolist() if batch.inputs.ndim == 1 else rounded(batch.inputs.T)
    return {"inputs": shown, "outputs": rounded(outputs.T) if batch.output_size <= 8 else [], **lists, **final}


def shortest(batch: Ragged) -> Ragged:
    """The shortest sequence of a batch, alone."""
    return batch.take(np.array([int(batch.lengths.argmin())]))


def rounded(values: NDArray) -> list:
    """To four places, as lists."""
    return np.round(values, 4).tolist()
