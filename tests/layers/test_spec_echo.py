"""ESN: the reservoir's equation, its spectral radius, and the read-out against a direct least-squares solution."""

import itertools
import re

import numpy as np
import pytest
import torch
from helpers import LAYERS, numpy_weights, randn, same, some_state
from hypothesis import given, settings
from hypothesis import strategies as st

import longlag as ll
from longlag.layers._reservoir import random_places, spectral_radius

I, H, L = 3, 6, 2


def echo(**options):
    return LAYERS["echo"](I, H, **{"spectral_radius": 0.8, **options})


def reservoir(layer, x, h):
    """h(t) = (1−a) h(t−1) + a tanh(U h(t−1) + W x(t) + b) for one sequence. [ESN 4]"""
    P, a, states = numpy_weights(layer), layer.leak, []
    for x_t in x:
        r = P["reservoir.weight_hh_l0"] @ h + P["reservoir.weight_ih_l0"] @ x_t + P["reservoir.bias_ih_l0"]
        h = (1 - a) * h + a * np.tanh(r)
        states.append(h)
    return np.array(states)


@pytest.mark.parametrize("T", [1, 2, 7])
@pytest.mark.parametrize("leak", [1.0, 0.3])
@pytest.mark.parametrize("wired", [True, False])
def test_forward(T, leak, wired):
    layer = echo(leak=leak, input_to_output=wired)
    x, (h_0,) = randn(T, 2, I), some_state(layer, 2)
    y, final = layer(x, h_0)
    P = numpy_weights(layer)
    for b in range(2):
        h = reservoir(layer, x[:, b].numpy(), h_0[0, b].numpy())
        seen = np.concatenate([h, x[:, b].numpy()], 1) if wired else h
        same(y[:, b], seen @ P["readout.weight"].T + P["readout.bias"], "outputs")
        same(final[0, b], h[-1], "final state")
    assert torch.equal(layer.predict(x, h_0), y)
    assert not layer.predict(x).requires_grad


@pytest.mark.parametrize("radius", [0.0, 0.5, 0.99, 1.3])
@pytest.mark.parametrize("density", [0.1, 1.0])
def test_spectral_radius_and_density(radius, density):
    layer = LAYERS["echo"](I, 60, spectral_radius=radius, density=density, input_scale=0.5, bias_scale=0.25)
    U = layer.reservoir.weight_hh_l0
    assert abs(float(torch.linalg.eigvals(U).abs().max()) - radius) < 1e-12
    if radius:
        share = (U != 0).double().mean()
        assert abs(share - density) <= 4 * (density * (1 - density) / 3600) ** 0.5
    W, b = layer.reservoir.weight_ih_l0, layer.reservoir.bias_ih_l0
    assert 0.45 < W.abs().max() <= 0.5
    assert 0.2 < b.abs().max() <= 0.25
    assert not layer.reservoir.bias_hh_l0.any()


def test_only_the_read_out_is_trained():
    assert [name for name, p in echo().named_parameters() if p.requires_grad] == ["readout.weight", "readout.bias"]


def test_the_reservoir_depends_on_its_seed_alone():
    drawn = []
    for state, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(state)
        drawn.append(ll.EchoState(I, H, L, density=1.0, seed=seed).reservoir.state_dict())
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not torch.equal(drawn[0]["weight_hh_l0"], drawn[2]["weight_hh_l0"])


def direct(layer, x, d, lengths, ridge, warmup):
    """argmin ‖X V − D‖² + λ ‖V‖² (bias free) as one least-squares problem, rows from every valid step."""
    rows, wanted = [], []
    for b, length in enumerate(lengths):
        h = reservoir(layer, x[:length, b].numpy(), np.zeros(layer.hidden_size))
        rows.append(np.concatenate([h, x[:length, b].numpy(), np.ones((length, 1))], 1)[warmup:])
        wanted.append(d[:length, b].numpy()[warmup:])
    X, D = np.concatenate(rows), np.concatenate(wanted)
    penalty = np.sqrt(ridge) * np.eye(X.shape[1])[:-1]
    return np.linalg.lstsq(np.concatenate([X, penalty]), np.concatenate([D, np.zeros((len(penalty), D.shape[1]))]))[0]


@pytest.mark.parametrize("ridge", [1e-2, 10.0, 0.0])
@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("batch_first", [False, True])
def test_fit_is_ridge_regression(ridge, warmup, batch_first):
    layer = echo(ridge=ridge, warmup=warmup, batch_first=batch_first)
    T, B = 40, 3
    x, d, lengths = randn(T, B, I), randn(T, B, L, seed=1), [40, 9, 23]
    given_ = (x.transpose(0, 1), d.transpose(0, 1)) if batch_first else (x, d)
    assert layer.fit(*given_, lengths=torch.tensor(lengths)) is layer
    V = direct(layer, x, d, lengths, ridge, warmup)
    same(layer.readout.weight, V[:-1].T, "V", tolerance=1e-10)  # normal equations square the condition number
    same(layer.readout.bias, V[-1], "c", tolerance=1e-10)


def test_fit_forgets_what_was_accumulated_before():
    layer, fresh = echo(), echo()
    x, d = randn(30, 2, I), randn(30, 2, L, seed=1)
    layer.accumulate(5 * x, -d)
    same(layer.fit(x, d).readout.weight, fresh.fit(x, d).readout.weight)


@settings(max_examples=5)
@given(cuts=st.sets(st.integers(1, 29), max_size=4))
def test_a_stream_in_pieces_is_the_stream_at_once(cuts):
    x, d = randn(30, 2, I), randn(30, 2, L, seed=1)
    whole, pieces = echo(ridge=0.1, warmup=3), echo(ridge=0.1, warmup=3)
    whole.fit(x, d)
    state, marks = None, [0, *sorted(cut for cut in cuts if cut > 3), 30]
    for start, end in itertools.pairwise(marks):
        state = pieces.accumulate(x[start:end], d[start:end], state)
    pieces.solve()
    same(pieces.readout.weight, whole.readout.weight, tolerance=1e-11)
    same(pieces.readout.bias, whole.readout.bias, tolerance=1e-11)


def test_one_sequence_without_a_batch_is_fitted_too():
    x, d = randn(30, 1, I), randn(30, 1, L, seed=1)
    same(echo().fit(x[:, 0], d[:, 0]).readout.weight, echo().fit(x, d).readout.weight)


def test_padding_is_not_learned_from():
    x, d, lengths = randn(30, 2, I), randn(30, 2, L, seed=1), torch.tensor([30, 11])
    wanted = echo().fit(x, d, lengths=lengths).readout.weight.clone()
    x[11:, 1], d[11:, 1] = torch.nan, torch.nan
    assert torch.equal(echo().fit(x, d, lengths=lengths).readout.weight, wanted)


@pytest.mark.parametrize("leak", [1.0, 0.4])
def test_mean_radius_of_the_jacobian(leak):
    """J(t) = ∂h(t)/∂h(t−1) = (1−a) I + a diag(1−τ²) U, found here by autograd. [ESN 4]"""
    layer, T, B = echo(leak=leak), 5, 2
    x = randn(T, B, I)
    radii = []

    def step(h, x_t):
        return layer.reservoir(x_t.view(1, I), h.view(1, H))[1].flatten()

    for b in range(B):
        h = torch.zeros(H, dtype=torch.float64)
        for t in range(T):
            J = torch.func.jacrev(step)(h, x[t, b])
            radii.append(np.abs(np.linalg.eigvals(J.numpy())).max())
            h = step(h, x[t, b])
    assert layer.jacobian_radius(x) == pytest.approx(np.mean(radii), rel=1e-12)


@pytest.mark.parametrize(("leak", "radius"), [(1.0, 0.7), (0.4, 0.95)])
def test_a_reservoir_may_be_scaled_by_the_radius_of_its_jacobian(leak, radius):
    layer = LAYERS["echo"](I, 40, leak=leak, jacobian_radius=radius)
    probe = LAYERS["echo"](I, 40, leak=leak)  # the same reservoir with ρ(U) = 0.9
    U, wanted = layer.reservoir.weight_hh_l0, probe.reservoir.weight_hh_l0
    same(U / U.norm(), wanted / wanted.norm(), "direction")
    assert float(torch.linalg.eigvals(U).abs().max()) == pytest.approx(layer.spectral_radius, rel=1e-9)
    x = randn(30, 2, I)
    assert probe.scale(x, radius).jacobian_radius(x) == pytest.approx(radius, abs=1e-5)


def test_a_radius_of_the_jacobian_out_of_reach_is_refused_and_changes_nothing():
    layer, x = echo(leak=0.4), randn(5, 1, I)
    before = layer.reservoir.weight_hh_l0.clone()
    for radius in (50.0, 0.5):
        with pytest.raises(
            ValueError, match=r"^EchoState: jacobian_radius must lie between 0\.6 and \S+, got [\d.]+, on these inputs$"
        ):
            layer.scale(x, radius)
        assert torch.equal(layer.reservoir.weight_hh_l0, before)


@pytest.mark.parametrize("density", [0.02, 0.1, 1.0])
def test_the_radius_of_large_reservoirs_is_accurate_to_a_thousandth(density):
    for seed in range(8):
        net = ll.EchoState(1, 300, 1, spectral_radius=0.9, density=density, seed=seed, dtype=torch.float64)
        U = net.reservoir.get_parameter("weight_hh_l0")
        exact = float(torch.linalg.eigvals(U).abs().max())
        assert exact == pytest.approx(0.9, rel=1e-3)
        assert spectral_radius(U) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("density", [0.003, 0.1, 0.9, 1.0])
def test_connections_exist_independently_of_each_other(density):
    most, found = 40_000, []
    for seed in range(50):
        places = random_places(most, density, torch.Generator().manual_seed(seed))
        assert (places.diff() > 0).all()
        assert int(places[0]) >= 0
        assert int(places[-1]) < most
        found.append(torch.zeros(most).index_fill_(0, places, 1.0))
    taken = torch.stack(found)
    spread = (density * (1 - density) / taken.numel()) ** 0.5
    assert abs(float(taken.mean()) - density) <= 4 * spread
    for part in (taken[:, :100], taken[:, -100:]):  # the first and the last places are like all others
        assert abs(float(part.mean()) - density) <= 4 * spread * 20
    pairs = (taken[:, 1:] * taken[:, :-1]).mean()
    assert abs(float(pairs) - density**2) <= 8 * spread


def test_a_ridge_too_small_for_the_arithmetic_is_refused_by_name():
    net = LAYERS["echo"](I, 60, ridge=1e-300)
    with pytest.raises(ValueError, match=r"^EchoState: ridge must be larger for these data, or 0, got 1e-300: "):
        net.fit(randn(10, 1, I), randn(10, 1, L))  # more features than steps


# ---------------------------------------------------------------------------------------------------- refusals


def sums(layer):
    return [value.clone() for value in (*layer.buffers(), *layer.parameters())]


X, D = randn(4, 2, I), randn(4, 2, L)
FINITE = "input and targets must be finite, got NaN or infinity"


@pytest.mark.parametrize("verb", ["fit", "accumulate"])
@pytest.mark.parametrize(
    ("x", "d", "error", "text"),
    [
        (X, randn(4, 2, 5), ValueError, "targets must have shape (4, 2, 2), got (4, 2, 5)"),
        (X, D.float(), TypeError, "targets must be torch.float64 like the weights, got torch.float32"),
        (X[:3], D[:3], ValueError, "warmup must leave steps to learn from: 3 of 3"),
        (X, torch.nan * D, ValueError, FINITE),
        (torch.inf * X, D, ValueError, FINITE),
        (X[..., :2], D, ValueError, "input must have 3 features, got shape (4, 2, 2)"),
    ],
)
def test_data_that_cannot_be_learned_from_changes_nothing(verb, x, d, error, text):
    layer = echo(warmup=3)
    layer.accumulate(randn(20, 2, I), randn(20, 2, L, seed=1))
    before = sums(layer)
    with pytest.raises(error, match=f"^EchoState: {re.escape(text)}$"):
        getattr(layer, verb)(x, d)
    assert all(map(torch.equal, sums(layer), before))


def test_solving_needs_data():
    with pytest.raises(ValueError, match=r"^EchoState: solve needs accumulated data, got none$"):
        echo().solve()
