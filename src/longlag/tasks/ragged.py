"""The ragged batch: sequences of unequal length laid end to end, without padding."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch

from longlag.tasks._draw import offsets_of

IGNORED = -100  # padding of symbol targets: the ignore_index of torch's cross entropy


@dataclass(frozen=True, eq=False)
class Ragged:
    """n sequences, N steps in all; sequence k is rows offsets[k]:offsets[k+1].

    Args:
        inputs: (N, input_size) float64, or (N,) int64 symbols, read as one-hot vectors of that width.
        offsets: (n+1,) int64, from 0 to N, strictly increasing.
        targets: (n, output_size) float64 when only the end of a sequence is scored; when every step is,
            (N, output_size) float64 or (N,) int64 symbols below output_size.
        input_size: width of an input vector.
        output_size: width of an output vector.
        labels: (n,) int64, the class of each sequence, where the task has classes.
        noise_free: like targets, where the task adds noise to its training targets.

    >>> batch = Ragged(np.array([2, 0, 1]), np.array([0, 2, 3]), np.array([[1.0], [0.0]]), 3, 1)
    >>> len(batch), batch.lengths.tolist(), batch.scored
    (2, [2, 1], 'end')
    >>> batch.dense().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    inputs: np.ndarray
    offsets: np.ndarray
    targets: np.ndarray
    input_size: int
    output_size: int
    labels: np.ndarray | None = None
    noise_free: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "offsets", "targets", "labels", "noise_free"):
            value, optional = getattr(self, name), name in ("labels", "noise_free")
            if not isinstance(value, np.ndarray) and not (optional and value is None):
                raise TypeError(f"Ragged: {name} must be a numpy array, got {value!r}")
        steps = len(self.inputs) if self.inputs.ndim else 0
        _check_offsets(self.offsets, steps)
        n = len(self)
        _check_rows("inputs", self.inputs, (steps,), steps, self.input_size)
        _check_rows("targets", self.targets, (n, steps), steps, self.output_size)
        if self.labels is not None and (self.labels.shape != (n,) or self.labels.dtype != np.int64):
            raise ValueError(f"Ragged: labels must be ({n},) int64, got {_kind(self.labels)}")
        if self.noise_free is not None and _kind(self.noise_free) != _kind(self.targets):
            expected, got = _kind(self.targets), _kind(self.noise_free)
            raise ValueError(f"Ragged: noise_free must be {expected}, got {got}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each sequence, (n,) int64."""
        return np.diff(self.offsets)

    @property
    def scored(self) -> Literal["end", "every"]:
        """Which outputs have a target: the one after the last input, or all."""
        return "end" if self.targets.ndim == 2 and len(self.targets) == len(self) else "every"

    @property
    def clean_targets(self) -> np.ndarray:
        """Targets to evaluate against: without training noise."""
        return self.targets if self.noise_free is None else self.noise_free

    def dense(self) -> np.ndarray:
        """Inputs as vectors, (N, input_size) float64."""
        return self.inputs if self.inputs.ndim == 2 else np.eye(self.input_size)[self.inputs]

    def take(self, which: np.ndarray) -> "Ragged":
        """The sequences of these indices (m,), in this order, as a batch of their own."""
        lengths = self.lengths[which]
        offsets = offsets_of(lengths)
        steps = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][which] - offsets[:-1], lengths)
        scored = which if self.scored == "end" else steps  # rows of targets and noise_free
        return Ragged(
            self.inputs[steps],
            offsets,
            self.targets[scored],
            self.input_size,
            self.output_size,
            None if self.labels is None else self.labels[which],
            None if self.noise_free is None else self.noise_free[scored],
        )

    def padded(
        self, batch_first: bool = False, dtype: torch.dtype = torch.float32
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs (T, B, input_size) filled up with 0, targets, lengths (B,), as torch tensors.

        Targets are (B, output_size); where every step is scored (T, B) int64 filled up with -100, or
        (T, B, output_size) filled up with NaN.
        With `batch_first`, B comes before T.

        >>> batch = Ragged(np.array([0, 1, 1]), np.array([0, 2, 3]), np.array([1, 0, 1]), 2, 2)
        >>> x, target, lengths = batch.padded()
        >>> x.shape, target.tolist(), lengths.tolist()
        (torch.Size([2, 2, 2]), [[1, 1], [0, -100]], [2, 1])
        """
        lengths = self.lengths
        sequence = np.repeat(np.arange(len(self)), lengths)
        step = np.arange(len(self.inputs)) - self.offsets[sequence]
        axes, shape = (step, sequence), (int(lengths.max()), len(self))
        if batch_first:
            axes, shape = axes[::-1], shape[::-1]
        place = tuple(torch.from_numpy(axis) for axis in axes)

        x = torch.zeros(*shape, self.input_size, dtype=dtype)
        inputs = torch.from_numpy(self.inputs)
        if inputs.ndim == 2:
            x[place] = inputs.to(dtype)
        else:
            x[(*place, inputs)] = 1
        if self.scored == "end":
            targets = torch.from_numpy(self.targets).to(dtype, copy=True)
        elif self.targets.ndim == 1:
            targets = torch.full(shape, IGNORED)
            targets[place] = torch.from_numpy(self.targets)
        else:
            targets = torch.full((*shape, self.output_size), torch.nan, dtype=dtype)
            targets[place] = torch.from_numpy(self.targets).to(dtype)
        return x, targets, torch.from_numpy(lengths)


@runtime_checkable
class Task(Protocol):
    """A generator of data.

    `minimal_lag` is how long the net must remember: an input of step i that the output after step j
    needs has lag j - i + 1 (the spec's clock B). This lag is the figure that the paper prints, and never more than
    the shortest lag in the data.
    """

    @property
    def input_size(self) -> int: ...
    @property
    def output_size(self) -> int: ...
    @property
    def minimal_lag(self) -> int: ...
    def sample(self, n: int, rng: np.random.Generator) -> Ragged:
        """Draw n fresh sequences."""
        ...


def _check_offsets(offsets: np.ndarray, steps: int) -> None:
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype != np.int64:
        raise ValueError(f"Ragged: offsets must be (n+1,) int64 with n >= 1, got {_kind(offsets)}")
    if offsets[0] != 0 or offsets[-1] != steps or (np.diff(offsets) < 1).any():
        raise ValueError(
            f"Ragged: offsets must rise strictly from 0 to {steps}, the rows of inputs, "
            f"got {np.array2string(offsets, threshold=8)}"
        )


def _check_rows(name: str, values: np.ndarray, dense_rows: tuple[int, ...], symbol_rows: int, size: int) -> None:
    vectors = values.shape in [(rows, size) for rows in dense_rows] and values.dtype == np.float64
    symbols = values.shape == (symbol_rows,) and values.dtype == np.int64
    if not vectors and not symbols:
        vectors_allowed = " or ".join(f"({rows}, {size}) float64" for rows in dict.fromkeys(dense_rows))
        allowed = f"{vectors_allowed} or ({symbol_rows},) int64"
        raise ValueError(f"Ragged: {name} must be {allowed}, got {_kind(values)}")
    if symbols and (values.min() < 0 or values.max() >= size):
        found = f"{values.min()}..{values.max()}"
        raise ValueError(f"Ragged: {name} must be symbols in 0..{size - 1}, got {found}")


def _kind(values: np.ndarray) -> str:
    return f"{values.shape} {values.dtype}"
