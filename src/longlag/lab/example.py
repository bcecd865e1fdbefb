"""Gates and states over time on one solved sequence: the picture people know from the paper."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from longlag.lab.experiment import Experiment
from longlag.lab.models import LayerModel
from longlag.tasks import Ragged

LONGEST = 250  # steps; a longer sequence is not kept


def inner_life(model: LayerModel, inputs: NDArray) -> dict[str, NDArray]:
    """Every part of the state at every step of one sequence (T, d_in): (T, units) by name.

    y of an LSTM-1997 is shown by its sections: hid, ig, og and cell.
    """
    machine, x = model.machine, torch.from_numpy(inputs)[:, None]
    layer = machine.net.layer
    machine.net.load(model.weights)
    with torch.no_grad():
        _, states = layer.trajectory(x)
    shapes = {name: int(np.prod(shape)) for name, shape in layer.state_spec.shapes.items()}
    sections: dict[str, int] = getattr(layer, "sections", {})
    sizes = {**sections, **{name: n for name, n in shapes.items() if name != "y"}} if sections else shapes
    return dict(zip(sizes, np.split(states[1:, 0].numpy(), np.cumsum([*sizes.values()])[:-1], axis=1)))


def activity(experiment: Experiment, model: LayerModel, rng: np.random.Generator) -> dict[str, Any] | None:
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
