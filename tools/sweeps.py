"""The pictures of docs/reproduction/open-questions.md: experiment 4 over input-gate biases and learning rates.

    python tools/sweeps.py           # writes docs/img/sweep_bias.png and docs/img/sweep_lr.png; some minutes

Finished trials are kept in runs/sweeps, so that an interrupted run goes on.
"""

from __future__ import annotations

from pathlib import Path

from longlag import lab

ROOT = Path(__file__).resolve().parents[1]
BIASES = [(0.0, 0.0), (-1.0, -2.0), (-2.0, -4.0), (-3.0, -6.0), (-4.0, -8.0), (-6.0, -12.0)]
RATES = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0]


def main() -> None:
    experiment = lab.hs97.experiment_4(T=100, reading="fit")
    for name, field, values in (("bias", "learner.input_gate_bias", BIASES), ("lr", "learner.lr", RATES)):
        found = lab.sweep(experiment, field, values, ROOT / "runs" / "sweeps" / name, trials=10, jobs=1)
        print(field, dict(zip(values, zip(found.rates(), found.means()))))
        found.plot(ROOT / "docs" / "img" / f"sweep_{name}.png")


if __name__ == "__main__":
    main()
