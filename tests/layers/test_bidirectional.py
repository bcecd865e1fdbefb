"""BI: two runs, one from each end, the second within each sequence's own length."""

import re

import pytest
import torch
from helpers import LAYERS, TWO_WAYS, gradients, owner, parts, randn, same, some_state, weighted_sum, whole
from hypothesis import given, settings
from hypothesis import strategies as st

every_two_ways = pytest.mark.parametrize("name", TWO_WAYS)


def reversed_within(x, lengths):
    """Each sequence of x (T, B, …) turned around within its own length; padding stays where it is."""
    return torch.stack([torch.cat([x[:L, b].flip(0), x[L:, b]]) for b, L in enumerate(lengths.tolist())], 1)


def one_way(name, layer, k):
    """Layer k of a two-way stack as a layer of its own, running forwards."""
    I, H = (layer.input_size if k < 2 else 2 * layer.hidden_size), layer.hidden_size
    alone = LAYERS[name](I, H, num_layers=1, bidirectional=False)
    suffix = f"_l{k // 2}" + ("_reverse" if k % 2 else "")
    own = layer.state_dict()
    alone.load_state_dict({key: own[key.replace("_l0", suffix)] for key in alone.state_dict()})
    return alone


@every_two_ways
@settings(max_examples=4)
@given(data=st.data())
def test_two_directions_are_two_layers(name, data):
    """[BI 1]: h²_t = cell²(x_t, h²_{t+1}), h²_{L+1} = 0; h_t = [h¹_t; h²_t]; the next layer reads both."""
    T, B = data.draw(st.integers(1, 5), "T"), data.draw(st.integers(1, 3), "B")
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B), "lengths"))
    layer = LAYERS[name]()
    x, state = randn(T, B, 3), some_state(layer, B)
    y, final = layer(x, whole(state), lengths=lengths)
    below = x
    for k in (0, 2):
        (forth, end), (back, start) = (
            one_way(name, layer, j)(source, whole(part[j : j + 1] for part in state), lengths=lengths)
            for j, source in ((k, below), (k + 1, reversed_within(below, lengths)))
        )
        below = torch.cat([forth, reversed_within(back, lengths)], -1)
        for j, at_end in ((k, end), (k + 1, start)):
            same([part[j : j + 1] for part in parts(final)], parts(at_end), f"final state of layer {j}")
    same(y, below, "outputs")


@every_two_ways
def test_the_other_way_round(name):
    """On turned-around input with exchanged directions, the output is turned around with exchanged halves."""
    layer, other = LAYERS[name](), LAYERS[name](seed=1)
    own, H = layer.state_dict(), layer.hidden_size

    def exchanged(key):
        twin = key.replace("_reverse", "") if "_reverse" in key else re.sub("(_l[01])", r"\1_reverse", key)
        return own[twin].roll(H, -1) if key.startswith("weight_ih_l1") else own[twin]  # it reads exchanged halves

    other.load_state_dict({key: exchanged(key) for key in own})
    lengths = torch.tensor([4, 5, 1])
    x, state = randn(5, 3, 3).requires_grad_(), some_state(layer, 3)
    y, final = layer(x, whole(state), lengths=lengths)
    swap = [1, 0, 3, 2]
    turned, final_turned = other(reversed_within(x, lengths), whole(part[swap] for part in state), lengths=lengths)
    same(reversed_within(turned, lengths).roll(H, -1), y, "outputs")
    same([part[swap] for part in parts(final_turned)], parts(final), "final state")
    weight = randn(*y.shape, seed=6)
    (d,), (d_turned,) = (
        torch.autograd.grad((out * weight).sum(), x) for out in (y, reversed_within(turned, lengths).roll(H, -1))
    )
    same(d_turned, d, "gradient of x")


@every_two_ways
def test_the_backward_direction_starts_at_the_true_end(name):
    """A longer padding changes nothing, and the first output depends on the last valid input."""
    layer, lengths = LAYERS[name](), torch.tensor([3, 2])
    x = randn(3, 2, 3).requires_grad_()
    longer = torch.cat([x, randn(4, 2, 3, seed=3)])
    (y, final), (y_longer, final_longer) = layer(x, lengths=lengths), layer(longer, lengths=lengths)
    same(y_longer[:3], y)
    same(parts(final_longer), parts(final))
    found = gradients(weighted_sum(y[0]), layer, x)["0"]
    assert found[2, 0].any()
    assert found[1, 1].any()
    assert not found[2, 1].any()


@every_two_ways
def test_no_step_by_step(name):
    layer = LAYERS[name]()
    text = "step needs bidirectional=False: the other direction reads the future"
    with pytest.raises(ValueError, match=rf"^{owner(layer)}: {text}$"):
        layer.step(randn(2, 3))
