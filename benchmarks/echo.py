"""EchoState beside reservoirpy: the Mackey-Glass series one step ahead, float64, one thread, build + fit + run.

    .venv-peers/bin/python benchmarks/echo.py [seconds per size]

Both get the same series (made by reservoirpy), the same settings and the same seeds: tanh units with leak 0.3, density
0.1, spectral radius 0.9, inputs in ±1, ridge 1e-7, a read-out with bias from states alone; 2000 steps to fit, of which
100 are left out, and 500 to run on from there. A row's value is our time; the second row of a size is the error, the
root of the mean square over the standard deviation, as the median of 5 reservoirs.
"""

# pyright: reportMissingImports=false
# the package is in an environment of its own

import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _rows import append

import longlag as ll
from longlag.cli.bench import measure, middle

UNITS = (100, 1000, 2000)
FIT, RUN, WARMUP, SEEDS = 2000, 500, 100, range(5)
SETTINGS: dict[str, Any] = {"leak": 0.3, "density": 0.1, "spectral_radius": 0.9, "input_scale": 1.0, "ridge": 1e-7}


def series() -> np.ndarray:
    from reservoirpy.datasets import mackey_glass

    values = mackey_glass(FIT + RUN + 1, tau=17, seed=0)
    return 2 * (values - values.min()) / (values.max() - values.min()) - 1


def ours(x: np.ndarray, units: int, seed: int) -> np.ndarray:
    values = torch.from_numpy(x).unsqueeze(1)  # (T, 1, 1)
    net = ll.EchoState(
        1, units, 1, warmup=WARMUP, input_to_output=False, bias_scale=1.0, seed=seed, dtype=torch.float64, **SETTINGS
    )  # fmt: skip
    net.fit(values[:FIT], values[1 : FIT + 1])
    return net.predict(values[FIT:-1], net.last_state).squeeze(1).numpy()


def theirs(x: np.ndarray, units: int, seed: int) -> np.ndarray:
    from reservoirpy.nodes import Reservoir, Ridge

    reservoir = Reservoir(
        units, lr=SETTINGS["leak"], sr=SETTINGS["spectral_radius"], rc_connectivity=SETTINGS["density"],
        input_scaling=SETTINGS["input_scale"], input_connectivity=1.0, seed=seed,
    )  # fmt: skip
    model = reservoir >> Ridge(ridge=SETTINGS["ridge"])
    model.fit(x[:FIT], x[1 : FIT + 1], warmup=WARMUP)
    return model.run(x[FIT:-1])


def error(method: Callable[..., np.ndarray], x: np.ndarray, units: int) -> float:
    """Median over the seeds."""
    wanted = x[FIT + 1 :]
    found = [np.sqrt(np.mean((method(x, units, seed) - wanted) ** 2)) / wanted.std() for seed in SEEDS]
    return float(statistics.median(found))


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    x = series()
    for units in UNITS:
        calls = {"ours": lambda units=units: ours(x, units, 0), "theirs": lambda units=units: theirs(x, units, 0)}
        (time, spread), (base, _) = map(middle, measure(calls, seconds).values())
        append(
            f"echo: Mackey-Glass, {units} units, build + fit + run",
            time * 1e3,
            "ms",
            baseline=base * 1e3,
            spread=spread,
        )
        append(f"echo: Mackey-Glass, {units} units, error", error(ours, x, units), "", baseline=error(theirs, x, units))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
