"""Gates and cells over time on one solved sequence: the picture people know from the paper."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longlag.lab.experiment import Experiment
from longlag.lab.models import LSTM97Model
from longlag.tasks import Ragged

LONGEST = 250  # steps; a longer sequence is not kept
SQUASH = {"4s-2": (4.0, -2.0), "2s-1": (2.0, -1.0), "logistic": (1.0, 0.0)}  # (a, b) of a·σ + b


def sigmoid(x: NDArray) -> NDArray:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def squash(name: str, x: NDArray) -> NDArray:
    """g or h by its name."""
    if name == "identity":
        return x
    scale, shift = SQUASH[name]
    return scale * sigmoid(x) + shift


def inner_life(model: LSTM97Model, inputs: NDArray) -> dict[str, NDArray]:
    """Every activation at every step, from the equations: hid (T, hidden), ig, og (T, blocks), s, cell (T, cells).

    inputs: (T, d_in). Written step by step in NumPy; the kernel that trains computes the same. [LSTM-97 2]
    """
    network, w = model.network, model.public_weights()
    s = np.zeros(network.cells)
    y = np.full(sum(network.groups.values()) if network.recurrent else 0, model.learner.initial)
    kept: dict[str, list[NDArray]] = {"hid": [], "ig": [], "og": [], "s": [], "cell": []}
    for x in inputs:
        z = np.concatenate([x, y])  # columns [x, hid, ig, og, cell]
        net = {group: w[f"weight_{group}"] @ z + w.get(f"bias_{group}", 0.0) for group in network.groups}
        hid, ig = (sigmoid(net.get(group, np.empty(0))) for group in ("hid", "ig"))
        og = sigmoid(net["og"]) if network.output_gates else np.ones(network.blocks)
        s = s + np.repeat(ig, network.block_size) * squash(network.g, net["cell"])
        now = {"hid": hid, "ig": ig, "og": og, "s": s, "cell": np.repeat(og, network.block_size) * squash(network.h, s)}
        if network.recurrent:
            y = np.concatenate([now[group] for group in network.groups])
        for name, value in now.items():
            kept[name].append(value)
    return {name: np.array(values) for name, values in kept.items()}


def activity(experiment: Experiment, model: LSTM97Model, rng: np.random.Generator) -> dict[str, Any] | None:
    """One sequence, what the net did with it, what was wanted; rounded, as plain lists. None if it would be long."""
    batch = shortest(experiment.task.sample(8, rng))
    if len(batch.inputs) > LONGEST:
        return None
    lists = {name: rounded(values.T) for name, values in inner_life(model, batch.dense()).items() if values.size}
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
