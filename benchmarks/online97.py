"""Nanoseconds per time step of the online LSTM-1997 kernel, on the networks of the paper's experiments.

    python benchmarks/online97.py [repetitions]

The data are random, of the experiments' sizes and lengths: speed does not depend on what is learned. Experiment 4 is
also run by `plain_loop`, the same algorithm in plain Numba; nothing is timed before the two agree. Times are processor
times of one thread, so a busy machine disturbs them little.
"""

import math
import sys
import time
from functools import partial

import llvmlite.binding
import numba
import numpy as np

from longlag.engines.cpu.online97.train import Network, evaluate, pack, train, unpack

ALL = "ig og cell out"
TWO_A = Network(101, 1, 1, 101, 0, False, False, True, "logistic", "identity")
# Network, biases, mean length, symbols?, scored at every step?, update
ROWS = {
    "1, 4 blocks x 1": (Network(7, 4, 1, 7), "ig og", 11, True, True, "step"),
    "1, 3 blocks x 2": (Network(7, 3, 2, 7), "ig og", 11, True, True, "step"),
    "2a, p = 100": (TWO_A, "", 100, True, True, "step"),
    "2c, p = 100": (Network(104, 2, 1, 2), "", 112, True, False, "sequence"),
    "2c, not fed back": (Network(104, 2, 1, 2, recurrent=False), "", 112, True, False, "sequence"),
    "3": (Network(1, 3, 1, 1), "ig og cell", 105, False, False, "sequence"),
    "4": (Network(2, 2, 2, 1, output="linear"), ALL, 105, False, False, "sequence"),
    "4, float32": (Network(2, 2, 2, 1, output="linear", dtype="float32"), ALL, 105, False, False, "sequence"),
    "6a": (Network(8, 2, 2, 4), ALL, 105, True, False, "sequence"),
    "6b": (Network(8, 3, 2, 8), ALL, 105, True, False, "sequence"),
}


@numba.njit(fastmath=True)
def plain_loop(inputs, offsets, targets, W, w_out, lr, n_b, d_b):
    """Experiment 4 without vectors: weights source by unit, units [ig | og | cell], one linear output, all biases."""
    n_c, d_in = n_b * d_b, inputs.shape[1]
    units = 2 * n_b + n_c
    D = d_in + units + 1
    source, traces, into_traces = np.zeros(D), np.zeros((D, 2 * n_c)), np.zeros(2 * n_c)
    u, y, s, h, errors = np.zeros(units), np.zeros(units), np.zeros(n_c), np.zeros(n_c), np.zeros(len(targets))
    source[D - 1] = 1
    for k in range(len(targets)):
        traces[:], y[:], s[:] = 0, 0, 0
        for t in range(offsets[k], offsets[k + 1]):
            for q in range(d_in):
                source[q] = inputs[t, q]
            for r in range(units):
                source[d_in + r], u[r] = y[r], 0
            for q in range(D):
                for r in range(units):
                    u[r] += W[q, r] * source[q]
            for r in range(units):
                u[r] = 1 / (1 + math.exp(-u[r]))
            for b in range(n_b):
                y[b], y[n_b + b] = u[b], u[n_b + b]
                for c in range(b * d_b, (b + 1) * d_b):
                    cell = u[2 * n_b + c]
                    g = 4 * cell - 2
                    s[c] += u[b] * g
                    into_traces[c], into_traces[n_c + c] = g * u[b] * (1 - u[b]), u[b] * 4 * cell * (1 - cell)
                    h[c] = 2 / (1 + math.exp(-s[c])) - 1
                    y[2 * n_b + c] = u[n_b + b] * h[c]
            for q in range(D):
                for i in range(2 * n_c):
                    traces[q, i] += into_traces[i] * source[q]
        error = w_out[n_c] - targets[k, 0]
        for c in range(n_c):
            error += w_out[c] * y[2 * n_b + c]
        errors[k] = abs(error)
        for b in range(n_b):
            y_og = u[n_b + b]
            for c in range(b * d_b, (b + 1) * d_b):
                e = error * w_out[c]
                eps, d_og = e * y_og * (1 - h[c] ** 2) / 2, e * h[c] * y_og * (1 - y_og)
                for q in range(D):
                    W[q, b] -= lr * eps * traces[q, c]
                    W[q, n_b + b] -= lr * d_og * source[q]
                    W[q, 2 * n_b + c] -= lr * eps * traces[q, n_c + c]
        for c in range(n_c):
            w_out[c] -= lr * error * y[2 * n_b + c]
        w_out[n_c] -= lr * error
    return errors


def plain_weights(network, weights):
    """The arguments W and w_out of `plain_loop`."""
    w = unpack(network, weights)
    rows = [np.column_stack([w[f"weight_{group}"], w[f"bias_{group}"]]) for group in ("ig", "og", "cell")]
    return np.ascontiguousarray(np.vstack(rows).T), np.append(w["weight_out"][0], w["bias_out"])


def problem(network, biases, length, symbols, every_step):
    """Random weights in ±0.1 and a block of random sequences with some 100,000 steps."""
    rng = np.random.default_rng(0)
    shapes = network.shapes()
    shapes |= {f"bias_{group}": shapes[f"weight_{group}"][:1] for group in biases.split()}
    public = {name: rng.uniform(-0.1, 0.1, shape) for name, shape in shapes.items()}
    lengths = rng.integers(int(0.95 * length), int(1.05 * length) + 1, 100_000 // length)
    offsets = np.append(0, np.cumsum(lengths))
    counts = (offsets[-1], network.input_size), (offsets[-1] if every_step else len(lengths), network.output_size)
    draw = [rng.integers(0, size, count) if symbols else rng.uniform(-1, 1, (count, size)) for count, size in counts]
    return pack(network, public), (draw[0], offsets, draw[1])


def nanoseconds(run, steps, repetitions):
    """Smallest and median time per step; the first run, which may compile, does not count."""
    times = []
    for _ in range(repetitions + 1):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) / steps * 1e9)
    return min(times[1:]), float(np.median(times[1:]))


def compare(repetitions):
    """Experiment 4 by the plain loop and by the kernel: the same errors and weights, then the times of both."""
    network, biases, length, *_ = ROWS["4"]
    weights, block = problem(network, biases, length, False, False)
    W, w_out = plain_weights(network, weights)
    plain = partial(plain_loop, *block, W, w_out, 0.01, network.blocks, network.block_size)
    kernel = partial(train, network, weights, *block, lr=0.01)
    np.testing.assert_allclose(kernel().largest, plain(), rtol=1e-9)
    np.testing.assert_allclose(plain_weights(network, weights)[0], W, rtol=1e-9)
    ours, theirs = (nanoseconds(run, block[1][-1], repetitions)[0] for run in (kernel, plain))
    print(f"experiment 4: kernel {ours:.1f} ns, plain loop {theirs:.1f} ns per step, {theirs / ours:.2f} times as fast")


def main(repetitions):
    print(f"numba {numba.__version__}, numpy {np.__version__}, {llvmlite.binding.get_host_cpu_name()}")
    compare(repetitions)
    print(f"{'experiment':<18}{'train, min':>12}{'median':>9}{'evaluate':>10}   ns per step")
    for name, (network, biases, length, symbols, every_step, update) in ROWS.items():
        weights, block = problem(network, biases, length, symbols, every_step)
        learn = partial(train, network, weights, *block, lr=0.01, update=update)
        best, median = nanoseconds(learn, block[1][-1], repetitions)
        without, _ = nanoseconds(partial(evaluate, network, weights, *block), block[1][-1], repetitions)
        print(f"{name:<18}{best:>12.1f}{median:>9.1f}{without:>10.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
