"""Sequential construction: a network of LSTM-1997 that gets its blocks one by one while it learns. [LSTM-97 4]

The weights of the whole network are drawn at the start. While there are k blocks, the network in use is made of the
rows and columns of the first k; the others wait, as they were drawn, for their blocks to be added.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from longlag.lab.architecture import Architecture
from longlag.lab.learners import LSTM97Learner
from longlag.lab.models import LayerModel, SequenceErrors
from longlag.lab.nets import initial_weights, with_blocks
from longlag.tasks import Ragged


def columns(whole: Architecture, part: Architecture) -> tuple[NDArray, NDArray]:
    """Where the sources of `part` stand among those of `whole`: of units and gates, and of outputs.

    >>> whole = Architecture(input_size=1, blocks=2, block_size=1, output_size=1)
    >>> [found.tolist() for found in columns(whole, replace(whole, blocks=1))]  # [x, ig, ig, og, og, cell, cell]
    [[0, 1, 3, 5], [0]]
    """
    found, start = list(range(whole.input_size)), whole.input_size
    for group, count in whole.groups.items() if whole.recurrent else ():
        found += range(start, start + part.groups.get(group, 0))
        start += count
    direct = whole.input_size * whole.input_to_output
    return np.array(found), np.arange(direct + whole.hidden_units + part.cells)


def part_of(weights: dict[str, NDArray], whole: Architecture, part: Architecture) -> dict[str, NDArray]:
    """The weights of a part with fewer blocks."""
    return {name: weights[name][place] for name, place in places(weights, whole, part).items()}


def places(weights: dict[str, NDArray], whole: Architecture, part: Architecture) -> dict[str, tuple]:
    """Name -> index of a part's weights within those of the whole."""
    units, outputs = columns(whole, part)
    rows = {"out": whole.output_size, **part.groups}
    index: dict[str, tuple] = {}
    for name in weights:
        kind, _, group = name.partition("_")
        if count := rows.get(group, 0):
            first = np.arange(count)
            index[name] = np.ix_(first, outputs if group == "out" else units) if kind == "weight" else (first,)
    return index


class GrowingModel(LayerModel):
    """LSTM-1997 that starts with `construction.start` blocks; with none, only the direct connections learn."""

    def __init__(self, learner: LSTM97Learner, rng: np.random.Generator) -> None:
        assert learner.construction is not None
        self.learner, self.construction = learner, learner.construction
        self.whole = initial_weights(learner, rng)
        if self.construction.mute:
            known = columns(learner.network, replace(learner.network, blocks=self.construction.start))[1]
            self.whole["weight_out"][:, np.setdiff1d(np.arange(self.whole["weight_out"].shape[1]), known)] = 0.0
        self._enter(self.construction.start)

    def _enter(self, blocks: int) -> None:
        """Go on with so many blocks; the error has yet to stall."""
        self.network = replace(self.learner.network, blocks=blocks)
        self.seen, self.stalled, self.best, self.total = 0, 0, np.inf, 0.0
        self.use(with_blocks(self.learner, blocks), part_of(self.whole, self.learner.network, self.network))

    @property
    def complete(self) -> bool:
        """Have all blocks been added?"""
        return self.network.blocks == self.learner.network.blocks

    def train(self, batch: Ragged) -> SequenceErrors:
        pieces, done = [], 0
        while done < len(batch):
            size = len(batch) - done if self.complete else min(len(batch) - done, self._left())
            piece = batch if size == len(batch) else batch.take(np.arange(done, done + size))
            errors = super().train(piece)
            pieces.append(errors)
            done += size
            if not self.complete:
                self._follow(size, float(errors.mean.sum()))
        return SequenceErrors(*(np.concatenate(column) for column in zip(*pieces)))

    def _left(self) -> int:
        """Sequences until the next decision."""
        own = self.construction
        return own.window - self.seen % own.window if own.after is None else own.after - self.seen

    def _follow(self, sequences: int, error: float) -> None:
        """Count sequences with their summed error; add a block where the rule says so."""
        own = self.construction
        self.seen += sequences
        self.total += error
        if own.after is not None:
            if self.seen >= own.after:
                self.add_block()
        elif self.seen % own.window == 0:
            mean, self.total = self.total / own.window, 0.0
            improved = mean <= (1 - own.improvement) * self.best
            self.best, self.stalled = (mean, 0) if improved else (self.best, self.stalled + 1)
            if self.stalled >= own.patience:
                self.add_block()

    def add_block(self) -> None:
        """One block more, with its gates; weights learned so far stay. [LSTM-97 4]"""
        whole = {name: weights.copy() for name, weights in self.whole.items()}
        for name, place in places(whole, self.learner.network, self.network).items():
            whole[name][place] = self.weights[name]
        self.whole = whole
        self._enter(self.network.blocks + 1)

    def test(self, batch: Ragged, last: bool = False) -> SequenceErrors:
        return super().test(batch, last) if self.network.blocks else failed(len(batch))


def failed(sequences: int) -> SequenceErrors:
    """The largest errors there are: a net without memory cells is not tested."""
    return SequenceErrors(*np.full((3, sequences), np.inf))
