"""`RecurrentModule` beside TorchRL's own modules, and in its environments, collectors and losses."""

from typing import Any

import pytest
import torch
from helpers import LAYERS, ONE_WAY, randn, same, weighted_sum
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn import TensorDictSequential as Sequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv, check_env_specs, step_mdp
from torchrl.modules import LSTMModule, set_recurrent_mode
from torchrl.modules.utils import get_primers_from_module
from torchrl.objectives.value import GAE

import longlag as ll
from longlag.rl import RecurrentModule

STATE_KEYS: list[Any] = ["h", "c"]
NEXT = [("next", "h"), ("next", "c")]
in_sequence: Any = Sequential


def pair():
    """TorchRL's LSTM of two levels and ours, with the same weights, in double precision."""
    theirs = LSTMModule(3, 4, num_layers=2, in_keys=["x", *STATE_KEYS], out_keys=["y", *NEXT]).double()
    layer = ll.LSTM(3, 4, num_layers=2, dtype=torch.float64, engine="reference")
    layer.load_state_dict(theirs.lstm.state_dict())
    return theirs, RecurrentModule(layer, in_key="x", out_key="y", state_keys=STATE_KEYS)


def data(*shape, starts=()):
    """Inputs and states; sequences start anew at the steps ``starts``, there with states of zeros."""
    is_init = torch.zeros(*shape, 1, dtype=torch.bool)
    for index in starts:
        is_init[index] = True
    entries = {"x": randn(*shape, 3), "is_init": is_init}
    for k, name in enumerate(STATE_KEYS):
        entries[name] = randn(*shape, 2, 4, seed=k + 1) * ~is_init.unsqueeze(-1)
    return TensorDict(entries, shape)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_a_step_equals_torchrl(shape):
    theirs, ours = pair()
    given = data(*shape, starts=[] if not shape else [(1,)])
    wanted, found = theirs(given.clone()), ours(given.clone())
    assert set(found.keys(True)) == set(wanted.keys(True))
    for key in ("y", *NEXT):
        same(found[key], wanted[key], str(key))


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)])
@pytest.mark.parametrize("resets", [False, True])
def test_sequences_equal_torchrl(shape, resets):
    """Outputs, the last state and all gradients; with trajectories that start inside the sequences."""
    theirs, ours = pair()
    given = data(*shape, starts=[(..., 4, 0), (..., 0, 0)] if resets else [])
    results, gradients = [], []
    with set_recurrent_mode(True):
        for module in (theirs, ours):
            out = module(given.clone())
            parts = [out["y"], *(out[key][(..., -1, slice(None), slice(None))] for key in NEXT)]
            results.append(parts)
            gradients.append(torch.autograd.grad(weighted_sum(*parts), list(module.parameters())))
            assert out["next", "h"].shape == given["h"].shape
            assert module is theirs or not out["next", "h"].flatten(-2)[..., :-1, :].any()
    same(results[1], results[0])
    same(gradients[1], gradients[0], "gradients", 1e-10)


@pytest.mark.parametrize("name", ["lstm97", "jordan", "chain", "user_oscillator", "skip"])
def test_both_modes_agree_for_every_kind_of_state(name):
    assert name in ONE_WAY
    module = RecurrentModule(LAYERS[name](), in_key="x", out_key="y")
    given = data(2, 7, starts=[(0, 0), (1, 0), (0, 3), (1, 5)]).select("x", "is_init")
    steps, before = [], TensorDict({}, [2])
    for now in given.unbind(1):
        steps.append(module(now.clone().update(before.select(*module.state_keys, strict=False))))
        before = step_mdp(steps[-1], keep_other=True)
    with set_recurrent_mode(True):
        together = module(given.clone())
    same(torch.stack([one["y"] for one in steps], 1), together["y"])
    for key in module.out_keys[1:]:
        same(steps[-1][key], together[key][:, -1], str(key))


def agent():
    layer = ll.GRU(4, 6, engine="reference")
    memory = RecurrentModule(layer, in_key="observation", out_key="embed")
    choose = TensorDictModule(lambda y: (y[..., :2] > 0).long().argmax(-1), ["embed"], ["action"])
    return memory, in_sequence(memory, choose)


def cartpole() -> Any:
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), InitTracker())


def test_in_torchrls_environments():
    """Specs, several environments, a collector, and a value network with GAE."""
    memory, policy = agent()
    env = cartpole().append_transform(memory.make_tensordict_primer())
    check_env_specs(env)
    primed = lambda: cartpole().append_transform(get_primers_from_module(policy))  # noqa: E731
    rollout = SerialEnv(2, primed).rollout(40, policy, break_when_any_done=False)
    assert rollout["is_init"].sum() > 2
    carried = rollout["next", "recurrent_state_y"][:, :-1] * ~rollout["is_init"][:, 1:].unsqueeze(-1)
    same(rollout["recurrent_state_y"][:, 1:], carried, "carried states")
    with set_recurrent_mode(True):
        again = memory(rollout.select(*memory.in_keys))
    same(again["embed"], rollout["embed"], "outputs in training")

    collected = next(iter(Collector(env, policy, frames_per_batch=30, total_frames=30)))
    value = in_sequence(memory, TensorDictModule(torch.nn.Linear(6, 1), ["embed"], ["state_value"]))
    GAE(gamma=0.9, lmbda=0.9, value_network=value, shifted=True)(collected)
    assert collected["advantage"].isfinite().all()


def test_modes_are_torchrls():
    memory, _ = agent()
    assert not memory.recurrent_mode
    assert RecurrentModule(ll.GRU(3, 4), in_key="x", out_key="y", default_recurrent_mode=True).recurrent_mode
    with set_recurrent_mode("recurrent"):
        assert memory.recurrent_mode
        with set_recurrent_mode("sequential"):
            assert not memory.recurrent_mode
        with pytest.raises(ValueError, match="recurrent mode needs a time dimension"):
            memory(TensorDict({"observation": torch.zeros(4), "is_init": torch.zeros(1, dtype=torch.bool)}))


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (torch.nn.LSTM(3, 4), {}, "RecurrentModule: layer must be a longlag layer, got LSTM"),
        (ll.GRU(3, 4, bidirectional=True), {}, "RecurrentModule: layer must have bidirectional=False"),
        (
            ll.LSTM(3, 4),
            {"state_keys": ["h"]},
            r"state_keys must be 2, .* \(y, c\), got \['h'\]",
        ),
    ],
    ids=["layer", "direction", "keys"],
)
def test_bad_construction(layer, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RecurrentModule(layer, in_key="x", out_key="y", **options)


@pytest.mark.parametrize(
    ("missing", "message"), [("x", "no entry 'x'"), ("is_init", "no entry"), ("c", "must have all")]
)
def test_a_missing_entry_is_named(missing, message):
    with pytest.raises(KeyError, match=message):
        pair()[1](data(2).exclude(missing))
