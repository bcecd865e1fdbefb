"""`RecurrentPolicy` beside sb3-contrib's own policy, and with layers whose states have any number of parts."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import LAYERS, randn, same, user_oscillator, weighted_sum
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates

import longlag as ll
from longlag.rl.policies import BufferedLayer

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
REFERENCE = {"lstm_kwargs": {"engine": "reference"}}


def policy(kind: Any, actions: Any = TWO, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(BOX, actions, lambda _: 1e-3, **options)


def pair(**options):
    """The stock policy and ours with its weights."""
    stock = policy(RecurrentActorCriticPolicy, lstm_hidden_size=6, **options)
    ours = policy(ll.rl.RecurrentPolicy, layer="LSTM", lstm_hidden_size=6, **options)
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def packed(h, c):
    """Two tensors (L, B, H) as ours keeps them, (1, B, L · H) each."""
    rows = torch.cat([part.transpose(0, 1).flatten(1) for part in (h, c)], -1)
    return tuple(rows.unsqueeze(0).chunk(2, -1))


def states(stock, batch, seed=1):
    shape = (stock.lstm_actor.num_layers, batch, 6)
    drawn = [randn(*shape, seed=seed + k).float() for k in range(4)]
    return RNNStates((drawn[0], drawn[1]), (drawn[2], drawn[3]))


VARIANTS = [{}, {"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False, "n_lstm_layers": 2}]


@pytest.mark.parametrize("options", VARIANTS, ids=["two", "shared", "actor_only_two_levels"])
def test_equals_the_stock_policy(options):
    """Actions, values, log-probabilities, states and gradients, with episodes that start inside the sequences."""
    stock, ours = pair(**options)
    given = states(stock, batch=5)
    given_packed = RNNStates(packed(*given.pi), packed(*given.vf))

    obs, starts = randn(5, 3).float(), torch.tensor([0.0, 1, 0, 0, 1])
    for one in (stock, ours):
        one.set_training_mode(False)
    with torch.no_grad():
        wanted = stock(obs, given, starts, deterministic=True)
        found = ours(obs, given_packed, starts, deterministic=True)
        wanted_values = stock.predict_values(obs, given.vf, starts)
        values = ours.predict_values(obs, given_packed.vf, starts)
    assert torch.equal(found[0], wanted[0])
    same(found[1:3], wanted[1:3], "values and log-probabilities", 1e-6)
    same(tuple(found[3].pi), packed(*wanted[3].pi), "states of the actor", 1e-6)
    same(tuple(found[3].vf), packed(*wanted[3].vf), "states of the critic", 1e-6)
    same(values, wanted_values, "predicted values", 1e-6)

    for one in (stock, ours):
        one.set_training_mode(True)
    obs, starts = randn(5 * 9, 3, seed=2).float(), (randn(5 * 9, seed=3) > 1).float()
    assert 0 < starts.view(5, 9)[:, 1:].sum() < 40
    actions = torch.arange(5 * 9) % 2
    results, gradients = [], []
    for one, state in ((stock, given), (ours, given_packed)):
        result = one.evaluate_actions(obs, actions, state, starts)
        results.append(result)
        gradients.append(torch.autograd.grad(weighted_sum(*result), list(one.parameters()), allow_unused=True))
    same(results[1], results[0], "values, log-probabilities, entropies", 1e-6)
    same(gradients[1], gradients[0], "gradients", 5e-6)


def test_trains_as_the_stock_policy_does():
    """From the same weights, the same rollouts and updates."""
    options = {"n_steps": 48, "batch_size": 32, "n_epochs": 2, "device": "cpu", "learning_rate": 1e-3}
    env = lambda: gym.make("CartPole-v1")  # noqa: E731
    size = {"lstm_hidden_size": 6}
    stock = RecurrentPPO("MlpLstmPolicy", env(), policy_kwargs=size, **options)
    ours = RecurrentPPO(ll.rl.RecurrentPolicy, env(), policy_kwargs={"layer": ll.LSTM, **size}, **options)
    weights: Any = stock.get_parameters()  # and the optimiser's state
    ours.set_parameters(weights)
    before = [p.detach().clone() for p in stock.policy.parameters()]
    for model in (stock, ours):
        model.set_random_seed(3)
        model.learn(96)
    assert np.array_equal(ours.rollout_buffer.actions, stock.rollout_buffer.actions)
    assert stock.rollout_buffer.episode_starts.sum() > 1
    trained = [p.detach() for p in stock.policy.parameters()]
    same([p.detach() for p in ours.policy.parameters()], trained, "weights", 1e-4)
    assert all((a != b).any() for a, b in zip(trained, before))


KINDS = {
    "lstm97": lambda: LAYERS["lstm97"](),
    "gru": lambda: LAYERS["gru"](),
    "two_states": lambda: LAYERS["user_oscillator"](),
    "three_levels": lambda: LAYERS["lstm_three_layers"](),
    "odd": lambda: LAYERS["gru"](size=5),
    "batch_first": lambda: LAYERS["lstm"](batch_first=True),
    "uniform_start": lambda: LAYERS["jordan"](),
    "chain": lambda: LAYERS["chain"](),
    "no_state": lambda: LAYERS["skip_none"](),
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_one_call_and_every_episode_apart(kind):
    """Whatever its parts are, a state passes through the two buffers unchanged; episodes do not see each other."""
    layer = KINDS[kind]()
    memory, B, T = BufferedLayer(layer), 2, 7
    x, starts = randn(B, T, 3), torch.zeros(B, T, dtype=torch.bool)
    starts[0, 0] = starts[0, 3] = starts[1, 0] = starts[1, 5] = True
    empty = torch.zeros(1, B, memory.hidden_size, dtype=torch.float64)

    memory.eval()
    outputs, buffers = [], (empty, empty)
    for t in range(T):
        y, buffers = memory(x[:, t], buffers, starts[:, t].float())
        assert all(part.shape == empty.shape for part in buffers)
        outputs.append(y)
    memory.train()
    y, ends = memory(x.flatten(0, 1), (empty, empty), starts.flatten().float())
    y = y.view(B, T, -1)
    same(torch.stack(outputs, 1), y, "outputs")
    same(buffers, ends, "states")
    for b, (first, last) in ((0, (0, 3)), (0, (3, 7)), (1, (0, 5)), (1, (5, 7))):
        episode = x[b : b + 1, first:last]
        alone, _ = layer(episode if layer.batch_first else episode.transpose(0, 1))
        same(y[b, first:last], alone.reshape(last - first, -1), f"episode {b, first}")


def act(model, steps=5):
    """What the policy does in a few steps from a fixed observation."""
    state, done, actions = None, np.ones(2, bool), []
    for _ in range(steps):
        action, state = model.predict(np.full((2, 4), 0.3, np.float32), state, done, deterministic=True)
        done = np.zeros(2, bool)
        actions.append((action.astype(np.float32), *state))
    return actions


def oscillator(input_size):
    return ll.Recurrent(user_oscillator, input_size, 4, engine="reference")


def test_save_and_load(tmp_path):
    """A model with its layer goes into sb3's file and comes back; so does the policy alone; a loaded model learns."""
    options = {"layer": oscillator}
    model = RecurrentPPO(ll.rl.RecurrentPolicy, "CartPole-v1", n_steps=16, n_epochs=1, policy_kwargs=options)
    model.learn(16)
    model.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    same(act(loaded), act(model))
    loaded.learn(16)

    small = {"layer": "gru", "lstm_hidden_size": 6, "enable_critic_lstm": False, "shared_lstm": True, **REFERENCE}
    alone = policy(ll.rl.RecurrentPolicy, **small)
    alone.save(tmp_path / "policy")
    again = ll.rl.RecurrentPolicy.load(tmp_path / "policy")
    same(dict(again.state_dict()), dict(alone.state_dict()))


class Images(gym.Env):
    """Random images."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), self.np_random.random() < 0.2, False, {}


def as_dict(env):
    return gym.wrappers.TransformObservation(env, lambda obs: {"obs": obs}, spaces.Dict({"obs": env.observation_space}))


LEARNS = {
    "images": (ll.rl.RecurrentCnnPolicy, Images, {"features_extractor_kwargs": {"features_dim": 8}}, {}),
    "dicts": (ll.rl.RecurrentMultiInputPolicy, lambda: as_dict(gym.make("CartPole-v1")), {"layer": ll.GRU}, {}),
    "torques": (ll.rl.RecurrentPolicy, lambda: gym.make("Pendulum-v1"), {"layer": ll.Elman}, {"use_sde": True}),
    "apart": (ll.rl.RecurrentPolicy, lambda: gym.make("CartPole-v1"), {"share_features_extractor": False}, {}),
}


@pytest.mark.parametrize("name", LEARNS)
def test_learns_from_what_sb3_serves(name):
    kind, make, options, settings = LEARNS[name]
    options = {
        "lstm_hidden_size": 4,
        "n_lstm_layers": 2,
        "lstm_kwargs": {"dropout": 0.5, "engine": "reference"},
        **options,
    }
    model: Any = RecurrentPPO(kind, make(), n_steps=16, n_epochs=1, policy_kwargs=options, seed=0, **settings)
    before = [p.detach().clone() for p in model.policy.lstm_actor.parameters()]
    model.learn(32)
    assert all((a != b).any() for a, b in zip(before, model.policy.lstm_actor.parameters()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": ll.LSTM(3, 4)}, "RecurrentPolicy: layer must be a class of layers, .*; got one LSTM"),
        ({"layer": 3}, "RecurrentPolicy: layer must be a class of layers, .*, got int"),
        ({"layer": "lstn"}, "RecurrentPolicy: layer must name a class .*, got 'lstn'"),
        ({"layer": ll.LSTM97}, r"layer LSTM97 has other sizes .*layer=lambda input_size: LSTM97\(input_size"),
        ({"layer": lambda n: torch.nn.LSTM(n, 4)}, r"what layer\(input_size\) returns must be a longlag layer, got"),
        ({"layer": lambda n: ll.GRU(n + 1, 4)}, "layer must have input_size 3, got 4"),
        ({"layer": lambda n: ll.GRU(n, 4), "lstm_hidden_size": 8}, "lstm_hidden_size must not be given where"),
        ({"layer": ll.GRU, "lstm_kwargs": {"bidirectional": True}}, "layer must have bidirectional=False"),
        ({"layer": ll.GRU, "lstm_kwargs": {"learn_initial_state": True}}, "GRU: reset starts from zeros; it needs"),
        ({"layer": ll.GRU, "lstm_hidden_size": 0}, "GRU: hidden_size must be a positive int, got 0"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:12],
)  # fmt: skip
def test_bad_input(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        policy(ll.rl.RecurrentPolicy, **options)


def test_sb3_refuses_two_critics():
    with pytest.raises(AssertionError, match="shared LSTM"):
        policy(ll.rl.RecurrentPolicy, shared_lstm=True, enable_critic_lstm=True, lstm_hidden_size=4)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("RecurrentPolicy", "sb3_contrib", "rl"), ("RecurrentModule", "torchrl", "torchrl")]
)
def test_a_missing_package_is_named(monkeypatch, name, package, extra):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=rf'needs {package}: pip install "longlag\[{extra}\]"'):
        getattr(ll.rl, name)
