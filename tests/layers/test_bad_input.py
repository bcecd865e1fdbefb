"""Bad input is refused with owner, argument, expected and got; a call that failed changes nothing."""

import re

import pytest
import torch
from helpers import LAYERS, TWO_WAYS, batch_axis, owner, parts, randn, some_state, whole

every_layer = pytest.mark.parametrize("name", LAYERS)
X = randn(4, 2, 3)
SINGLE = "must be torch.float64 like the weights, got torch.float32"


def refuses(error, text):
    return pytest.raises(error, match=f"^{re.escape(text)}$")


# --------------------------------------------------------------------------------------------------- calling


@every_layer
def test_inputs(name):
    layer = LAYERS[name]()
    me = owner(layer)
    for x, error, text in [
        (randn(3), ValueError, "input must have 2 or 3 dimensions, got shape (3,)"),
        (randn(1, 4, 2, 3), ValueError, "input must have 2 or 3 dimensions, got shape (1, 4, 2, 3)"),
        (randn(4, 2, 5), ValueError, "input must have 3 features, got shape (4, 2, 5)"),
        (randn(0, 2, 3), ValueError, "input must have at least one step, got shape (0, 2, 3)"),
        (X.float(), TypeError, f"input {SINGLE}"),
        (X.long(), TypeError, "input must be torch.float64 like the weights, got torch.int64"),
        (X.to("meta"), ValueError, "input must be on cpu like the weights, got meta"),
        (X.tolist(), TypeError, "input must be a tensor, got list"),
        (None, TypeError, "input must be a tensor, got NoneType"),
    ]:
        with refuses(error, f"{me}: {text}"):
            layer(x)


@every_layer
def test_lengths(name):
    layer = LAYERS[name]()
    me = owner(layer)
    for lengths, text in [
        (torch.tensor([4, 5]), "lengths must lie in 1..4, got 5"),
        ([4, 0], "lengths must lie in 1..4, got 0"),
        (torch.tensor([-1, 2]), "lengths must lie in 1..4, got -1"),
        (torch.tensor([4]), "lengths must be ints of shape (2,), got torch.int64 of shape (1,)"),
        (3, "lengths must be ints of shape (2,), got torch.int64 of shape ()"),
        (torch.tensor([[4, 4]]), "lengths must be ints of shape (2,), got torch.int64 of shape (1, 2)"),
        (torch.tensor([4.0, 2.0]), "lengths must be ints of shape (2,), got torch.float32 of shape (2,)"),
        (torch.tensor([True, True]), "lengths must be ints of shape (2,), got torch.bool of shape (2,)"),
        (torch.tensor([4, 4], device="meta"), "lengths must be on cpu like the input, got meta"),
    ]:
        with refuses(ValueError, f"{me}: {text}"):
            layer(X, lengths=lengths)
    with refuses(ValueError, f"{me}: lengths needs a batched input, got one sequence"):
        layer(X[:, 0], lengths=[4])


@every_layer
@pytest.mark.parametrize("batch_first", [False, True])
def test_resets(name, batch_first):
    layer = LAYERS[name](batch_first=batch_first)
    me, shape = owner(layer), (2, 4) if batch_first else (4, 2)
    x = X.transpose(0, 1) if batch_first else X
    wrong = torch.zeros(3, 2, dtype=torch.bool)
    for reset, got in [
        (wrong, "torch.bool of shape (3, 2)"),
        (torch.zeros(shape), f"torch.float32 of shape {shape}"),
        (True, "True"),
    ]:
        with refuses(ValueError, f"{me}: reset must be a bool tensor of shape {shape}, got {got}"):
            layer(x, reset=reset)
    with refuses(ValueError, f"{me}: reset must be on cpu like the input, got meta"):
        layer(x, reset=torch.zeros(shape, dtype=torch.bool, device="meta"))
    with refuses(ValueError, f"{me}: reset must be a bool tensor of shape (4,), got torch.bool of shape (3, 2)"):
        layer(X[:, 0], reset=wrong)


STATEFUL = [name for name in LAYERS if some_state(LAYERS[name](), 1)]


@pytest.mark.parametrize("name", STATEFUL)
def test_states(name):
    layer = LAYERS[name]()
    me, state = owner(layer), some_state(layer, 2)
    n = len(state)
    names = layer.state_spec.names
    kind = "a tensor" if n == 1 else f"a tuple of {n} tensors"
    start = f"{me}: state must be {kind} ({', '.join(names)}), got "
    for bad, got in [((*state, state[0]), f"{n + 1} parts"), ("abc", "str"), (7, "int"), ({}, "dict")]:
        with refuses(ValueError, start + got):
            layer(X, bad)
    for part in range(n):
        shape = tuple(state[part].shape)
        longer = torch.cat([state[part], state[part]], batch_axis(layer))
        for bad, error, text in [
            (longer, ValueError, f"state {names[part]} must have shape {shape}, got {tuple(longer.shape)}"),
            (state[part].float(), TypeError, f"state {names[part]} {SINGLE}"),
            (state[part].to("meta"), ValueError, f"state {names[part]} must be on cpu like the weights, got meta"),
        ]:
            with refuses(error, f"{me}: {text}"):
                layer(X, whole([*state[:part], bad, *state[part + 1 :]]))


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in TWO_WAYS])
def test_single_steps(name):
    layer = LAYERS[name]()
    me = owner(layer)
    for x, error, text in [
        (X, ValueError, "input of step must be (B, I) or (I,), got shape (4, 2, 3)"),
        (X[0].float(), TypeError, f"input {SINGLE}"),
        (X[0, 0].tolist(), TypeError, "input must be a tensor, got list"),
        (X[0, :, :2], ValueError, "input must have 3 features, got shape (1, 2, 2)"),
    ]:
        with refuses(error, f"{me}: {text}"):
            layer.step(x)


@every_layer
def test_a_refused_call_leaves_the_layer_as_it_was(name):
    layer = LAYERS[name]()
    y, final = layer(X)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    for bad in ({"lengths": [9, 9]}, {"reset": 1}, {"state": "?"}):
        with pytest.raises((ValueError, TypeError)):
            layer(X, **bad)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert torch.equal(layer(X)[0], y)
    assert all(map(torch.equal, parts(layer(X)[1]), parts(final)))


def test_jordans_teacher():
    net = LAYERS["jordan"]()
    good = torch.zeros(4, 2, dtype=torch.long)
    shapes = "targets must be int64 classes (4, 2) or vectors (4, 2, 3) (T, B, …), got "
    for options, error, text in [
        ({"targets": good[:3]}, ValueError, shapes + "torch.int64 of shape (3, 2)"),
        ({"targets": good.tolist()}, TypeError, "targets must be a tensor, got list"),
        ({"targets": good.int()}, ValueError, shapes + "torch.int32 of shape (4, 2)"),
        ({"targets": randn(4, 2, 2)}, ValueError, shapes + "torch.float64 of shape (4, 2, 2)"),
        ({"targets": randn(4, 2, 3).float()}, TypeError, f"targets {SINGLE}"),
        ({"targets": good + 3}, ValueError, "targets must lie in 0..2, got 3"),
        ({"targets": good - 1}, ValueError, "targets must lie in 0..2, got -1"),
        ({"targets": good, "teacher": 1.5}, ValueError, "teacher must be a number in [0, 1], got 1.5"),
        ({"targets": good, "teacher": float("nan")}, ValueError, "teacher must be a number in [0, 1], got nan"),
        ({"targets": good, "draw": "lots"}, ValueError, "draw must be one of 'token', 'sequence', 'mix', got 'lots'"),
    ]:
        with refuses(error, f"Jordan: {text}"):
            net(X, **options)


def test_engines_say_what_they_are():
    layer = LAYERS["lstm"]()
    assert layer.engine_for(X) == "reference: asked for by name"
