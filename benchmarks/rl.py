"""sb3-contrib's RecurrentPPO on velocity-masked tasks: our policy beside the stock one, in one run.

    python benchmarks/rl.py speed [seeds] [units]      # environment steps per second, appended to results.csv
    python benchmarks/rl.py curves [seeds] [tasks]     # learning curves: rl_curves.csv and docs/img/rl_curves.png

The agent sees positions, not velocities, so it must remember. 8 environments; CartPole with the settings of
sb3-contrib's own test of this task, Pendulum with the learning rate, discounts and exploration of
PendulumNoVel-v1 in RL Baselines3 Zoo (hyperparams/ppo_lstm.yml). Nothing is timed before the policies agree: with the
same weights, actions, values and log-probabilities to 1e-6. Speed is that of ``learn`` over three rollouts and updates,
environments included, the two policies in turn.
"""

import csv
import itertools
import statistics
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from _rows import append
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import longlag as ll
from longlag.style import COLOURS, new_figure, style

ROOT = Path(__file__).resolve().parents[1]
CURVES = ROOT / "benchmarks" / "rl_curves.csv"
HEAD = ("task", "policy", "seed", "steps", "return")
Point = tuple[str, str, int, int, float]
ENVIRONMENTS, N_STEPS, ROLLOUTS = 8, 128, 3
SEEN = {"CartPole-v1": [0, 2], "Pendulum-v1": [0, 1]}  # the positions among the observations
SETTINGS = {
    "CartPole-v1": {"n_steps": N_STEPS, "learning_rate": 7e-4, "max_grad_norm": 1, "gae_lambda": 0.98},
    "Pendulum-v1": {"n_steps": 512, "learning_rate": 1e-3, "gamma": 0.9, "gae_lambda": 0.95}
    | {"use_sde": True, "sde_sample_freq": 4},
}
NETWORKS = {"CartPole-v1": {"pi": [], "vf": [64]}, "Pendulum-v1": {"pi": [64], "vf": [64]}}
STEPS = {"CartPole-v1": 50_000, "Pendulum-v1": 100_000}
GOALS = {64: 4.0, 256: 2.0}
POLICIES = {"stock": ("MlpLstmPolicy", {}), "longlag": (ll.rl.RecurrentPolicy, {"layer": "LSTM"})}


def masked(task: str) -> gym.Env:
    env, seen = gym.make(task), SEEN[task]
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box)
    positions = gym.spaces.Box(space.low[seen], space.high[seen])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[seen], positions)


def model(policy: str, task: str, units: int, seed: int) -> RecurrentPPO:
    kind, options = POLICIES[policy]
    settings = {"n_epochs": 10, "batch_size": 256, "gamma": 0.99, "device": "cpu", **SETTINGS[task]}
    env = VecNormalize(make_vec_env(lambda: masked(task), n_envs=ENVIRONMENTS, seed=seed), gamma=settings["gamma"])
    options = {**options, "lstm_hidden_size": units, "ortho_init": False, "net_arch": NETWORKS[task]}
    return RecurrentPPO(kind, env, policy_kwargs=options, seed=seed, **settings)  # pyright: ignore[reportArgumentType]


def gate(units: int) -> None:
    """Both policies agree on random observations and states, or nothing is timed."""
    stock, ours = (model(name, "CartPole-v1", units, 0).policy for name in POLICIES)
    ours.load_state_dict(stock.state_dict())
    states = [torch.randn(1, ENVIRONMENTS, units) for _ in range(4)]
    given = RNNStates((states[0], states[1]), (states[2], states[3]))
    obs, starts = torch.randn(ENVIRONMENTS, 2), torch.arange(ENVIRONMENTS) % 3 == 0
    with torch.no_grad():
        wanted, found = (one.eval()(obs, given, starts.float(), True) for one in (stock, ours))
    differences = [float((a - b).abs().max()) for a, b in zip(wanted[:3], found[:3])]
    differences += [float((a - b).abs().max()) for k in (0, 1) for a, b in zip(wanted[3][k], found[3][k])]
    assert max(differences) <= 1e-6, differences
    print(f"gate, {units} units: with the same weights one step differs by {max(differences):.1e} at most")


def speed(seeds: int, sizes: list[int]) -> None:
    """Environment steps per second of `ROLLOUTS` rollouts and updates; one more before them is untimed."""
    torch.set_num_threads(1)
    for units in sizes:
        gate(units)
        rates: dict[str, list[float]] = {name: [] for name in POLICIES}
        for seed in range(seeds):
            for name in POLICIES:
                one = model(name, "CartPole-v1", units, seed)
                one.learn(1)  # one rollout and update; kernels are loaded, the first buffers filled
                done, start = one.num_timesteps, time.perf_counter()
                one.learn(ROLLOUTS * ENVIRONMENTS * N_STEPS, reset_num_timesteps=False)
                rates[name].append((one.num_timesteps - done) / (time.perf_counter() - start))
        ours, theirs = rates["longlag"], rates["stock"]
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        value, baseline = statistics.median(ours), statistics.median(theirs)
        spread = (max(ours) - min(ours)) / value
        append(f"rl: RecurrentPPO, LSTM {units}", value, "env steps/s", baseline=baseline, spread=spread)
        print(f"    ratio per seed {', '.join(f'{r:.2f}' for r in ratios)}, goal {GOALS[units]}", flush=True)


class Returns(BaseCallback):
    """Every finished episode: environment steps so far, its return, and the seconds since the start."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, float, float]] = []
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.rows.append((self.num_timesteps, info["episode"]["r"], time.perf_counter() - self.start))
        return True


def binned(rows: list[tuple[int, float, float]], edges: np.ndarray) -> np.ndarray:
    """Mean return of the episodes that ended within each interval; an empty interval repeats the one before."""
    steps, returns = np.array([row[:2] for row in rows]).T
    means = np.full(len(edges) - 1, np.nan)
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = returns[(steps > low) & (steps <= high)]
        means[k] = inside.mean() if len(inside) else means[k - 1]
    return means


def curves(seeds: int, tasks: list[str]) -> None:
    """Train both policies on the tasks and draw all runs; runs that are in `CURVES` are not made again."""
    torch.set_num_threads(1)
    if not CURVES.exists():
        CURVES.write_text(",".join(HEAD) + "\n", encoding="utf-8")
    finished = {row[:3] for row in read()}
    for task in tasks:
        edges = np.linspace(0, STEPS[task], 41)
        for seed in range(seeds):
            for name in POLICIES:
                if (task, name, seed) in finished:
                    continue
                watch = Returns()
                model(name, task, 64, seed).learn(STEPS[task], callback=watch)
                rows = [(task, name, seed, int(x), float(y)) for x, y in zip(edges[1:], binned(watch.rows, edges))]
                with CURVES.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows((*row[:4], f"{row[4]:.2f}") for row in rows)
                last = statistics.mean(row[4] for row in rows[-4:])
                print(f"{task} {name} seed {seed}: {last:.1f} at the end, {watch.rows[-1][-1]:.0f} s", flush=True)
    draw(read())


def read() -> list[Point]:
    """The points of `CURVES`."""
    with CURVES.open(newline="", encoding="utf-8") as file:
        return [(t, name, int(seed), int(x), float(y)) for t, name, seed, x, y in [*csv.reader(file)][1:]]


def draw(table: list[Point]) -> None:
    """One panel per task: thin lines are seeds, thick ones their means."""
    with style():
        tasks = list(dict.fromkeys(row[0] for row in table))
        figure, axes = new_figure(1, len(tasks), width=3.9 * len(tasks), height=3.0)
        for axis, task in zip(np.atleast_1d(axes), tasks):
            for name, colour in zip(POLICIES, COLOURS):
                runs: dict[int, list[tuple[int, float]]] = {}
                for _, _, seed, x, y in (row for row in table if row[:2] == (task, name)):
                    runs.setdefault(seed, []).append((x, y))
                lines = np.array(list(runs.values()))
                for line in lines:
                    axis.plot(*line.T, color=colour, alpha=0.3, linewidth=0.8)
                label = "MlpLstmPolicy" if name == "stock" else "longlag, LSTM"
                axis.plot(*lines.mean(0).T, color=colour, label=label, linestyle="-" if name == "stock" else "--")
            axis.set(title=f"{task}, velocities hidden", xlabel="environment steps", ylabel="return of an episode")
            axis.legend()
        figure.savefig(ROOT / "docs" / "img" / "rl_curves.png")


def main() -> None:
    what, *rest = sys.argv[1:] or [""]
    seeds = int(rest[0]) if rest else 3
    if what == "speed":
        speed(seeds, [int(units) for units in rest[1:]] or list(GOALS))
    elif what == "curves":
        curves(seeds, rest[1:] or list(STEPS))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
