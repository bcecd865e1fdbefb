"""Recurrent PPO in one file, in the manner of CleanRL: everything that happens is on this page.

    python examples/ppo_recurrent.py [--task CartPole-v1] [--layer LSTM] [--units 64] [--total 100000] [--seed 1]

The agent sees positions and no velocities, so it must remember. While it acts, the layer takes single steps
(``layer.step``). While it learns, all steps of a minibatch's environments run in one call, in which ``reset`` marks the
first steps of episodes. Any layer of longlag will do (``--layer GRU``).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import longlag as ll

SEEN = {"CartPole-v1": [0, 2], "Acrobot-v1": [0, 1, 2, 3]}  # the positions among the observations


@dataclass
class Settings:
    task: str = "CartPole-v1"
    layer: str = "LSTM"
    units: int = 64
    total: int = 100_000  # steps, of all environments together
    seed: int = 1
    environments: int = 8
    steps: int = 128  # of each environment between two updates
    epochs: int = 10
    minibatches: int = 4  # each has the whole sequences of some environments
    learning_rate: float = 7e-4
    gamma: float = 0.99
    smoothing: float = 0.98  # λ of generalised advantage estimation
    reward_scale: float = 0.05  # keeps values near 1
    clip: float = 0.2
    entropy: float = 0.0
    value_share: float = 0.5
    largest_norm: float = 1.0


class Agent(nn.Module):
    """A layer that remembers, and linear maps from its output to logits and to the value."""

    def __init__(self, inputs: int, actions: int, s: Settings) -> None:
        super().__init__()
        self.memory: ll.layers.Layer = getattr(ll, s.layer)(inputs, s.units)
        self.actor, self.critic = nn.Linear(s.units, actions), nn.Linear(s.units, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def read(self, y: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.actor(y), validate_args=False), self.critic(y).squeeze(-1)

    @torch.no_grad()
    def act(self, seen: Tensor, state: Any, starts: Tensor) -> tuple[Categorical, Tensor, Any]:
        """One step of every environment; states of those that start anew are set back."""
        spec = self.memory.state_spec
        fresh = spec.parts(self.memory.initial_state(len(seen)))
        y, state = self.memory.step(seen, spec.whole(spec.where(starts, fresh, spec.parts(state))))
        return *self.read(y), state

    def replay(self, seen: Tensor, state: Any, starts: Tensor) -> tuple[Categorical, Tensor]:
        """All steps (T, B) at once."""
        return self.read(self.memory(seen, state, reset=starts)[0])


class Environments:
    """Several environments, each begun anew when an episode ends."""

    def __init__(self, s: Settings) -> None:
        self.each = [gym.make(s.task) for _ in range(s.environments)]
        space, actions = self.each[0].observation_space, self.each[0].action_space
        assert isinstance(space, gym.spaces.Box)
        assert isinstance(actions, gym.spaces.Discrete)
        self.seen, self.actions = SEEN[s.task], int(actions.n)
        self.scale, self.reward_scale = space.high[self.seen], s.reward_scale
        self.sums = np.zeros(s.environments)
        self.returns: list[float] = []  # of finished episodes

    def reset(self, seed: int) -> Tensor:
        return self._visible([env.reset(seed=seed + k)[0] for k, env in enumerate(self.each)])

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is seen next, rewards, and whether it is the first step of a new episode."""
        found, rewards, ended = [], np.zeros(len(self.each)), np.zeros(len(self.each), bool)
        for k, (env, action) in enumerate(zip(self.each, actions.tolist())):
            full, reward, terminated, truncated, _ = env.step(action)
            rewards[k], ended[k] = reward, terminated or truncated
            self.sums[k] += rewards[k]
            if ended[k]:
                self.returns.append(float(self.sums[k]))
                self.sums[k], full = 0.0, env.reset()[0]
            found.append(full)
        return (
            self._visible(found),
            torch.as_tensor(rewards * self.reward_scale, dtype=torch.float32),
            torch.as_tensor(ended),
        )

    def _visible(self, full: list[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.stack(full)[:, self.seen] / self.scale, dtype=torch.float32)


@dataclass
class Rollout:
    """``steps`` steps of every environment, (T, B, …), and the state before the first."""

    seen: Tensor
    starts: Tensor
    actions: Tensor
    chances: Tensor  # log-probabilities of the actions
    rewards: Tensor
    values: Tensor
    state: Any
    advantages: Tensor


class Training:
    def __init__(self, s: Settings) -> None:
        torch.manual_seed(s.seed)
        self.s, self.envs = s, Environments(s)
        self.agent = Agent(len(self.envs.seen), self.envs.actions, s)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=s.learning_rate, eps=1e-5)
        self.now, self.starts = self.envs.reset(s.seed), torch.ones(s.environments, dtype=torch.bool)
        self.state = self.agent.memory.initial_state(s.environments)
        self.drift = 0.0  # largest |π_new/π_old − 1| before the first change of the weights: 0, but for rounding

    def roll(self) -> Rollout:
        """Act, and judge the actions by generalised advantage estimation."""
        s, before = self.s, self.state
        steps: list[tuple[Tensor, ...]] = []
        for _ in range(s.steps):
            policy, value, self.state = self.agent.act(self.now, self.state, self.starts)
            action = policy.sample()
            seen, starts = self.now, self.starts
            self.now, reward, self.starts = self.envs.step(action)
            steps.append((seen, starts, action, policy.log_prob(action), reward, value))
        seen, starts, actions, chances, rewards, values = map(torch.stack, zip(*steps))
        _, last, _ = self.agent.act(self.now, self.state, self.starts)
        following = torch.cat([values[1:], last[None]])
        goes_on = 1.0 - torch.cat([starts[1:], self.starts[None]]).float()
        surprise = rewards + s.gamma * goes_on * following - values
        advantages, later = torch.zeros_like(rewards), torch.zeros(s.environments)
        for t in reversed(range(s.steps)):
            advantages[t] = later = surprise[t] + s.gamma * s.smoothing * goes_on[t] * later
        return Rollout(seen, starts, actions, chances, rewards, values, before, advantages)

    def update(self, r: Rollout) -> None:
        """Several epochs of minibatches."""
        s, spec = self.s, self.agent.memory.state_spec
        for epoch in range(s.epochs):
            for number, some in enumerate(torch.randperm(s.environments).chunk(s.minibatches)):
                policy, value = self.agent.replay(r.seen[:, some], spec.select(r.state, some), r.starts[:, some])
                ratio = (policy.log_prob(r.actions[:, some]) - r.chances[:, some]).exp()
                if epoch == number == 0:
                    self.drift = float((ratio.detach() - 1).abs().max())
                advantage = r.advantages[:, some]
                wanted = advantage + r.values[:, some]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.minimum(ratio * advantage, ratio.clamp(1 - s.clip, 1 + s.clip) * advantage)
                loss = s.value_share * (value - wanted).square().mean() - gain.mean()
                loss = loss - s.entropy * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), s.largest_norm)
                self.optimizer.step()

    def run(self, every: int = 10) -> list[float]:
        """Train; the mean return of the last 20 finished episodes after each update."""
        s, curve, begun = self.s, [], time.perf_counter()
        for k in range(s.total // (s.steps * s.environments)):
            self.update(self.roll())
            curve.append(float(np.mean(self.envs.returns[-20:])))
            if k % every == every - 1:
                done = (k + 1) * s.steps * s.environments
                rate = done / (time.perf_counter() - begun)
                print(f"{done:8,} steps, {rate:5,.0f} per second: return {curve[-1]:.1f}", flush=True)
        return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    torch.set_num_threads(1)
    Training(Settings(**vars(parser.parse_args()))).run()


if __name__ == "__main__":
    main()
