"""The CPU engine over torch.nn: training, inference, short and long sequences, and the first call of a process.

    python benchmarks/cpu.py [seconds per row]

Every layer is compared with its peer before it is timed. `longlag bench cpu` prints the same rows as a table.
"""

import sys

import torch
from _rows import append

from longlag.cli.bench import LARGE, check, cpu_cases, first_calls, times, two_threads


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    cases = list(cpu_cases())
    for case in cases:
        check(case)
        (ours, spread), (theirs, _) = times(case, seconds)
        torch.set_num_threads(case.threads or 1)  # for the row
        append(f"cpu: {case.title} {case.size}", ours * 1e3, "ms", baseline=theirs * 1e3, spread=spread)
        torch.set_num_threads(1)
    for case in cases:
        if case.title == "LSTM / nn.LSTM" and case.size in LARGE:
            (two, spread), (one, _) = two_threads(case, seconds)
            torch.set_num_threads(2)  # for the row
            append(f"cpu: LSTM, two threads over one {case.size}", two * 1e3, "ms", baseline=one * 1e3, spread=spread)
            torch.set_num_threads(1)
    for name, value in zip(("compiling", "from the cache"), first_calls()):
        append(f"cpu: first call of ll.LSTM in a process, {name}", value, "s")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
