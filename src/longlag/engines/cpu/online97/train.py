"""Truncated RTRL of LSTM-1997 over whole blocks of sequences inside compiled code, learning online. [LSTM-97 3.1]

A block is ragged and packed: sequence k is the steps offsets[k] … offsets[k+1] − 1 of `inputs`. One-hot inputs and
targets are given as symbols, and a step then costs one column of the weights instead of d_in. Each network shape is
compiled once, in a few seconds, and stored on disk; sizes are constants of the compiled code.

>>> network = Network(input_size=2, blocks=2, block_size=2, output_size=1, output="linear")
>>> weights = pack(network, {name: np.full(shape, 0.1) for name, shape in network.shapes().items()})
>>> inputs, offsets, targets = np.ones((5, 2)), np.array([0, 2, 5]), np.array([[0.5], [1.0]])
>>> evaluate(network, weights, inputs, offsets, targets).largest.round(4)
array([0.4559, 0.9208])
>>> train(network, weights, inputs, offsets, targets, lr=0.5).largest.round(4)  # the second has learned
array([0.4559, 0.8955])
"""

import math
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.online97.lanes import zero_cells
from longlag.engines.cpu.online97.network import Network as Network
from longlag.engines.cpu.online97.network import Weights as Weights
from longlag.engines.cpu.online97.network import check_packed
from longlag.engines.cpu.online97.network import pack as pack
from longlag.engines.cpu.online97.network import unpack as unpack
from longlag.engines.cpu.online97.step import (
    add_gradient,
    add_output_gradient,
    add_traces,
    ask,
    clear,
    compare,
    descend,
    error_terms,
    keep,
    net_inputs,
    read,
    respond,
    send_back,
    summarise,
    touch,
    workspace,
    write,
)
from longlag.engines.cpu.simd.functions import FLAGS, sigmoid

KERNEL = {**FLAGS, "nogil": True, "no_cfunc_wrapper": True}


class Errors(NamedTuple):
    """Errors y − ŷ over the scored outputs of each sequence, before its update."""

    largest: NDArray  # (n,) max |y − ŷ|
    mean: NDArray  # (n,) mean |y − ŷ|
    squared: NDArray  # (n,) Σ (y − ŷ)²
    outputs: NDArray | None = None  # (N, d_out) y at every step, if asked for


class Block(NamedTuple):
    """Sequences, checked and in the kernel's types; · is n for the last step of each sequence, N for every step."""

    inputs: NDArray  # (N, d_in) numbers or (N,) symbols
    offsets: NDArray  # (n + 1,)
    targets: NDArray  # (·, d_out) numbers or (·,) symbols
    scored: NDArray  # (N,) bool, or (0,): the last steps


@array_kernel(Path(__file__).parent, **KERNEL)
def learn(network, weights, into, block, work, initial, scale, rate, errors):
    """Run each sequence and add scale · gradient to `into`; with a rate, then w −= rate · into and into = 0."""
    inputs, offsets, targets, scored = block
    W, w_out, biased, out_biased, real = weights
    dW, dw_out = into.units, into.out
    y, fresh, e, traces, touched, touched_by, outputs, slopes, wanted, delta, tally = work
    at_end, first = scored.size == 0, 0 if inputs.ndim == 2 else W.shape[0] - 1 - network.fed_back
    for k in range(offsets.size - 1):
        s, met, steps = zero_cells(network), 0, 0
        y[:] = initial
        for t in range(offsets[k], offsets[k + 1]):
            met = touch(inputs, t, k, touched, touched_by, met)
            u = sigmoid(net_inputs(network, W, inputs, t, y))
            s, coefficients = write(network, u, s)
            add_traces(network, traces, inputs, t, y, coefficients)
            y_og, h, dh = read(network, u, s)
            if t == offsets[k + 1] - 1 if at_end else scored[t]:
                keep(network, u, y_og * h, fresh)
                respond(network, w_out, inputs, t, fresh, outputs, slopes)
                ask(targets, k if at_end else t, wanted)
                compare(network, outputs, slopes, wanted, real, delta, tally)
                send_back(network, w_out, delta, e)
                now, eps = error_terms(network, e, u, y_og, h, dh, scale)
                add_gradient(network, dW, biased, inputs, t, y, traces, touched, met, now, eps)
                add_output_gradient(network, dw_out, out_biased, inputs, t, fresh, delta, scale)
                steps += 1
            if network.recurrent:
                keep(network, u, y_og * h, y)
        summarise(tally, errors, k, steps * real.sum())
        clear(traces, touched, met, first)
        if rate:
            descend(W, dW, touched, met, first, rate)
            direct = network.input_to_output
            descend(w_out, dw_out, touched, met if direct else 0, first if direct else 0, rate)


@array_kernel(Path(__file__).parent, **KERNEL)
def observe(network, weights, block, work, initial, errors, kept):
    """Run each sequence without learning; stores the outputs of all steps if a buffer is given."""
    inputs, offsets, targets, scored = block
    W, w_out, _, _, real = weights
    y, _, _, _, _, _, outputs, slopes, wanted, delta, tally = work
    at_end = scored.size == 0
    for k in range(offsets.size - 1):
        s, steps = zero_cells(network), 0
        y[:] = initial
        for t in range(offsets[k], offsets[k + 1]):
            u = sigmoid(net_inputs(network, W, inputs, t, y))
            s, _ = write(network, u, s)
            y_og, h, _ = read(network, u, s)
            keep(network, u, y_og * h, y)
            is_scored = t == offsets[k + 1] - 1 if at_end else scored[t]
            if is_scored or kept.size:
                respond(network, w_out, inputs, t, y, outputs, slopes)
            if kept.size:
                for o in range(kept.shape[1]):
                    kept[t, o] = outputs[o]
            if is_scored:
                ask(targets, k if at_end else t, wanted)
                compare(network, outputs, slopes, wanted, real, delta, tally)
                steps += 1
        summarise(tally, errors, k, steps * real.sum())


def check_values(owner: str, name: str, values: ArrayLike, size: int, dtype: str) -> NDArray:
    """Numbers (·, size) in `dtype`, or symbols (·,)."""
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind in "iu":
        if array.size and not 0 <= array.min() <= array.max() < size:
            got = f"{array.min()} … {array.max()}"
            raise ValueError(f"{owner}: {name} must be symbols from 0 to {size - 1}, got {got}")
        return np.require(array, np.int64, ["C", "W"])
    if array.ndim != 2 or array.shape[1] != size or array.dtype.kind not in "fiu":
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{owner}: {name} must be numbers (·, {size}) or integer symbols (·,), got {got}")
    return np.require(array, dtype, ["C", "W"])


def check_mask(owner: str, mask: ArrayLike | None, offsets: NDArray, targets: NDArray) -> NDArray:
    """Which steps are scored, (N,) bool; empty if only the last of each sequence."""
    sequences, steps = offsets.size - 1, int(offsets[-1])
    if len(targets) not in (sequences, steps):
        got = len(targets)
        raise ValueError(f"{owner}: targets must be for {sequences} sequences or {steps} steps, got {got}")
    if len(targets) == sequences and (mask is None or sequences != steps):
        if mask is not None:
            raise ValueError(f"{owner}: mask must be None where targets are for last steps only")
        return np.empty(0, np.bool_)
    scored = np.ones(steps, np.bool_) if mask is None else np.require(np.asarray(mask), None, ["C", "W"])
    if scored.dtype != np.bool_ or scored.shape != (steps,):
        got = f"{scored.dtype} of shape {scored.shape}"
        raise ValueError(f"{owner}: mask must be bool of shape ({steps},), got {got}")
    if not np.logical_or.reduceat(scored, offsets[:-1]).all():
        raise ValueError(f"{owner}: mask must score at least one step of every sequence, got one without")
    return scored


def check(owner: str, network: Network, weights: Weights, inputs, offsets, targets, mask, **numbers: float) -> Block:
    """The block in the kernel's types; compiled code checks nothing, so all arguments are validated here."""
    check_packed(owner, network, weights)
    for name, value in numbers.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{owner}: {name} must be a finite number, got {value!r}")
    inputs = check_values(owner, "inputs", inputs, network.input_size, network.dtype)
    targets = check_values(owner, "targets", targets, network.output_size, network.dtype)
    bounds = np.asarray(offsets)
    integers = bounds.dtype.kind in "iu" and bounds.ndim == 1 and bounds.size > 1
    if not integers or bounds[0] != 0 or bounds[-1] != len(inputs) or (np.diff(bounds.astype(np.int64)) < 1).any():
        raise ValueError(f"{owner}: offsets must be integers rising from 0 to {len(inputs)}, got {offsets!r}")
    bounds = np.require(bounds, np.int64, ["C", "W"])
    return Block(inputs, bounds, targets, check_mask(owner, mask, bounds, targets))


def train(
    network: Network,
    weights: Weights,
    inputs: ArrayLike,
    offsets: ArrayLike,
    targets: ArrayLike,
    *,
    lr: float,
    mask: ArrayLike | None = None,
    update: str = "sequence",
    initial: float = 0.0,
) -> Errors:
    """Learn online, one sequence after another: w ← w − lr · ∂/∂w ½ Σ (y − ŷ)². `weights` change in place.

    inputs: (N, d_in) numbers or (N,) symbols. offsets: (n + 1,). targets: (n, d_out) numbers or (n,) symbols for the
    last step of each sequence; (N, d_out) or (N,) for every step that `mask` (N,) does not exclude. update: at the
    end of each "sequence" or after each scored "step". initial: fed-back activations at a sequence's first step.
    """
    if update not in ("sequence", "step"):
        raise ValueError(f"train: update must be 'sequence' or 'step', got {update!r}")
    block = check("train", network, weights, inputs, offsets, targets, mask, lr=lr, initial=initial)
    number, errors = np.dtype(network.dtype).type, np.empty((block.offsets.size - 1, 3))
    if update == "step" or block.scored.size == 0:  # one scored step per sequence: no gradients to sum
        into, scale, rate = weights, -lr, 0
    else:
        into, scale, rate = blank(weights), 1, lr
    work = workspace(network, weights)
    learn(network, weights, into, block, work, number(initial), number(scale), number(rate), errors)
    return Errors(*errors.T)


def gradient(
    network: Network,
    weights: Weights,
    inputs: ArrayLike,
    offsets: ArrayLike,
    targets: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    initial: float = 0.0,
) -> dict[str, NDArray]:
    """The truncated gradient of ½ Σ (y − ŷ)² over the block, in the public layout. Arguments as for `train`."""
    block = check("gradient", network, weights, inputs, offsets, targets, mask, initial=initial)
    number, errors = np.dtype(network.dtype).type, np.empty((block.offsets.size - 1, 3))
    into, work = blank(weights), workspace(network, weights)
    learn(network, weights, into, block, work, number(initial), number(1), number(0), errors)
    return unpack(network, into)


def evaluate(
    network: Network,
    weights: Weights,
    inputs: ArrayLike,
    offsets: ArrayLike,
    targets: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    initial: float = 0.0,
    outputs: bool = False,
) -> Errors:
    """Errors without learning, and if asked for the outputs of all steps. Arguments as for `train`."""
    block = check("evaluate", network, weights, inputs, offsets, targets, mask, initial=initial)
    number, errors = np.dtype(network.dtype).type, np.empty((block.offsets.size - 1, 3))
    kept = np.empty((len(block.inputs) if outputs else 0, network.output_size), network.dtype)
    observe(network, weights, block, workspace(network, weights), number(initial), errors, kept)
    return Errors(*errors.T, outputs=kept if outputs else None)


def blank(weights: Weights) -> Weights:
    """A zero buffer for a gradient."""
    return weights._replace(units=np.zeros_like(weights.units), out=np.zeros_like(weights.out))
