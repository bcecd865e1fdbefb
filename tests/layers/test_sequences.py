"""What every layer promises about time: lengths, resets, state passing, one step at a time, and its layouts."""

import pytest
import torch
from helpers import (
    LAYERS,
    ONE_WAY,
    SMALLEST,
    TWO_WAYS,
    batch_axis,
    gradients,
    parts,
    randn,
    rest,
    same,
    some_state,
    weighted_sum,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st

every_layer = pytest.mark.parametrize("name", LAYERS)
one_way = pytest.mark.parametrize("name", ONE_WAY)
few_examples = settings(max_examples=4)


def draw_sizes(data, name):
    T, B = data.draw(st.integers(1, 5), "T"), data.draw(st.integers(1, 3), "B")
    return T, B, data.draw(st.integers(1, 3), "I"), data.draw(st.integers(SMALLEST.get(name, 1), 4), "size")


def draw_setting(data, name):
    """A layer of drawn size, and x (T, B, I) and a state as leaves."""
    T, B, I, size = draw_sizes(data, name)
    layer = LAYERS[name](I, size)
    return layer, randn(T, B, I).requires_grad_(), [part.requires_grad_() for part in some_state(layer, B)]


def draw_lengths(data, x):
    T, B = x.shape[:2]
    return torch.tensor(data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B), "lengths"))


def of_sequence(layer, state, b):
    axis = batch_axis(layer)
    return [part.narrow(axis, b, 1) for part in state]


def weights(*tensors):
    return [randn(*t.shape, seed=70 + i) for i, t in enumerate(tensors)]


def total(values, at):
    """Σ value · weight; 0 for no values."""
    return sum((torch.sum(value * weight) for value, weight in zip(values, at)), torch.zeros((), dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ ragged lengths


@every_layer
@few_examples
@given(data=st.data())
def test_ragged_lengths_are_each_sequence_alone(name, data):
    layer, x, state = draw_setting(data, name)
    lengths = draw_lengths(data, x)
    y, final = layer(x, whole(state), lengths=lengths)
    final, at = parts(final), weights(y, *parts(final))
    ours = gradients(total([y, *final], at), layer, x, *state)

    loss = torch.zeros((), dtype=x.dtype)
    for b, L in enumerate(lengths.tolist()):
        alone, end = layer(x[:L, b : b + 1], whole(of_sequence(layer, state, b)))
        same(y[:L, b : b + 1], alone, f"outputs of sequence {b}")
        assert not y[L:, b].any(), "outputs beyond a length are zero"
        same(of_sequence(layer, final, b), parts(end), f"final state of sequence {b}")
        loss = loss + total([alone, *parts(end)], [at[0][:L, b : b + 1], *of_sequence(layer, at[1:], b)])
    same(ours, gradients(loss, layer, x, *state), "gradient of")


def run_padded(layer, x, state, lengths, padding):
    """Outputs, final state and gradients with ``padding`` in place of what lies beyond the lengths."""
    beyond = torch.arange(len(x))[:, None] >= lengths
    x = x.detach().masked_fill(beyond.unsqueeze(-1), padding).requires_grad_()
    y, final = layer(x, whole(state), lengths=lengths)
    found = gradients(weighted_sum(y, *parts(final)), layer, x, *state)
    assert not found["0"][beyond].any(), "no gradient reaches the padding"
    return y, parts(final), found


@every_layer
def test_what_stands_in_the_padding_does_not_matter(name):
    layer = LAYERS[name]()
    x, state = randn(4, 3, 3), [part.requires_grad_() for part in some_state(layer, 3)]
    lengths = torch.tensor([2, 4, 1])
    wanted = run_padded(layer, x, state, lengths, 0.0)
    y, final, found = run_padded(layer, x, state, lengths, 1e3)
    assert torch.equal(y, wanted[0])
    assert all(map(torch.equal, final, wanted[1]))
    same(found, wanted[2])


@every_layer
def test_nothing_comes_out_of_nan_in_the_padding(name):
    layer = LAYERS[name]()
    x, lengths = randn(4, 3, 3), torch.tensor([2, 4, 1])
    beyond = torch.arange(4)[:, None] >= lengths
    y, final = layer(x.masked_fill(beyond.unsqueeze(-1), torch.nan), lengths=lengths)
    wanted, wanted_final = layer(x, lengths=lengths)
    assert torch.equal(y, wanted)
    assert all(map(torch.equal, parts(final), parts(wanted_final)))


@every_layer
def test_no_gradient_comes_out_of_nan_in_the_padding(name):
    layer = LAYERS[name]()
    x, state = randn(4, 3, 3), [part.requires_grad_() for part in some_state(layer, 3)]
    lengths = torch.tensor([2, 4, 1])
    same(run_padded(layer, x, state, lengths, torch.nan)[2], run_padded(layer, x, state, lengths, 0.0)[2])


# ------------------------------------------------------------------------------------------------------ resets


def pieces(reset, L):
    """[start, end) of each piece of a sequence of L steps."""
    starts = [0] + [t for t in range(1, L) if reset[t]]
    return list(zip(starts, starts[1:] + [L]))


def backwards(layer, name, part):
    """Which entries of a state belong to a direction that runs backwards: (layers · directions, 1, …) bool."""
    count = part.shape[0] if batch_axis(layer) else 1
    flags = torch.arange(count) % 2 == 1 if name in TWO_WAYS else torch.zeros(count, dtype=torch.bool)
    return flags.view(-1, *[1] * (part.dim() - 1))


@every_layer
@few_examples
@given(data=st.data())
def test_a_reset_cuts_the_sequence(name, data):
    layer, x, state = draw_setting(data, name)
    T, B = x.shape[:2]
    flags = st.lists(st.lists(st.booleans(), min_size=B, max_size=B), min_size=T, max_size=T)
    reset, lengths = torch.tensor(data.draw(flags, "reset")), draw_lengths(data, x)
    y, final = layer(x, whole(state), lengths=lengths, reset=reset)
    final, at = parts(final), weights(y, *parts(final))
    ours = gradients(total([y, *final], at), layer, x, *state)

    loss = torch.zeros((), dtype=x.dtype)
    for b, L in enumerate(lengths.tolist()):
        given_, zero = of_sequence(layer, state, b), rest(layer, 1)
        back = [backwards(layer, name, part) for part in given_]
        cut, ends = pieces(reset[:, b].tolist(), L), []
        for start, end in cut:
            # forwards, the first piece goes on from the given state unless it is reset; backwards, the last does
            first, last = start == 0 and not reset[0, b], end == L
            begin = [torch.where(back_, s if last else z, s if first else z) for s, z, back_ in zip(given_, zero, back)]
            piece, stop = layer(x[start:end, b : b + 1], whole(begin))
            same(y[start:end, b : b + 1], piece, f"piece {start}..{end} of sequence {b}")
            loss = loss + total([piece], [at[0][start:end, b : b + 1]])
            ends.append(parts(stop))
        wanted = [torch.where(back_, f, l) for f, l, back_ in zip(ends[0], ends[-1], back)]
        same(of_sequence(layer, final, b), wanted, "final state")
        loss = loss + total(wanted, of_sequence(layer, at[1:], b))
    same(ours, gradients(loss, layer, x, *state), "gradient of")


# --------------------------------------------------------------------------------------------------- state passing


@one_way
@few_examples
@given(data=st.data())
def test_pieces_with_the_state_handed_on_are_the_whole(name, data):
    layer, x, state = draw_setting(data, name)
    T = len(x)
    cuts = sorted(data.draw(st.sets(st.integers(1, T - 1)) if T > 1 else st.just(set()), "cuts"))
    y, final = layer(x, whole(state))
    at = weights(y, *parts(final))
    outputs, now = [], whole(state)
    for start, end in zip([0, *cuts], [*cuts, T]):
        piece, now = layer(x[start:end], now)
        outputs.append(piece)
    same(torch.cat(outputs), y, "outputs")
    same(parts(now), parts(final), "final state")
    ours = gradients(total([torch.cat(outputs), *parts(now)], at), layer, x, *state)
    same(ours, gradients(total([y, *parts(final)], at), layer, x, *state), "gradient of")


@one_way
@pytest.mark.parametrize("batch_first", [False, True])
def test_step_by_step_is_the_whole(name, batch_first):
    layer = LAYERS[name](batch_first=batch_first)
    x, state = randn(5, 2, 3), some_state(layer, 2)
    y, final = layer(x.transpose(0, 1) if batch_first else x, whole(state))
    now, one, alone = whole(state), whole(part.select(batch_axis(layer), 0) for part in state), []
    for t in range(5):
        y_t, now = layer.step(x[t], now)
        same(y_t, y[:, t] if batch_first else y[t], f"step {t}")
        y_one, one = layer.step(x[t, 0], one)
        alone.append(y_one)
    same(parts(now), parts(final), "final state")
    same(torch.stack(alone), y[0] if batch_first else y[:, 0], "one sequence")
    same(parts(one), [part.select(batch_axis(layer), 0) for part in parts(final)], "its final state")


# --------------------------------------------------------------------------------------------------------- layouts


@every_layer
@few_examples
@given(data=st.data())
def test_batch_first_is_the_same_layer_transposed(name, data):
    T, B, I, size = draw_sizes(data, name)
    plain, other = (LAYERS[name](I, size, batch_first=flag) for flag in (False, True))
    x, state = randn(T, B, I), some_state(plain, B)
    lengths, reset = draw_lengths(data, x), randn(*x.shape[:2], seed=9) > 0.8
    y, final = plain(x, whole(state), lengths=lengths, reset=reset)
    y_other, final_other = other(x.transpose(0, 1), whole(state), lengths=lengths, reset=reset.t())
    same(y_other.transpose(0, 1), y)
    same(parts(final_other), parts(final))


@every_layer
@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_without_a_batch(name, batch_first):
    layer, plain = LAYERS[name](batch_first=batch_first), LAYERS[name]()
    x, state, axis = randn(4, 1, 3), some_state(plain, 1), batch_axis(plain)
    reset = torch.tensor([False, True, False, True])
    for options in ({}, {"reset": reset}):
        batched = {key: value.unsqueeze(1) for key, value in options.items()}
        y, final = plain(x, whole(state), **batched)
        y_one, final_one = layer(x[:, 0], whole(part.squeeze(axis) for part in state), **options)
        same(y_one, y[:, 0])
        same(parts(final_one), [part.squeeze(axis) for part in parts(final)])


@every_layer
def test_no_state_is_the_state_of_rest(name):
    layer, x = LAYERS[name](), randn(4, 2, 3)
    y, final = layer(x)
    given_, end = layer(x, whole(rest(layer, 2)))
    assert torch.equal(y, given_)
    assert all(map(torch.equal, parts(final), parts(end)))


@every_layer
def test_sequences_of_a_batch_do_not_see_each_other(name):
    layer, x = LAYERS[name](), randn(4, 3, 3).requires_grad_()
    y, _ = layer(x)
    (d,) = torch.autograd.grad(y[:, 1].sum(), x)
    assert d[:, 1].any()
    assert not d[:, [0, 2]].any()
