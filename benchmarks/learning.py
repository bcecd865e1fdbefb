"""What learning in real time costs: a step of RTRL, and memory and time of a stream against its length.

    python benchmarks/learning.py            # rows for benchmarks/results.csv: speed, then memory (10 minutes or more)
    python benchmarks/learning.py speed      # the first part only
    python benchmarks/learning.py memory     # the second
    python benchmarks/learning.py plot docs/img/learning.png
    python benchmarks/learning.py rules docs/img/learning_rules.png   # rules beside each other (a minute)

Times are processor times of one thread. Peak memory is that of a process of its own for every row, from the start of
the stream on (Linux). The streams: random inputs, a target at every tenth step, an update after it. BPTT keeps the
whole stream and goes back through it once, at the end; it is run until it needs more than LIMIT.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from _rows import append

import longlag as ll
from longlag.cli.bench import measure, middle
from longlag.engines import reference
from longlag.learn import (
    BPTT,
    RFLO,
    RTRL,
    UORO,
    LocalForward,
    Online,
    Rule,
    SnAp,
    TruncatedBPTT,
    TruncatedRTRL,
    compare,
    squared_error,
)

LIMIT = 1 << 30  # bytes beyond what the process needs before the stream begins
SCORED = 10  # a target at every so many steps


# ------------------------------------------------------------------------------------------------------------ speed
def speed() -> None:
    """Time of a step of RTRL over that of the same inference step."""
    B, I = 16, 64
    rows = {
        "RTRL local H=256": ll.LocalFeedback(I, 256),
        "RTRL local activation H=256": ll.LocalFeedback(I, 256, feedback="activation"),
        "RTRL Elman H=32": ll.Elman(I, 32),
        "RTRL LSTM H=32": ll.LSTM(I, 32),
    }
    for name, layer in rows.items():
        check(layer)
        x, rule = torch.randn(B, I), RTRL()
        now = {"state": None, "trace": rule.start(layer, B)}

        def step(layer=layer, x=x, rule=rule, now=now) -> torch.Tensor:
            y, now["state"], now["trace"] = rule.step(layer, x, now["state"], now["trace"])
            return y

        dy, state = torch.randn_like(step()), now["state"]

        def learn(layer=layer, rule=rule, now=now, dy=dy, step=step) -> None:
            step()
            rule.gradients(layer, now["trace"], dy)

        @torch.no_grad()
        def inference(layer=layer, x=x, state=state) -> None:
            layer.step(x, state)

        @torch.no_grad()
        def bare(layer=layer, x=x, state=state) -> None:
            """The arithmetic of the inference step without the layer around it."""
            w, parts = layer.weights(0), state if isinstance(state, tuple) else (state,)
            net = torch.nn.functional.linear(x, w.W, w.b).unflatten(-1, (-1, layer.hidden_size))
            reference.step(layer.cell, net, w.U, [part[0] for part in parts], w.params)

        times = measure({"inference": inference, "bare": bare, "step": step, "both": learn})
        found = {what: middle(values) for what, values in times.items()}
        for what, over, text in (
            ("step", "inference", "step / inference step"),
            ("both", "inference", "step and gradients / inference step"),
            ("step", "bare", "step / arithmetic of inference"),
        ):
            median, spread = found[what]
            append(f"{name} I={I} B={B}: {text}", median * 1e6, "µs", baseline=found[over][0] * 1e6, spread=spread)


def check(layer: ll.Recurrent) -> None:
    """No speed without a right answer: three steps against autograd."""
    x, rule = torch.randn(3, 2, layer.input_size), RTRL()
    y, state, trace = x[0], None, rule.start(layer, 2)
    for x_t in x:
        y, state, trace = rule.step(layer, x_t, state, trace)
    ours = rule.gradients(layer, trace, torch.ones_like(y))
    layer(x)[0][-1].sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-3, atol=1e-4)
    layer.zero_grad()


# ----------------------------------------------------------------------------------------------------------- memory
def streams() -> dict[str, tuple[Rule, ll.LocalFeedback | ll.LSTM97]]:
    """The learners of the second part: rule and layer, 2 inputs, 1 target."""
    torch.manual_seed(0)
    local, lstm97 = ll.LocalFeedback(2, 4), ll.LSTM97(2, blocks=2, block_size=2, output_size=4, output="linear")
    return {
        "LocalForward": (LocalForward(), local),
        "TruncatedRTRL": (TruncatedRTRL(), lstm97),
        "RTRL": (RTRL(), lstm97),
        "BPTT": (BPTT(), local),
        "BPTT, LSTM97": (BPTT(), lstm97),
    }


def stream(which: str, steps: int) -> dict[str, float]:
    """Peak memory during a stream, in bytes, and its processor time in seconds. For a fresh process."""
    torch.set_num_threads(1)
    rule, layer = streams()[which]
    learner(rule, layer, 100)  # everything is loaded and compiled
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak so far is forgotten
    if rule.deferred:  # refuse more than LIMIT
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + LIMIT, held + LIMIT))
    start = time.process_time()
    learner(rule, layer, steps)
    took = time.process_time() - start
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return {"peak": int(peak) * 1024, "time": took}


def learner(rule: Rule, layer: ll.LocalFeedback | ll.LSTM97, steps: int) -> None:
    readout = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*layer.parameters(), *readout.parameters()], lr=1e-3)
    online = Online(layer, readout, squared_error, rule, optimizer, every=steps if rule.deferred else SCORED, clip=1.0)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, steps + 1):
        x = torch.rand(1, 2, generator=generator)
        online.step(x, x[:, :1] if t % SCORED == 0 else None)


def fresh(which: str, steps: int) -> dict[str, float] | None:
    """`stream` in a process of its own; None if it did not fit."""
    command = [sys.executable, __file__, "stream", which, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if "MemoryError" in done.stderr or "alloc" in done.stderr:
            return None
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def memory(short: int = 1_000, long: int = 1_000_000) -> None:
    """Peak memory after a short and after a long stream; BPTT's beside them until it no longer fits."""
    for which in ("LocalForward", "TruncatedRTRL"):
        before, after = (found["peak"] / 2**20 for steps in (short, long) if (found := fresh(which, steps)))
        append(f"Online {which}: peak memory, {long} over {short} steps", after, "MiB", baseline=before)
        print(f"    difference {after / before - 1:+.3%}", flush=True)
    steps, first = short, None
    while found := fresh("BPTT", steps):
        first = first or found["peak"]
        append(f"Online BPTT: peak memory, {steps} steps", found["peak"] / 2**20, "MiB", baseline=first / 2**20)
        steps *= 10
        if steps > long:
            return
    print(f"Online BPTT: {steps} steps need more than {LIMIT >> 20} MiB", flush=True)


# ------------------------------------------------------------------------------------------------------------- plot
LENGTHS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
LABELS = {
    "LocalForward": "LocalForward, 4 local units",
    "TruncatedRTRL": "TruncatedRTRL, LSTM97 with 4 cells",
    "RTRL": "RTRL, LSTM97 with 4 cells",
    "BPTT": "BPTT, 4 local units",
    "BPTT, LSTM97": "BPTT, LSTM97 with 4 cells",
}
Measured = dict[str, dict[int, dict[str, float]]]


def lengths() -> Measured:
    """Memory and time of every learner against the length of its stream; the flat ones not to the end."""
    measured: Measured = {which: {} for which in LABELS}
    for which, found in measured.items():
        for steps in LENGTHS if which.startswith("BPTT") else LENGTHS[:-1]:
            if (one := fresh(which, steps)) is None:
                break
            found[steps] = one
            print(which, steps, json.dumps(one), flush=True)
    return measured


def draw(measured: Measured, file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
    for which, found in measured.items():
        style = {"marker": "o", "markersize": 4, "linestyle": "--" if which.startswith("BPTT") else "-"}
        steps = list(found)
        left.plot(steps, [one["peak"] / 2**20 for one in found.values()], label=LABELS[which], **style)
        right.plot(steps, [1e6 * one["time"] / n for n, one in found.items()], **style)
    left.set(xscale="log", xlabel="steps of the stream", ylabel="peak memory of the process (MiB)", ylim=(0, None))
    right.set(xscale="log", xlabel="steps of the stream", ylabel="processor time per step (µs)", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(file, dpi=130)


# ------------------------------------------------------------------------------------------------------------ rules
def rules(file: str, steps: int = 100) -> None:
    """Gradients, memory and time of the rules on an LSTM whose targets are its inputs of 10 steps ago."""
    torch.manual_seed(0)
    layer, x = ll.LSTM(8, 32, forget_bias=2.0), torch.randn(steps, 8, 8)
    readout, lag = torch.nn.Linear(32, 8), 10
    kinds = [
        RTRL(),
        BPTT(),
        TruncatedBPTT(5),
        TruncatedBPTT(20),
        SnAp(1),
        RFLO(),
        UORO(torch.Generator().manual_seed(0)),
    ]

    def loss(y: torch.Tensor) -> torch.Tensor:
        return squared_error(readout(y[lag:]).flatten(0, 1), x[:-lag].flatten(0, 1))

    found = compare(layer, x, loss, kinds, title=f"LSTM(8, 32), {steps} steps, batch 8, inputs of {lag} steps ago")
    found.save(file)
    print(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    task, *arguments = sys.argv[1:] or ["all"]
    if task == "stream":
        print(json.dumps(stream(arguments[0], int(arguments[1]))))
    elif task == "rules":
        rules(arguments[0])
    elif task == "plot":
        draw(lengths(), arguments[0])
    else:
        for part in (speed, memory):
            if task in ("all", part.__name__):
                part()
