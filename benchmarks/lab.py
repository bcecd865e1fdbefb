"""Nanoseconds per time step of whole trials of experiment 4: data, training, criterion and all.

    python benchmarks/lab.py [trials]

The issue's bound is 200 ns on one core. Nothing is timed before the kernel agrees with a plain loop (online97.py).
"""

import statistics
import sys
import time
from dataclasses import replace

import online97
from _rows import append

from longlag.lab.hs97 import experiment_4
from longlag.lab.trials import trial


def main(trials: int) -> None:
    online97.compare(3)
    experiment = replace(experiment_4(T=100, reading="fit"), cap=30_000)
    times = []
    for seed in range(trials + 1):
        begun = time.process_time()
        record = trial(experiment, seed)
        times.append((time.process_time() - begun) / (record.sequences * experiment.length) * 1e9)
    median = statistics.median(times[1:])  # the first may compile
    low, _, high = statistics.quantiles(times[1:], n=4)
    print(f"experiment 4, T = 100, whole trials: {median:.1f} ns per step (quartiles {low:.1f} to {high:.1f})")
    append("lab: experiment 4, T = 100, whole trial", median, "ns per step", spread=(high - low) / median)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
