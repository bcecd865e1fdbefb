"""A stream whose rule changes halfway, learned online: nothing of the past is ever stored.

    python examples/online_stream.py [--steps 12000] [--out online_stream.png]

Every step shows a random sign x(t) and asks for an earlier one: x(t−2) in the first half, −x(t−4) in the second. Nobody
tells the learner that the rule has changed. `RTRL` carries the influence of every weight on the state along with the
state, so an error now teaches what should have been remembered four steps ago, although those inputs are gone.

For comparison: the same network taught by the present step alone (Elman units keep nothing under the cuts of
`TruncatedRTRL`), and one that stops learning before the change.
"""

from __future__ import annotations

import argparse

import torch

import longlag as ll
from longlag.learn import RTRL, Online, TruncatedRTRL, squared_error

UNITS, BATCH = 16, 8


def targets(x: torch.Tensor) -> torch.Tensor:
    """x (T, B, 1) -> x(t−2), and from T/2 on −x(t−4); 0 where there is no such step."""
    half, early, late = len(x) // 2, torch.zeros_like(x), torch.zeros_like(x)
    early[2:], late[4:] = x[:-2], -x[:-4]
    return torch.cat([early[:half], late[half:]])


def make_learner(rule: ll.learn.Rule) -> Online:
    torch.manual_seed(0)
    layer, readout = ll.Elman(1, UNITS), torch.nn.Linear(UNITS, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=3e-3)
    return Online(layer, readout, squared_error, rule, optimizer, clip=5.0)


def run(steps: int) -> dict[str, list[float]]:
    """Running error of each learner: share of wrong signs, an exponential mean over 200 steps."""
    x = torch.randint(2, (steps, BATCH, 1), generator=torch.Generator().manual_seed(1)) * 2.0 - 1
    d = targets(x)
    learners = {
        "RTRL": make_learner(RTRL()),
        "present step only: TruncatedRTRL": make_learner(TruncatedRTRL()),
        "RTRL, stopped before the change": make_learner(RTRL()),
    }
    errors: dict[str, list[float]] = {name: [] for name in learners}
    for name, learner in learners.items():
        first = learner.run(x[: steps // 2], d[: steps // 2])
        second = learner.run(x[steps // 2 :], None if "stopped" in name else d[steps // 2 :])
        wrong = (torch.cat([first, second]).sign() != d.sign()).float().mean((1, 2))
        mean = 0.5
        for value in wrong.tolist():
            mean += (value - mean) / 200
            errors[name].append(mean)
    return errors


def plot(errors: dict[str, list[float]], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for name, values in errors.items():
        axes.plot(values, label=name, linewidth=1.2)
    half = len(next(iter(errors.values()))) // 2
    axes.axvline(half, color="0.4", linestyle=":")
    axes.text(half, 0.93, " the rule changes", color="0.3", transform=axes.get_xaxis_transform(), va="top")
    axes.set(xlabel="step of the stream", ylabel="wrong signs (running mean)", ylim=(0, 0.7))
    axes.legend(loc="upper left", fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--out", help="picture of the running error, e.g. online_stream.png")
    arguments = parser.parse_args()
    errors = run(arguments.steps)
    half = arguments.steps // 2
    for name, values in errors.items():
        print(f"{name}: {values[half - 1]:.1%} wrong before the change, {values[-1]:.1%} at the end")
    if arguments.out:
        plot(errors, arguments.out)


if __name__ == "__main__":
    main()
