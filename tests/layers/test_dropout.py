"""Dropout: between layers, and of the recurrence with one mask per sequence.

A masked recurrence is an unmasked one whose recurrent matrix lost columns: the mask a layer drew is found by trying
all of them, and only a mask that stays the same over time can explain a whole sequence.
"""

import itertools

import pytest
import torch
from helpers import LAYERS, batch_axis, owner, parts, randn, same, some_state, weighted_sum, whole

import longlag as ll

P = 0.4


def columns(*names):
    """Of a matrix; a vector of gains is its own diagonal."""

    def apply(layer, mask):
        for name in names:
            getattr(layer, name).mul_(mask)

    return apply


def last_columns(layer, mask):
    """LSTM97: the columns of what is fed back, after those of the input."""
    for name, parameter in layer.named_parameters():
        if name.startswith("weight_") and name != "weight_out":
            parameter[:, layer.input_size :] *= mask


# name -> (size that leaves few units, how a mask (units,) enters the weights of the layer)
RECURRENCES = {
    "elman": (3, columns("weight_hh_l0")),
    "elman_norm": (3, columns("weight_hh_l0")),
    "lstm": (3, columns("weight_hh_l0")),
    "lstm_norm": (3, columns("weight_hh_l0")),
    "gru": (3, columns("weight_hh_l0")),
    "leaky": (3, columns("weight_hh_l0")),
    "leaky_learned": (3, columns("weight_hh_l0")),
    "skip": (3, columns("weight_hh_l0", "weight_skip_l0")),
    "skip_several": (3, columns("weight_hh_l0", "weight_skip_l0")),
    "user_everything": (3, columns("weight_hh_l0")),
    "lstm97": (1, last_columns),
    "lstm97_no_output_gates": (1, last_columns),
    "jordan": (3, columns("weight_fb")),
    "jordan_hidden": (3, columns("weight_fb")),
    "local_net": (3, columns("u_l0")),
    "local_net_norm": (3, columns("u_l0")),
    "local_activation": (3, columns("v_l0")),
}
LOCAL = [name for name in RECURRENCES if name.startswith("local")]  # a loop that is kept keeps its gain
every_recurrence = pytest.mark.parametrize("name", RECURRENCES)


def units(layer):
    """How many units the mask covers."""
    return parts(layer(randn(1, 1, layer.input_size))[1])[0].shape[-1]


def drawn_masks(name, B, **call):
    """The masks (B, units) that explain a training run and its gradient; each must be the only one that does."""
    size, apply = RECURRENCES[name]
    layer = LAYERS[name](3, size, recurrent_dropout=P)
    x, state = randn(5, B, 3).requires_grad_(), some_state(layer, B)
    trained, final = layer.train()(x, whole(state), **call)
    (d_trained,) = torch.autograd.grad(weighted_sum(trained), x)
    kept = 1.0 if name in LOCAL else 1 / (1 - P)
    found = torch.full((B, units(layer.eval())), torch.nan, dtype=torch.float64)
    for choice in itertools.product([0.0, kept], repeat=found.shape[1]):
        masked, mask = LAYERS[name](3, size), torch.tensor(choice, dtype=torch.float64)
        with torch.no_grad():
            apply(masked, mask)
        y, end = masked(x, whole(state), **call)
        (d,) = torch.autograd.grad(weighted_sum(y), x)
        differ = [(y - trained).abs().amax((0, 2)), (d - d_trained).abs().amax((0, 2))]
        axis = batch_axis(layer)
        differ += [(a - b).abs().movedim(axis, 0).flatten(1).amax(1) for a, b in zip(parts(end), parts(final))]
        explains = torch.stack(differ).amax(0) < 1e-12
        assert found[explains].isnan().all(), "two masks explain one run"
        found[explains] = mask
    assert not found.isnan().any(), "no constant mask explains the run"
    return found, kept


@every_recurrence
def test_one_mask_per_sequence_constant_over_time(name):
    masks, kept = drawn_masks(name, 40)
    share = (masks == 0).double().mean()
    assert abs(share - P) < 4 * (P * (1 - P) / masks.numel()) ** 0.5
    assert len(masks.unique(dim=0)) > 1, "sequences draw their own"
    assert abs(masks.mean() - kept * (1 - P)) < 4 * kept * (P * (1 - P) / masks.numel()) ** 0.5


@pytest.mark.parametrize("name", ["jordan", "jordan_hidden"])
def test_the_teacher_is_masked_too(name):
    labels = torch.randint(3, (5, 20), generator=torch.Generator().manual_seed(1))
    masks, _ = drawn_masks(name, 20, targets=labels)
    assert (masks == 0).any()
    assert (masks > 0).any()


def test_every_layer_and_direction_has_a_mask_of_its_own():
    layer = LAYERS["elman_two_ways"](3, 2, recurrent_dropout=P).train()
    x = randn(4, 1, 3)
    trained, _ = layer(x)
    fits = []
    for choice in itertools.product([0.0, 1 / (1 - P)], repeat=8):
        masked = LAYERS["elman_two_ways"](3, 2)
        masks = torch.tensor(choice, dtype=torch.float64).view(4, 2)
        with torch.no_grad():
            for mask, suffix in zip(masks, ("l0", "l0_reverse", "l1", "l1_reverse")):
                getattr(masked, f"weight_hh_{suffix}").mul_(mask)
        if (masked(x)[0] - trained).abs().max() < 1e-12:
            fits.append(masks)
    (masks,) = fits
    assert len(masks.unique(dim=0)) > 1


def test_the_network_of_1992_cuts_loops_too():
    layer = LAYERS["local_network"](recurrent_dropout=0.5)
    x = randn(6, 3, 3)
    assert not torch.equal(layer.train()(x)[0], layer.eval()(x)[0])
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith(("u_l0", "v_l0")):
                parameter.zero_()
    assert torch.equal(layer.train()(x)[0], layer.eval()(x)[0])  # nothing but the loops was dropped


@pytest.mark.parametrize("name", [*RECURRENCES, "lstm_two_ways", "local_network"])
def test_no_dropout_in_eval(name):
    layer, plain = LAYERS[name](recurrent_dropout=P).eval(), LAYERS[name]()
    x = randn(5, 2, 3)
    assert torch.equal(layer(x)[0], plain(x)[0])
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", ["elman", "lstm97", "jordan", "local_net"])
def test_no_step_by_step_under_a_mask(name):
    layer = LAYERS[name](recurrent_dropout=P).train()
    text = r"step needs recurrent_dropout=0 or eval\(\): a mask lasts a whole sequence"
    with pytest.raises(ValueError, match=rf"^{owner(layer)}: {text}$"):
        layer.step(randn(2, 3))
    same(layer.eval().step(randn(2, 3))[0], LAYERS[name]().step(randn(2, 3))[0])


# ------------------------------------------------------------------------------------------- between the layers


@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "skip", "leaky", "local_net"])
def test_dropout_between_layers_is_torchs(name):
    """The second layer reads what torch's own dropout leaves of the first; the last layer's output is whole."""
    stack = LAYERS[name](num_layers=2, dropout=P)
    first, second = LAYERS[name](), LAYERS[name](4)
    own = stack.state_dict()
    first.load_state_dict({key: own[key] for key in first.state_dict()})
    second.load_state_dict({key: own[key.replace("_l0", "_l1")] for key in second.state_dict()})
    x = randn(5, 3, 3)
    torch.manual_seed(11)
    trained, _ = stack.train()(x)
    torch.manual_seed(11)
    same(trained, second(torch.nn.functional.dropout(first(x)[0], P))[0])
    same(stack.eval()(x)[0], second(first(x)[0])[0])


def test_dropout_between_layers_leaves_padding_alone():
    stack = LAYERS["lstm_two_ways"](dropout=P).train()
    y, _ = stack(randn(5, 2, 3), lengths=torch.tensor([5, 2]))
    assert not y[2:, 1].any()
    assert y[:, 0].all()


def test_dropout_of_a_single_layer_is_announced_as_idle():
    text = "dropout acts between layers, so num_layers=1 makes it idle"
    with pytest.warns(UserWarning, match=rf"^Elman: {text}$"):
        ll.Elman(3, 4, dropout=0.5)
    with pytest.warns(UserWarning, match=rf"^Skip: {text}$"):
        ll.Skip(3, 4, dropout=0.5)
