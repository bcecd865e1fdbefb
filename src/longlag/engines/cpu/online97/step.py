"""One step of LSTM-1997 and its truncated gradient, as pieces of compiled code. [LSTM-97 2] [LSTM-97 3.1]

Letters: x̃ sources of a step, y_ig, y_og gate activations, s internal states, A, B traces ∂s/∂w_ig and ∂s/∂w_cell,
δ output errors, e errors at the units, ε errors entering the internal states; `u` is σ(net) of all units. Every vector
holds all units, all cells, the traces [A | B] of one source, or as many outputs as are computed in one turn.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from longlag.engines.cpu.online97.lanes import (
    at_hidden_units,
    at_output_gates,
    at_traced,
    cells,
    input_gates,
    output_gates,
    zero_cells,
    zero_outputs,
    zero_traces,
    zero_units,
)
from longlag.engines.cpu.online97.network import Network, Weights, lanes_for
from longlag.engines.cpu.simd.functions import INLINE, magnitude, maximum, sigmoid
from longlag.engines.cpu.simd.vector import join, load, load_at, store, store_at, total

# These functions cannot be called from Python, which halves their compile time. They take arrays, not tuples of arrays:
# reading an array from a tuple updates a reference count, which is slower than the computation.
PIECE = {**INLINE, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Work(NamedTuple):
    """Arrays of a running kernel."""

    y: NDArray  # (unit + cell lanes,) activations fed back: those of x̃(t)
    fresh: NDArray  # (unit + cell lanes,) activations of t + 1
    e: NDArray  # (unit + cell lanes,) errors of the hidden units, then of the cells
    traces: NDArray  # (D + 1, [A | B])
    touched: NDArray  # (D + 1,) symbols this sequence has met
    touched_by: NDArray  # (D + 1,) 1 + number of the last sequence that met a symbol
    outputs: NDArray  # (output lanes,) y
    slopes: NDArray  # (output lanes,) f_out′
    wanted: NDArray  # (output lanes,) ŷ
    delta: NDArray  # (output lanes,) δ
    tally: NDArray  # (3, output lanes) largest |y − ŷ|, Σ |y − ŷ|, Σ (y − ŷ)²


def workspace(network: Network, weights: Weights) -> Work:
    """All arrays, zero."""
    units = lanes_for(network.units) + lanes_for(network.cells)
    traces = (network.sources + 1, 2 * lanes_for(network.cells))
    outputs = weights.out_real.size
    vectors = [np.zeros(shape, network.dtype) for shape in (units, units, units, traces)]
    symbols = [np.zeros(network.sources + 1, np.int64) for _ in range(2)]
    return Work(*vectors, *symbols, *(np.zeros(o, network.dtype) for o in (*4 * [outputs], (3, outputs))))


@njit(**PIECE)
def net_inputs(network, W, inputs, t, y):
    """w·x̃(t) of all units; for a one-hot input only the column of its symbol."""
    first = W.shape[0] - 1 - network.fed_back
    net = load(zero_units(network), W, W.shape[0] - 1)
    if inputs.ndim == 1:
        net = net + load(net, W, inputs[t])
    else:
        for q in range(inputs.shape[1]):
            net = net + load(net, W, q) * inputs[t, q]
    odd = zero_units(network)  # two accumulators: half the latency
    for r in range(0, network.fed_back - 1, 2):
        net = net + load(net, W, first + r) * y[r]
        odd = odd + load(net, W, first + r + 1) * y[r + 1]
    if network.fed_back % 2:
        net = net + load(net, W, first + network.fed_back - 1) * y[network.fed_back - 1]
    return net + odd


@njit(**PIECE)
def write(network, u, s):
    """The internal states after this step, and the coefficients of x̃ in the traces A and B."""
    y_ig, k = input_gates(network, u), cells(network, u)
    a, b = network.g
    g, dg = a * k + b, a * k * (1 - k)
    s = s + y_ig * g  # [LSTM-97 2 s]
    return s, join(g * (y_ig * (1 - y_ig)), y_ig * dg)  # [LSTM-97 3.1 A] [LSTM-97 3.1 B]


@njit(**PIECE)
def read(network, u, s):
    """y_og, h(s) and h′(s) of each cell; without output gates y_og = 1 (and y_og(1 − y_og) = 0)."""
    y_og = output_gates(network, u) if network.output_gates else zero_cells(network) + 1
    if network.h_is_identity:
        return y_og, s, zero_cells(network) + 1
    a, b = network.h
    k = sigmoid(s)
    return y_og, a * k + b, a * k * (1 - k)


@njit(**PIECE)
def keep(network, u, y_cell, y):
    """Store the activations of all units; those of the cells come last, over their σ(net)."""
    store_at(u, y, 0)
    store_at(y_cell, y, network.first_cell)


@njit(**PIECE)
def add_traces(network, traces, inputs, t, y, coefficients):
    """A += g(n_cell) σ′(n_ig) x̃, B += y_ig g′(n_cell) x̃. [LSTM-97 3.1]"""
    bias = traces.shape[0] - 1
    first = bias - network.fed_back
    if inputs.ndim == 1:
        store(load(zero_traces(network), traces, inputs[t]) + coefficients, traces, inputs[t])
    else:
        for q in range(inputs.shape[1]):
            store(load(zero_traces(network), traces, q) + coefficients * inputs[t, q], traces, q)
    for r in range(network.fed_back):
        store(load(zero_traces(network), traces, first + r) + coefficients * y[r], traces, first + r)
    store(load(zero_traces(network), traces, bias) + coefficients, traces, bias)


@njit(**PIECE)
def touch(inputs, t, k, touched, touched_by, met):
    """Note the symbol of step t if sequence k meets it for the first time; how many it has met."""
    if inputs.ndim == 1 and touched_by[inputs[t]] != k + 1:
        touched_by[inputs[t]] = k + 1
        touched[met] = inputs[t]
        met += 1
    return met


@njit(**PIECE)
def respond(network, W, inputs, t, y, outputs, slopes):
    """f_out(w_out·x̃_out(t+1)) and f_out′, from x(t) and the new hidden and cell activations. [LSTM-97 2]"""
    turns = W.shape[1] // network.output_lanes
    first = W.shape[0] - 1 - network.hidden_units - network.cells
    for turn in range(turns):
        z = load(zero_outputs(network), W, (W.shape[0] - 1) * turns + turn)
        if network.input_to_output:
            if inputs.ndim == 1:
                z = z + load(z, W, inputs[t] * turns + turn)
            else:
                for q in range(inputs.shape[1]):
                    z = z + load(z, W, q * turns + turn) * inputs[t, q]
        for p in range(network.hidden_units):
            z = z + load(z, W, (first + p) * turns + turn) * y[p]
        for c in range(network.cells):
            z = z + load(z, W, (first + network.hidden_units + c) * turns + turn) * y[network.first_cell + c]
        if network.linear_output:
            store(z, outputs, turn)
            store(zero_outputs(network) + 1, slopes, turn)
        else:
            k = sigmoid(z)
            store(k, outputs, turn)
            store(k * (1 - k), slopes, turn)


@njit(**PIECE)
def ask(targets, i, wanted):
    """Lay out target number i, ŷ."""
    if targets.ndim == 1:
        for o in range(wanted.size):
            wanted[o] = 0
        wanted[targets[i]] = 1
    else:
        for o in range(targets.shape[1]):
            wanted[o] = targets[i, o]


@njit(**PIECE)
def compare(network, outputs, slopes, wanted, real, delta, tally):
    """δ = (y − ŷ) f_out′ of every output; |y − ŷ| and its square are counted. [LSTM-97 3.1]"""
    turns = real.size // network.output_lanes
    for turn in range(turns):
        error = load(zero_outputs(network), outputs, turn) - load(zero_outputs(network), wanted, turn)
        error = error * load(error, real, turn)
        store(error * load(error, slopes, turn), delta, turn)
        store(maximum(magnitude(error), load(error, tally, turn)), tally, turn)
        store(load(error, tally, turns + turn) + magnitude(error), tally, turns + turn)
        store(load(error, tally, 2 * turns + turn) + error * error, tally, 2 * turns + turn)


@njit(**PIECE)
def summarise(tally, errors, k, count):
    """Largest, mean absolute and squared error of sequence k, of `count` outputs; a NaN appears in all three."""
    largest = absolute = squared = 0.0
    for o in range(tally.shape[1]):
        largest = max(largest, tally[0, o])
        absolute += tally[1, o]
        squared += tally[2, o]
        tally[0, o] = tally[1, o] = tally[2, o] = 0
    errors[k, 0] = largest if absolute == absolute else np.nan
    errors[k, 1] = absolute / count
    errors[k, 2] = squared


@njit(**PIECE)
def send_back(network, W, delta, e):
    """e = w_outᵀ δ at the hidden units, then at the cells. [LSTM-97 3.1]"""
    turns = W.shape[1] // network.output_lanes
    first = W.shape[0] - 1 - network.hidden_units - network.cells
    for unit in range(network.hidden_units + network.cells):
        products = zero_outputs(network)
        for turn in range(turns):
            products = products + load(products, W, (first + unit) * turns + turn) * load(products, delta, turn)
        e[unit] = total(products)


@njit(**PIECE)
def error_terms(network, e, u, y_og, h, dh, scale):
    """The factors of x̃(t) in the gradients dw_hid and dw_og, and ε for the traces A and for B. [LSTM-97 3.1]"""
    e_cell = load_at(zero_cells(network), e, network.hidden_units) * scale
    now = at_output_gates(network, e_cell * h * (y_og * (1 - y_og)))
    if network.hidden_units:
        now = now + at_hidden_units(network, load_at(u, e, 0) * scale * (u * (1 - u)))
    eps = e_cell * y_og * dh
    return now, join(eps, eps)


@njit(**PIECE)
def add_to(into, row, gradient):
    """into[row] += gradient"""
    store(load(gradient, into, row) + gradient, into, row)


@njit(**PIECE)
def add_gradient(network, into, biased, inputs, t, y, traces, touched, met, now, eps):
    """dw_hid, dw_og: now · x̃(t); dw_ig: Σ_j ε A; dw_cell: ε B; source by source. [LSTM-97 3.1]"""
    bias = into.shape[0] - 1
    first = bias - network.fed_back
    if inputs.ndim == 1:
        for i in range(met):
            add_to(into, touched[i], at_traced(network, eps * load(eps, traces, touched[i])))
        add_to(into, inputs[t], now)
    else:
        for q in range(inputs.shape[1]):
            add_to(into, q, now * inputs[t, q] + at_traced(network, eps * load(eps, traces, q)))
    for r in range(network.fed_back):
        add_to(into, first + r, now * y[r] + at_traced(network, eps * load(eps, traces, first + r)))
    add_to(into, bias, (now + at_traced(network, eps * load(eps, traces, bias))) * load(now, biased, 0))


@njit(**PIECE)
def add_output_gradient(network, into, biased, inputs, t, y, delta, scale):
    """dw_out += δ x̃_out(t+1)ᵀ. [LSTM-97 3.1]"""
    turns, bias = into.shape[1] // network.output_lanes, into.shape[0] - 1
    first = bias - network.hidden_units - network.cells
    for turn in range(turns):
        d = load(zero_outputs(network), delta, turn) * scale
        if network.input_to_output:
            if inputs.ndim == 1:
                add_to(into, inputs[t] * turns + turn, d)
            else:
                for q in range(inputs.shape[1]):
                    add_to(into, q * turns + turn, d * inputs[t, q])
        for p in range(network.hidden_units):
            add_to(into, (first + p) * turns + turn, d * y[p])
        for c in range(network.cells):
            add_to(into, (first + network.hidden_units + c) * turns + turn, d * y[network.first_cell + c])
        add_to(into, bias * turns + turn, d * load(d, biased, turn))


@njit(**PIECE)
def clear(matrix, touched, met, first):
    """The rows of the symbols met, and all from `first` on, become 0."""
    for i in range(met):
        for r in range(matrix.shape[1]):
            matrix[touched[i], r] = 0
    for q in range(first, matrix.shape[0]):
        for r in range(matrix.shape[1]):
            matrix[q, r] = 0


@njit(**PIECE)
def descend(w, gradient, touched, met, first, rate):
    """w −= rate · gradient, gradient = 0, on the rows of the symbols met and all from `first` on."""
    for i in range(met):
        for r in range(w.shape[1]):
            w[touched[i], r] -= rate * gradient[touched[i], r]
    for q in range(first, w.shape[0]):
        for r in range(w.shape[1]):
            w[q, r] -= rate * gradient[q, r]
    clear(gradient, touched, met, first)
