"""Handwritten digits as an endless stream: learned online, saved, restored, and a drift that is noticed.

    python examples/digits_stream.py [--digits 6000] [--out digits_stream.png]

The 1,797 digits that ship with scikit-learn arrive in random order, a row of 8 pixels per step, from the top down. At
the eighth row the class is asked for, then told: every digit is a test before it is a lesson. Halfway the camera is
turned over, and the rows arrive from the bottom up. Nobody tells the learner; ADWIN, a detector of drift from the
package river, watches the losses.

Between two chunks of the stream the learner is saved, and continues as a new one made from the file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from river.drift import ADWIN
from sklearn.datasets import load_digits

import longlag as ll
from longlag.learn import Online, TruncatedRTRL, cross_entropy

ROWS, CLASSES, CHUNK = 8, 10, 100  # digits per chunk


class Found(NamedTuple):
    """What happened: per digit whether it was recognised, and the digits at which the detector signalled."""

    right: np.ndarray
    alarms: list[int]
    engine: str
    identical: bool  # whether the restored learner continued bit for bit


def stream(digits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (digits · 8, 8) and classes (digits,): right way up in the first half, upside down in the second."""
    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).integers(len(classes), size=digits)
    images = pixels[order].reshape(-1, ROWS, ROWS) / 16 - 0.5
    images[digits // 2 :] = images[digits // 2 :, ::-1]
    return images.reshape(-1, ROWS), classes[order]


def make_learner() -> Online:
    torch.manual_seed(0)
    layer, readout = ll.LSTM(ROWS, 48, forget_bias=1.0), torch.nn.Linear(48, CLASSES)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=4e-3)
    detector = ADWIN(delta=1e-4)
    return Online(layer, readout, cross_entropy, TruncatedRTRL(), optimizer, clip=2.0, detector=detector)


def run(digits: int) -> Found:
    """Learn from the whole stream, in chunks."""
    rows, classes = stream(digits)
    learner, right, alarms, identical = make_learner(), [], [], True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learner.safetensors"
        for first in range(0, digits, CHUNK):
            x, target = rows[first * ROWS : (first + CHUNK) * ROWS], classes[first : first + CHUNK]
            steps = np.arange(len(x)) % ROWS
            marks = {"reset": steps == 0, "scored": steps == ROWS - 1, "update": steps == ROWS - 1}
            learner.save(file)
            outputs = learner.run(x, target, **marks)
            right.append(outputs.argmax(-1).numpy() == target)
            alarms = [step // ROWS for step in learner.drifts]
            if first == digits // 2:  # a crash: what is left is the file
                twin = Online.restore(file)
                identical = torch.equal(twin.run(x, target, **marks), outputs)
                twin.detector, twin.drifts = learner.detector, learner.drifts
                learner = twin
    return Found(np.concatenate(right), alarms, learner.engine_for()[0], identical)


def running(right: np.ndarray, over: int = 200) -> np.ndarray:
    """Share of right answers over the last digits."""
    total = np.concatenate([np.zeros(1), np.cumsum(right)])
    ends = np.arange(1, len(right) + 1)
    starts = np.maximum(ends - over, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def plot(found: Found, file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.plot(running(found.right), linewidth=1.3)
    axes.axvline(len(found.right) // 2, color="0.4", linestyle=":", label="the camera is turned over")
    for k, digit in enumerate(found.alarms):
        axes.axvline(digit, color="tab:red", linewidth=0.9, label=None if k else "ADWIN signals")
    axes.set(xlabel="digit of the stream", ylabel="recognised (last 200)", ylim=(0, 1))
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=6000)
    parser.add_argument("--out", help="picture of the share of right answers, e.g. digits_stream.png")
    arguments = parser.parse_args()
    found = run(arguments.digits)
    share, half = running(found.right), arguments.digits // 2
    print(f"engine: {found.engine}; the restored learner continued bit for bit: {found.identical}")
    print(f"recognised of the last 200 digits: {share[half - 1]:.1%} before the change, {share[-1]:.1%} at the end")
    print(f"lowest after the change: {share[half:].min():.1%}; ADWIN signalled at digits {found.alarms}")
    if arguments.out:
        plot(found, arguments.out)


if __name__ == "__main__":
    main()
