"""Nanoseconds per time step of whole trials of the experiments of 1997: data, training, tests, criterion and all.

    python benchmarks/lab.py [--against SRC] [--repeat N] [--seconds S] [NAME ...]

NAME: experiments as `longlag reproduce` knows them; by default one row of each kind. Trials are cut short to about S
seconds each. With --against, every trial is also run by the longlag in the folder SRC (the `src` of another commit),
turn and turn about in processes of their own, and the ratio of the two is printed. Times are processor times of one
thread, so other work on the machine disturbs them little; the first trial of a process, which may compile, is left out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from longlag.lab.experiment import Experiment
from longlag.lab.profiles import paper, select

KINDS = (
    "1 4x1 lr=0.5", "1 3x2 lr=0.5", "1 RTRL hidden=3", "1 RTRL hidden=12", "1 ELM hidden=15", "2a p=100",
    "2a RTRL p=4 lr=1", "2a RTRL p=100 lr=1", "2a BPTT p=100 lr=1", "2b p=100", "2c q=50 p=50", "2c q=1000 p=1000",
    "3a T=100 N=3", "3c T=100 N=3", "4 T=100", "4 T=1000", "5 T=100", "6a", "6b",
)  # fmt: skip
BUDGET = 120.0  # nanoseconds of a step, about, of a learner that costs little


def cap_for(experiment: Experiment, seconds: float) -> int:
    """So many sequences that a trial takes about `seconds`, if nothing has changed since these costs were noted."""
    units = {"1 RTRL hidden=3": 3_700.0, "1 RTRL hidden=12": 62_000.0, "1 ELM hidden=15": 600.0}
    cost = units.get(experiment.name, BUDGET + 3 * experiment.task.output_size)
    return max(300, int(seconds * 1e9 / (cost * experiment.length)))


def measure(label: str, cap: int) -> float:
    """Nanoseconds per step of three trials, after one that is not counted."""
    from longlag.lab.trials import trial

    (experiment,) = [e for e in paper() if f"{e.name}/{e.reading}" == label]  # older code knows no labels
    experiment = replace(experiment, cap=cap)
    trial(replace(experiment, cap=min(cap, 300)), 1)
    begun = time.process_time()
    sequences = sum(trial(experiment, seed).sequences for seed in (2, 3, 4))
    return (time.process_time() - begun) / (sequences * experiment.length) * 1e9


class Worker:
    """A process that measures with the longlag in the folder `src`."""

    def __init__(self, src: str) -> None:
        command, environment = [sys.executable, __file__, "--measure"], {**os.environ, "PYTHONPATH": src}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def measure(self, label: str, cap: int) -> float:
        assert self.process.stdin
        assert self.process.stdout
        print(label, cap, sep="\t", file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main(names: list[str], against: str | None, repeat: int, seconds: float) -> None:
    """Print a line per experiment and reading, and append experiment 4 to results.csv."""
    from _rows import append

    here = str(Path(__file__).parents[1] / "src")
    workers = [Worker(here)] + ([] if against is None else [Worker(against)])
    print(f"{'experiment':<26}{'ns per step':>12}{'before':>10}{'ratio':>8}")
    for experiment in select("paper", names or KINDS):
        cap = cap_for(experiment, seconds)
        times = [[worker.measure(experiment.label, cap) for worker in workers] for _ in range(repeat)]
        ours, *before = (statistics.median(column) for column in zip(*times))
        print(
            f"{experiment.label:<26}{ours:>12.1f}" + "".join(f"{b:>10.1f}{ours / b:>8.2f}" for b in before), flush=True
        )
        if experiment.label == "4 T=100/fit" and not before:
            append("lab: experiment 4, T = 100, whole trial", ours, "ns per step")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        for line in sys.stdin:
            label, cap = line.split("\t")
            print(measure(label, int(cap)), flush=True)
        sys.exit()
    parser = argparse.ArgumentParser(description="Nanoseconds per time step of whole trials.")
    parser.add_argument("names", nargs="*", help="experiments; one row of each kind by default")
    parser.add_argument("--against", help="folder `src` of another longlag")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a trial, about")
    words = parser.parse_args()
    main(words.names, words.against, words.repeat, words.seconds)
