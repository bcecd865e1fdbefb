"""Layers against ``torch.nn`` where it has the same cell: outputs, states, all gradients, and weights both ways."""

import pytest
import torch
from helpers import gradients, parts, randn, same, weighted_sum, whole
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import longlag as ll

I, H, T, B = 3, 4, 5, 2
PAIRS = {
    "tanh": (nn.RNN, ll.Elman, {"nonlinearity": "tanh"}),
    "relu": (nn.RNN, ll.Elman, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, ll.LSTM, {}),
    "gru": (nn.GRU, ll.GRU, {}),
}
every_kind = pytest.mark.parametrize("kind", PAIRS)


def pair(kind, dtype=torch.float64, **options):
    """Torch's layer and ours with its weights."""
    Theirs, Ours, more = PAIRS[kind]
    theirs = Theirs(I, H, dtype=dtype, **more, **options)
    ours = Ours(I, H, dtype=dtype, engine="reference", **more, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def leaves(kind, dtype, *lead, batch=(B,), layers=1):
    x = randn(*lead, I, dtype=dtype).requires_grad_()
    count = 2 if kind == "lstm" else 1
    return x, [randn(layers, *batch, H, seed=1 + i, dtype=dtype).requires_grad_() for i in range(count)]


def check(theirs, ours, x, state):
    found, wanted = [], []
    for layer, results in ((ours, found), (theirs, wanted)):
        y, final = layer(x, whole(state))
        outputs = (y, *parts(final))
        loss = weighted_sum(*outputs, seed=9)
        results += [*outputs, gradients(loss, layer, x, *state)]
    for a, b in zip(found, wanted, strict=True):
        same(a, b)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "two ways"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_outputs_states_and_gradients(kind, dtype, bidirectional, bias, num_layers):
    options = {"num_layers": num_layers, "bidirectional": bidirectional, "bias": bias}
    theirs, ours = pair(kind, dtype, **options)
    x, state = leaves(kind, dtype, T, B, layers=num_layers * (1 + bidirectional))
    check(theirs, ours, x, state)


@every_kind
@pytest.mark.parametrize("stem", ["weight_ih", "weight_hh", "bias_ih", "bias_hh"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_pruned_weights(kind, stem, engine):
    theirs, ours = pair(kind)
    ours.engine = engine
    for layer in (theirs, ours):
        prune.l1_unstructured(layer, f"{stem}_l0", 0.5)
    x, state = leaves(kind, torch.float64, T, B)
    check(theirs, ours, x, state)
    assert (getattr(ours, f"{stem}_l0") == 0).sum() == getattr(ours, f"{stem}_l0").numel() // 2


@every_kind
@pytest.mark.parametrize("steps", [1, 2])
def test_short_sequences(kind, steps):
    x, state = leaves(kind, torch.float64, steps, B)
    check(*pair(kind), x, state)


@every_kind
def test_batch_first(kind):
    x, state = leaves(kind, torch.float64, B, T)
    check(*pair(kind, batch_first=True), x, state)


@every_kind
@pytest.mark.parametrize("batch_first", [False, True])
def test_unbatched(kind, batch_first):
    x, state = leaves(kind, torch.float64, T, batch=())
    check(*pair(kind, batch_first=batch_first), x, state)


@every_kind
def test_no_state(kind):
    theirs, ours = pair(kind, num_layers=2, bidirectional=True)
    x = randn(T, B, I)
    (y, final), (y_theirs, final_theirs) = ours(x), theirs(x)
    same([y, *parts(final)], [y_theirs, *parts(final_theirs)])


@every_kind
@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_are_packed_sequences(kind, batch_first):
    theirs, ours = pair(kind, num_layers=2, bidirectional=True, batch_first=batch_first)
    lengths = torch.tensor([2, 5, 1, 4])
    x = randn(4, T, I) if batch_first else randn(T, 4, I)
    packed = pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
    y_packed, final_theirs = theirs(packed)
    y_theirs, _ = pad_packed_sequence(y_packed, batch_first=batch_first, total_length=T)
    y, final = ours(x, lengths=lengths)
    same([y, *parts(final)], [y_theirs, *parts(final_theirs)])


@every_kind
@pytest.mark.parametrize("bidirectional", [False, True])
def test_weights_travel_in_both_directions(kind, bidirectional):
    Theirs, Ours, more = PAIRS[kind]
    options = {"num_layers": 2, "bidirectional": bidirectional}
    ours = Ours(I, H, dtype=torch.float64, engine="reference", **more, **options)
    theirs = Theirs(I, H, dtype=torch.float64, **more, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = randn(T, B, I)
    same(ours(x)[0], theirs(x)[0])
    back = Ours(I, H, dtype=torch.float64, engine="reference", **more, **options)
    assert not torch.equal(back(x)[0], ours(x)[0])
    back.load_state_dict(theirs.state_dict())
    assert torch.equal(back(x)[0], ours(x)[0])


@every_kind
def test_the_same_seed_gives_the_same_initial_weights(kind):
    Theirs, Ours, more = PAIRS[kind]
    drawn = []
    for Layer in (Theirs, Ours):
        torch.manual_seed(3)
        drawn.append(Layer(I, H, num_layers=2, bidirectional=True, **more).state_dict())
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


@every_kind
def test_one_step_is_the_cell_of_torch(kind):
    theirs, ours = pair(kind)
    Cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}.get(kind, nn.RNNCell)
    cell = Cell(I, H, dtype=torch.float64, **PAIRS[kind][2])
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in theirs.state_dict().items()})
    x, state = leaves(kind, torch.float64, B)
    y, final = ours.step(x, whole(state))
    same(parts(final), [part.unsqueeze(0) for part in parts(cell(x, whole(part[0] for part in state)))])
    assert torch.equal(y, parts(final)[0][0])
