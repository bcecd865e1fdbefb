"""The CPU engine over torch.nn: forward and backward, one and two threads, and the first call of a process.

    python benchmarks/cpu.py [seconds per row]

Every layer is compared with its peer before it is timed; see `longlag bench cpu` for the table without rows.
"""

import sys

import torch
from _rows import append

from longlag.cli.bench import LARGE, check, cpu_cases, first_calls, times, two_threads


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    for case in cpu_cases():
        check(case)
        (ours, spread), (theirs, _) = times(case, seconds)
        append(f"cpu: {case.name} {case.size}", ours * 1e3, "ms", baseline=theirs * 1e3, spread=spread)
    for case in cpu_cases(LARGE):
        if case.name == "LSTM / nn.LSTM":
            (two, spread), (one, _) = two_threads(case, seconds)
            torch.set_num_threads(2)  # for the row
            append(f"cpu: LSTM, two threads over one {case.size}", two * 1e3, "ms", baseline=one * 1e3, spread=spread)
            torch.set_num_threads(1)
    for name, value in zip(("compiling", "from the cache"), first_calls()):
        append(f"cpu: first call of ll.LSTM in a process, {name}", value, "s")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
