"""The table of a real-time kernel: sizes, addresses and results, each a 64-bit word.

The constants are indices into the table. T steps of B samples; I inputs, O outputs; N packed weights (`layout`).
"""

from typing import NamedTuple

# what the kernel reports: a code (`DONE`, …), the steps of the chunk that are done, and the sample that failed
(status, done, failed_sample) = range(3)
# sizes; number_bytes: bytes of a number
(B, I, O, R, N, sample_size, symbol_words) = range(3, 10)
# memory of the network: packed weights and the parallel arrays of the optimiser; the parameters as the equations read
# them; what each sample keeps, numbers and symbols
(weights, gradient, effective, samples, met) = range(10, 15)
# the chunk; address 0: not given. flags (T,) bytes: bits of `SCORED`, …; kept: outputs of the steps with `KEPT`
(x, targets, mask, active, reset, flags, kept, losses) = range(15, 23)
# rows of targets and of kept outputs used so far
(targets_used, kept_used) = range(23, 25)
# the loss (`losses`), and whether targets are classes
(loss, classes) = range(25, 27)
# the optimiser's kernel, its counters, and its arguments; see `update`
(update, pending, updates, skipped, skipped_in_a_row, warn) = range(27, 33)
(groups, hyper, masks, moments, copies, copies_each, copies_count, numbers) = range(33, 41)
# steps with a target so far; the memory of a sample at rest; symbols whose gradients may not be 0; number of groups
(scored, rest, dirty, network_groups) = range(41, 45)
# in a sample's memory: what is fed back; the output and its error
(fed, answer) = range(45, 47)
blocks = 47  # address of the words of `blocks`
frozen = 48  # whether weights are frozen: no gradients, no traces
END = 49  # the first group's sizes

# numbers (float64): norm of the last gradient; largest norm, 0 for none; the last loss; its exponential mean, over
# some `HORIZON` steps
NORM, CLIP, LOSS, RUNNING, HORIZON = range(5)
SKIPS = 10  # skipped updates in a row that cause a warning
SCORED, UPDATE, KEPT = 1, 2, 4  # bits of flags: the step has a target, an update follows, the output is kept
DONE, BAD_INPUT, BAD_STATE, BAD_TARGET, BAD_LOSS = range(5)  # status


class Sizes(NamedTuple):
    """Sizes and offsets of a group. D sources, of which the first are inputs, the last ones 1 (biases)."""

    units: int
    tiles: int  # vectors of units
    D: int
    inputs: int
    ones: int
    W: int  # in the packed weights: (gate, tile, source, lane), params (param, tile, lane) after them
    P: int
    source: int  # in a sample's memory: the sources, rows of units, traces
    rows: int
    E: int
    columns: int  # tiles of all gates
    lanes: int
    params: int  # numbers of all params
    traced: int  # whether all symbols met have gradients, or only the present one


WORDS = len(Sizes._fields)
(units, tiles, D, inputs, ones, W, P, source, rows, E, columns, lanes, params, traced) = range(WORDS)  # in its words
