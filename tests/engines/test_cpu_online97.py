"""The online LSTM-1997 kernel against autograd with the fed-back activations detached, and against plain NumPy."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longlag.engines.cpu.online97.train import Network, evaluate, gradient, pack, train, unpack

SQUASH = {
    "4s-2": lambda a: 4 * torch.sigmoid(a) - 2,
    "2s-1": lambda a: 2 * torch.sigmoid(a) - 1,
    "logistic": torch.sigmoid,
    "identity": lambda a: a,
    "linear": lambda a: a,
}
ALL = "hid ig og cell out"


def case(blocks, block_size, hidden_units, output_size, og, recurrent, direct, g, h, output, biases):
    network = Network(3, blocks, block_size, output_size, hidden_units, og, recurrent, direct, g, h, output)
    return pytest.param(network, biases, id=f"{blocks}x{block_size}+{hidden_units}")


# Every shape; every value of every option, most pairs of them.
CASES = [
    case(1, 1, 0, 2, True, True, False, "4s-2", "2s-1", "logistic", ALL),
    case(1, 1, 2, 1, False, False, True, "logistic", "identity", "linear", ""),
    case(1, 2, 0, 9, True, False, False, "2s-1", "4s-2", "linear", "cell out"),
    case(1, 2, 2, 3, False, True, True, "4s-2", "identity", "logistic", "hid ig"),
    case(2, 1, 0, 1, False, True, False, "logistic", "2s-1", "linear", "ig cell"),
    case(2, 1, 2, 2, True, True, True, "2s-1", "identity", "linear", ALL),
    case(2, 2, 0, 1, True, True, False, "4s-2", "2s-1", "linear", ALL),
    case(2, 2, 2, 9, False, False, False, "logistic", "4s-2", "logistic", "hid out"),
    case(3, 1, 0, 1, True, True, False, "4s-2", "2s-1", "logistic", "ig og cell"),
    case(3, 1, 2, 3, False, False, True, "4s-2", "2s-1", "logistic", "ig"),
    case(3, 2, 0, 9, True, True, True, "logistic", "4s-2", "logistic", "og"),
    case(3, 2, 2, 2, False, True, True, "2s-1", "2s-1", "linear", ""),
]
OFFSETS = np.array([0, 1, 8, 10, 22])  # a sequence of one step among them
E4 = Network(2, 2, 2, 1, output="linear")


def of_five_symbols(case, **changes):
    network = CASES[case].values[0]
    assert isinstance(network, Network)
    return replace(network, input_size=5, **changes)


SYMBOLS = [
    pytest.param(of_five_symbols(0), ALL, id="recurrent"),
    pytest.param(of_five_symbols(5), ALL, id="recurrent, direct"),
    pytest.param(of_five_symbols(9, output_size=4), "", id="direct, not fed back"),
]


def draw(network, biases, seed=0, size=0.7):
    """Public weights, uniform in ±size."""
    rng = np.random.default_rng(seed)
    w = network.shapes()
    b = {f"bias_{group}": w[f"weight_{group}"][:1] for group in biases.split() if f"weight_{group}" in w}
    return {name: rng.uniform(-size, size, shape) for name, shape in (w | b).items()}


@cache
def data(input_size, output_size, seed=1):
    """Inputs, targets for every step, and a mask that scores each sequence somewhere, not always at its end."""
    rng = np.random.default_rng(seed)
    N = OFFSETS[-1]
    mask = rng.random(N) < 0.4
    mask[OFFSETS[:-1]] = True
    mask[-1] = False
    return rng.normal(size=(N, input_size)), rng.uniform(size=(N, output_size)), mask


def reference(network, w, x, initial=0.0, truncated=True):
    """Outputs (T, d_out) of one sequence x (T, d_in) by the step of the specification. [LSTM-97 2, 3.4]"""
    n = network
    y_hid, y_ig, y_og = (torch.full((size,), initial, dtype=x.dtype) for size in (n.hidden_units, n.blocks, n.blocks))
    y_cell = torch.full((n.blocks, n.block_size), initial, dtype=x.dtype)
    s = torch.zeros(n.blocks, n.block_size, dtype=x.dtype)
    outputs = []
    for x_t in x:
        fed_back = [y_hid, y_ig, *([y_og] if n.output_gates else []), y_cell.flatten()] if n.recurrent else []
        source = torch.cat([x_t, *(y.detach() if truncated else y for y in fed_back)])
        net = {group: w[f"weight_{group}"] @ source for group in ALL.split()[:4] if f"weight_{group}" in w}
        net = {group: value + w.get(f"bias_{group}", 0) for group, value in net.items()}
        y_hid = torch.sigmoid(net["hid"]) if n.hidden_units else y_hid
        y_ig = torch.sigmoid(net["ig"])
        y_og = torch.sigmoid(net["og"]) if n.output_gates else torch.ones_like(y_ig)
        s = s + y_ig[:, None] * SQUASH[n.g](net["cell"]).view(s.shape)
        y_cell = y_og[:, None] * SQUASH[n.h](s)
        source = torch.cat([*([x_t] if n.input_to_output else []), y_hid, y_cell.flatten()])
        outputs.append(SQUASH[n.output](w["weight_out"] @ source + w.get("bias_out", 0)))
    return torch.stack(outputs)


def autograd(network, public, x, y, scored, initial=0.0, truncated=True):
    """Gradient of ½ Σ (y − ŷ)² over the scored steps of all sequences, and the outputs (N, d_out)."""
    w = {name: torch.tensor(value, requires_grad=True) for name, value in public.items()}
    pieces = pairwise(OFFSETS)
    outputs = torch.cat([reference(network, w, torch.tensor(x[a:b]), initial, truncated) for a, b in pieces])
    loss = 0.5 * ((outputs - torch.tensor(y)) ** 2)[torch.tensor(scored)].sum()
    gradients = torch.autograd.grad(loss, list(w.values()))
    return {name: g.numpy() for name, g in zip(w, gradients)}, outputs.detach().numpy()


def apart(a, b):
    """Largest difference relative to the largest entry, over all arrays of two dicts."""
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() / np.abs(b[name]).max() for name in b)


LAST = np.isin(np.arange(OFFSETS[-1]), OFFSETS[1:] - 1)


@pytest.mark.parametrize(("network", "biases"), CASES)
def test_gradient_is_autograd_with_feedback_detached(network, biases):
    public = draw(network, biases)
    weights = pack(network, public)
    x, y, mask = data(network.input_size, network.output_size)
    for scored, targets, given_mask in ((LAST, y[LAST], None), (np.ones_like(LAST), y, None), (mask, y, mask)):
        for initial in (0.0, 0.5):
            expected, _ = autograd(network, public, x, y, scored, initial)
            ours = gradient(network, weights, x, OFFSETS, targets, mask=given_mask, initial=initial)
            assert apart(ours, expected) < 1e-12
    assert apart(unpack(network, weights), public) == 0  # asking for a gradient changes nothing


def test_the_comparison_would_see_an_untruncated_gradient():
    public = draw(E4, ALL)
    x, y, _ = data(2, 1)
    ours = gradient(E4, pack(E4, public), x, OFFSETS, y[LAST])
    full, _ = autograd(E4, public, x, y, LAST, truncated=False)
    assert apart(ours, full) > 0.01


@pytest.mark.parametrize(("network", "biases"), CASES[5:7])
def test_evaluate_returns_outputs_and_errors(network, biases):
    public = draw(network, biases)
    x, y, mask = data(network.input_size, network.output_size)
    _, outputs = autograd(network, public, x, y, mask, initial=0.5)
    found = evaluate(network, pack(network, public), x, OFFSETS, y, mask=mask, initial=0.5, outputs=True)
    assert found.outputs is not None
    np.testing.assert_allclose(found.outputs, outputs, rtol=1e-13)
    for k, (a, b) in enumerate(pairwise(OFFSETS)):
        error = np.abs(outputs - y)[a:b][mask[a:b]]
        assert found.largest[k] == pytest.approx(error.max(), rel=1e-12)
        assert found.mean[k] == pytest.approx(error.mean(), rel=1e-12)
        assert found.squared[k] == pytest.approx((error**2).sum(), rel=1e-12)
    last = evaluate(network, pack(network, public), x, OFFSETS, y[LAST], initial=0.5)
    np.testing.assert_allclose(last.largest, np.abs(outputs - y)[LAST].max(1), rtol=1e-12)
    assert last.outputs is None


@pytest.mark.parametrize(("network", "biases"), [*CASES[5:7], CASES[11]])
@pytest.mark.parametrize("at_end", [False, True])
def test_train_by_sequence_is_repeated_gradient_descent(network, biases, at_end):
    public = draw(network, biases)
    x, y, mask = data(network.input_size, network.output_size)
    weights = pack(network, public)
    options = {} if at_end else {"mask": mask}
    found = train(network, weights, x, OFFSETS, y[LAST] if at_end else y, lr=0.3, **options)
    for k, (a, b) in enumerate(pairwise(OFFSETS)):
        piece = (x[a:b], np.array([0, b - a]), y[b - 1 : b] if at_end else y[a:b])
        options = {} if at_end else {"mask": mask[a:b]}
        before = evaluate(network, pack(network, public), *piece, **options)
        assert found.squared[k] == pytest.approx(before.squared[0], rel=1e-11)
        slope = gradient(network, pack(network, public), *piece, **options)
        public = {name: value - 0.3 * slope[name] for name, value in public.items()}
    assert apart(unpack(network, weights), public) < 1e-12


def sigma(a):
    return 1 / (1 + np.exp(-a))


def by_hand(public, x, y, offsets, lr):
    """Experiment 4's network (2 × 2, all biases, linear output) learning after every step. [LSTM-97 3.1, 3.2]"""
    w = {name: value.copy() for name, value in public.items()}
    for begin, end in pairwise(offsets):
        y_ig, y_og, y_cell, s = np.zeros(2), np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2))
        A, B = np.zeros((2, 2, 11)), np.zeros((2, 2, 11))
        for t in range(begin, end):
            source = np.concatenate([x[t], y_ig, y_og, y_cell.ravel(), [1.0]])
            net = {g: np.column_stack([w[f"weight_{g}"], w[f"bias_{g}"]]) @ source for g in ("ig", "og", "cell")}
            y_ig, y_og, k = sigma(net["ig"]), sigma(net["og"]), sigma(net["cell"]).reshape(2, 2)
            g, dg = 4 * k - 2, 4 * k * (1 - k)
            s = s + y_ig[:, None] * g
            h, dh = 2 * sigma(s) - 1, 2 * sigma(s) * (1 - sigma(s))
            y_cell = y_og[:, None] * h
            A += (g * (y_ig * (1 - y_ig))[:, None])[:, :, None] * source
            B += (y_ig[:, None] * dg)[:, :, None] * source
            delta = w["weight_out"] @ y_cell.ravel() + w["bias_out"] - y[t]
            e = (w["weight_out"].T @ delta).reshape(2, 2)
            eps = e * y_og[:, None] * dh
            d = {
                "og": np.outer((e * h).sum(1) * y_og * (1 - y_og), source),
                "ig": (eps[:, :, None] * A).sum(1),
                "cell": (eps[:, :, None] * B).reshape(4, 11),
                "out": np.outer(delta, np.append(y_cell.ravel(), 1.0)),
            }
            for group, slope in d.items():
                w[f"weight_{group}"] -= lr * slope[:, :-1]
                w[f"bias_{group}"] -= lr * slope[:, -1]
    return w


def test_train_by_step_is_the_algorithm_written_out():
    public = draw(E4, ALL)
    x, y, _ = data(2, 1)
    weights = pack(E4, public)
    train(E4, weights, x, OFFSETS, y, lr=0.2, update="step")
    expected = by_hand(public, x, y, OFFSETS, 0.2)
    assert apart(unpack(E4, weights), expected) < 1e-12
    summed = pack(E4, public)
    train(E4, summed, x, OFFSETS, y, lr=0.2)
    assert apart(unpack(E4, summed), expected) > 1e-3  # the two ways of updating do differ


@pytest.mark.parametrize(("network", "biases"), SYMBOLS)
def test_symbols_are_one_hot_vectors(network, biases):
    rng = np.random.default_rng(3)
    x, y = (rng.integers(0, symbols, OFFSETS[-1]) for symbols in (4, network.output_size))  # input 4 never appears
    dense_x, dense_y = np.eye(5)[x], np.eye(network.output_size)[y]
    public = draw(network, biases)
    slope = gradient(network, pack(network, public), x, OFFSETS, y)
    assert apart(slope, gradient(network, pack(network, public), dense_x, OFFSETS, dense_y)) < 1e-14
    assert not slope["weight_cell"][:, 4].any()
    for update, pick in (("sequence", slice(None)), ("step", slice(None)), ("sequence", LAST)):
        one, other = pack(network, public), pack(network, public)
        errors = train(network, one, x, OFFSETS, y[pick], lr=0.3, update=update)
        expected = train(network, other, dense_x, OFFSETS, dense_y[pick], lr=0.3, update=update)
        assert apart(unpack(network, one), unpack(network, other)) < 1e-13
        np.testing.assert_allclose(errors.mean, expected.mean, rtol=1e-13)


def test_float32_follows_float64():
    public = draw(E4, ALL)
    x, y, _ = data(2, 1)
    single = replace(E4, dtype="float32")
    ours = gradient(single, pack(single, public), x, OFFSETS, y)
    assert all(value.dtype == np.float32 for value in ours.values())
    assert apart(ours, gradient(E4, pack(E4, public), x, OFFSETS, y)) < 2e-6


def test_two_calls_are_one():
    public = draw(E4, ALL)
    x, y, _ = data(2, 1)
    whole, halves = pack(E4, public), pack(E4, public)
    train(E4, whole, x, OFFSETS, y[LAST], lr=0.5)
    train(E4, halves, x[:8], OFFSETS[:3], y[LAST][:2], lr=0.5)
    train(E4, halves, x[8:], OFFSETS[2:] - 8, y[LAST][2:], lr=0.5)
    assert apart(unpack(E4, whole), unpack(E4, halves)) == 0


def test_nan_is_seen_in_every_error():
    public = draw(E4, ALL)
    x, y, _ = data(2, 1)
    x = x.copy()
    x[4, 1] = np.nan  # sequence 1 of 4, in its middle
    for targets in (y, y[LAST]):
        found = evaluate(E4, pack(E4, public), x, OFFSETS, targets)
        for column in found[:3]:
            np.testing.assert_array_equal(np.isnan(column), [False, True, False, False])
        poisoned = train(E4, pack(E4, public), x, OFFSETS, targets, lr=0.1)
        np.testing.assert_array_equal(np.isnan(poisoned.largest), [False, True, True, True])


sizes = st.integers(1, 4)


networks = st.builds(Network, sizes, sizes, sizes, st.integers(1, 20), st.integers(0, 4), *[st.booleans()] * 3)


@settings(max_examples=40)
@given(networks, st.sets(st.sampled_from(ALL.split())))
def test_unpack_inverts_pack(network, biases):
    public = draw(network, " ".join(biases))
    weights = pack(network, public)
    assert apart(unpack(network, weights), public) == 0
    # Nothing is stored twice and nothing lost.
    assert np.count_nonzero(weights.units) + np.count_nonzero(weights.out) == sum(v.size for v in public.values())


@pytest.mark.parametrize(
    ("network", "biases", "weights"),
    [
        (Network(7, 4, 1, 7), "ig og", 264),
        (Network(7, 3, 2, 7), "ig og", 276),
        (Network(101, 1, 1, 101, 0, False, False, True, "logistic", "identity"), "", 10504),
        (Network(104, 2, 1, 2), "", 664),
        (Network(1, 3, 1, 1), "ig og cell", 102),
        (E4, ALL, 93),
        (Network(8, 2, 2, 4), ALL, 156),
        (Network(8, 3, 2, 8), ALL, 308),
    ],
)
def test_weight_counts_are_the_papers(network, biases, weights):
    assert sum(value.size for value in draw(network, biases).values()) == weights


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"blocks": 0}, "Network: blocks must be a positive int, got 0"),
        ({"input_size": 2.0}, "Network: input_size must be a positive int, got 2.0"),
        ({"hidden_units": -1}, "Network: hidden_units must be a non-negative int, got -1"),
        ({"g": "tanh"}, r"Network: g must be one of \('4s-2', '2s-1', 'logistic'\), got 'tanh'"),
        ({"h": "logistic"}, r"Network: h must be one of \('2s-1', '4s-2', 'identity'\), got 'logistic'"),
        ({"output": "softmax"}, r"Network: output must be one of \('logistic', 'linear'\), got 'softmax'"),
        ({"dtype": "float16"}, r"Network: dtype must be one of \('float32', 'float64'\), got 'float16'"),
        ({"blocks": 17}, "Network: gates, cells and hidden units together must be at most 64, got 68"),
        ({"recurrent": 1}, "Network: recurrent must be True or False, got 1"),
    ],
)
def test_a_network_refuses_what_it_cannot_be(change, text):
    with pytest.raises(ValueError, match=text):
        replace(E4, **change)


def test_pack_refuses_wrong_weights():
    public = draw(E4, ALL)
    with pytest.raises(ValueError, match=r"pack: weight_og must be given, got only \['bias_cell'"):
        pack(E4, {name: value for name, value in public.items() if name != "weight_og"})
    with pytest.raises(ValueError, match=r"pack: names must be among \[.*\], got 'weight_hid'"):
        pack(E4, public | {"weight_hid": np.ones((1, 10))})
    with pytest.raises(ValueError, match=r"pack: bias_ig must be of shape \(2,\), got \(3,\)"):
        pack(E4, public | {"bias_ig": np.ones(3)})


def test_train_refuses_weights_that_are_not_packed():
    with pytest.raises(TypeError, match="train: weights must be what pack returns, got dict"):
        train(E4, draw(E4, ALL), np.ones((3, 2)), [0, 3], np.ones((1, 1)), lr=0.1)  # pyright: ignore[reportArgumentType]


N, n = int(OFFSETS[-1]), OFFSETS.size - 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"inputs": np.ones((N, 3))}, r"train: inputs must be numbers \(·, 2\) or integer symbols \(·,\), got float64"),
        ({"inputs": np.ones(N)}, r"train: inputs must be numbers \(·, 2\) .* got float64 of shape \(22,\)"),
        ({"inputs": np.full(N, 2)}, "train: inputs must be symbols from 0 to 1, got 2 … 2"),
        ({"inputs": np.full(N, -1)}, "train: inputs must be symbols from 0 to 1, got -1 … -1"),
        ({"targets": np.ones((n, 2))}, r"train: targets must be numbers \(·, 1\)"),
        ({"targets": np.ones((7, 1))}, "train: targets must be for 4 sequences or 22 steps, got 7"),
        ({"targets": np.ones(n, int)}, "train: targets must be symbols from 0 to 0, got 1 … 1"),
        ({"offsets": OFFSETS[:-1]}, "train: offsets must be integers rising from 0 to 22, got array"),
        ({"offsets": OFFSETS[1:]}, "train: offsets must be integers rising from 0 to 22"),
        ({"offsets": np.array([0, 8, 8, 10, 22])}, "train: offsets must be integers rising from 0 to 22"),
        ({"offsets": np.array([0, 9, 8, 10, 22], np.uint8)}, "train: offsets must be integers rising from 0 to 22"),
        ({"offsets": OFFSETS.astype(float)}, "train: offsets must be integers rising from 0 to 22"),
        ({"mask": np.ones(N, bool)}, "train: mask must be None where targets are for last steps only"),
        ({"targets": np.ones((N, 1)), "mask": np.ones(N)}, r"train: mask must be bool of shape \(22,\), got float64"),
        ({"targets": np.ones((N, 1)), "mask": np.arange(N) > 3}, "train: mask must score at least one step of every"),
        ({"lr": np.nan}, "train: lr must be a finite number, got nan"),
        ({"initial": None}, "train: initial must be a finite number, got None"),
        ({"update": "epoch"}, "train: update must be 'sequence' or 'step', got 'epoch'"),
        ({"network": replace(E4, blocks=3)}, r"train: weights.units must be contiguous float64 of shape \(15, 16\)"),
        ({"network": replace(E4, dtype="float32")}, "train: weights.units must be contiguous float32"),
    ],
)
def test_train_refuses_and_leaves_the_weights_alone(change, text):
    public = draw(E4, ALL)
    weights = pack(E4, public)
    arguments = {"network": E4, "inputs": np.ones((N, 2)), "offsets": OFFSETS, "targets": np.ones((n, 1)), "lr": 0.1}
    with pytest.raises(ValueError, match=text):
        train(weights=weights, **(arguments | change))
    assert apart(unpack(E4, weights), public) == 0
