"""Error flow: exact Jacobian products, probes, and the bounds of the theory."""

import math

import helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import longlag as ll
from longlag import cells, flow
from longlag.flow._krylov import iterations


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


STATIC = [name for name in helpers.ONE_WAY if not sum(part.numel() for part in helpers.rest(make(name), 1))]
MOVING = [name for name in helpers.ONE_WAY if name not in STATIC]


def vector(layer, state):
    """A state as the analysis orders it: sequences first, part after part."""
    return torch.cat([part.movedim(helpers.batch_axis(layer), 0).flatten(1) for part in helpers.parts(state)], -1)


def autograd_jacobian(layer, x, start, lag):
    """∂state(T)/∂state(T−lag) (B, n, n), by differentiating the layer's own run over the last steps."""
    state = helpers.whole(start)
    if lag < len(x):
        _, state = layer(x[: len(x) - lag], state)
    leaves = [part.detach().requires_grad_() for part in helpers.parts(state)]
    _, final = layer(x[len(x) - lag :], helpers.whole(leaves)) if lag else (None, helpers.whole(leaves))
    rows = []
    for entry in vector(layer, final).unbind(-1):
        grads = torch.autograd.grad(entry.sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        rows.append(vector(layer, grads))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("name", MOVING)
def test_error_flow_is_the_product_of_autograd_jacobians(name):
    layer = make(name)
    x, start = helpers.randn(6, 3, 3), helpers.some_state(layer, 3)
    found = flow.error_flow(layer, x, state=helpers.whole(start))
    assert found.lags.tolist() == list(range(7))
    for q in range(7):
        if name == "jordan_argmax":
            wanted = torch.eye(3, dtype=torch.float64).expand(3, 3, 3) * (q == 0)  # argmax passes nothing
        else:
            wanted = autograd_jacobian(layer, x, start, q)
        singular = torch.linalg.svdvals(wanted)
        helpers.same(found.log_singular[q].exp(), singular, f"{name} lag {q}", 1e-10)
        assert bool((found.norm[q] <= found.bound[q] * (1 + 1e-12)).all())


@pytest.mark.parametrize("name", ["elman", "lstm_three_layers", "lstm97", "local_network_deep", "skip_several"])
def test_an_earlier_step_and_chosen_lags(name):
    layer, x = make(name), helpers.randn(8, 2, 3)
    found = flow.error_flow(layer, x, t=4, lags=[5, 2])
    short = flow.error_flow(layer, x[:5])
    assert found.lags.tolist() == [2, 5]
    assert found.t == flow.error_flow(layer, x, t=-4, lags=[1]).t == 4
    helpers.same(found.log_singular.exp(), short.log_singular[[2, 5]].exp())
    helpers.same(found.log_bound, short.log_bound[[2, 5]])


@pytest.mark.parametrize("make", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("layout", ["plain", "batch_first", "unbatched"])
def test_torch_layers_share_their_weights_with_the_analysis(make, layout):
    torch.manual_seed(0)
    theirs = make(3, 5, 2, batch_first=layout == "batch_first", dtype=torch.float64)
    ours = {nn.RNN: ll.Elman, nn.LSTM: ll.LSTM, nn.GRU: ll.GRU}[make](3, 5, 2, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = helpers.randn(6, 2, 3)
    given_x = {"plain": x, "batch_first": x.transpose(0, 1), "unbatched": x[:, 1]}[layout]
    found, wanted = flow.error_flow(theirs, given_x), flow.error_flow(ours, x)
    pick = [1] if layout == "unbatched" else [0, 1]
    helpers.same(found.log_singular.exp(), wanted.log_singular[:, pick].exp())


def test_dropout_is_off_and_the_layer_is_left_as_it_was():
    layer = ll.Skip(3, 4, num_layers=2, dropout=0.5, recurrent_dropout=0.5, dtype=torch.float64)
    x = helpers.randn(5, 2, 3)
    found = flow.error_flow(layer, x)
    assert layer.training
    helpers.same(found.log_singular, flow.error_flow(layer.eval(), x).log_singular)


# ------------------------------------------------------------------------------------------------------ probes
LARGER = {
    "elman": lambda: ll.Elman(3, 60, dtype=torch.float64),
    "lstm": lambda: ll.LSTM(3, 40, dtype=torch.float64),
    "stack": lambda: ll.LSTM(3, 12, num_layers=3, dtype=torch.float64),
    "gru_norm": lambda: ll.GRU(3, 48, norm="layer", dtype=torch.float64),
    "skip": lambda: ll.Skip(3, 20, delays=(3,), dtype=torch.float64),
    "lstm97": lambda: ll.LSTM97(3, 10, 2, hidden_units=5, init_range=0.5, dtype=torch.float64),
    "local": lambda: ll.LocalFeedback(3, 50, feedback="activation", dtype=torch.float64),
    "exploding": lambda: grown(ll.Elman(3, 60, bias=False, dtype=torch.float64), 4.0),
}


def grown(layer, factor):
    with torch.no_grad():
        layer.weight_hh_l0.mul_(factor)
    return layer


@pytest.mark.parametrize("name", LARGER)
@pytest.mark.parametrize("tolerance", [0.1, 0.3])
def test_probes_are_within_their_stated_error(name, tolerance):
    torch.manual_seed(1)
    layer, x = LARGER[name](), 0.1 * helpers.randn(15 if name in ("skip", "lstm97") else 40, 2, 3)
    found = flow.error_flow(layer, x, method="probe", tolerance=tolerance, probes=2)
    exact = flow.error_flow(layer, x, lags=found.lags.tolist())
    assert found.error == tolerance
    ratio = (found.log_singular[..., 0] - exact.log_singular[..., 0]).exp()
    assert float(ratio.max()) <= 1 + 1e-9
    assert float(ratio.min()) >= 1 - tolerance


@pytest.mark.parametrize(
    ("layer", "n"),
    [
        (ll.Elman(3, 300), 300),
        (ll.LSTM(3, 150), 300),
        (ll.LSTM97(3, 60, 2, output_size=2), 360),
        (ll.LSTM97(3, 60, 2, recurrent=False), 360),
        (ll.EchoState(3, 300, 1), 300),
        (ll.LocalFeedbackNetwork(3, (0, 150, 150), (1, 0, 0)), 300),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_probes_form_no_matrix_as_large_as_a_jacobian(layer, n, monkeypatch):
    monkeypatch.setattr(type(layer), "gain_bound", lambda self: None)  # copies U once, to take its norm
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            known = {p.untyped_storage().data_ptr() for p in layer.parameters()}
            for value in result if isinstance(result, tuple | list) else (result,):
                if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in known:
                    largest = max(largest, value.untyped_storage().nbytes() // value.element_size())
            return result

    with Sizes():
        found = flow.error_flow(layer, torch.randn(4, 1, 3), method="probe", lags=[4], probes=1, tolerance=0.5)
    assert found.log_singular.shape == (1, 1, 1)
    assert 0 < largest < n * n


def test_probes_of_a_whole_basis_are_exact():
    layer, x = make("gru"), helpers.randn(9, 2, 3)
    found, exact = flow.error_flow(layer, x, method="probe", lags=range(10)), flow.error_flow(layer, x)
    helpers.same(found.log_singular[..., 0], exact.log_singular[..., 0], tolerance=1e-10)
    assert found.bound_is == "none: the weights alone give none"


def test_stated_error_shrinks_with_iterations():
    assert iterations(512, 4, 0.1) < iterations(512, 4, 0.05) < iterations(512, 1, 0.05) < iterations(8192, 1, 0.05)
    # by hand: √ε = √(1 − 0.9²), 1.648 √512 e^(−√ε (2k−1)) ≤ (10⁻³)^(1/4) first for k = 7
    fails = [1.648 * math.sqrt(512) * math.exp(-math.sqrt(0.19) * (2 * k - 1)) for k in range(10)]
    assert next(k for k, p in enumerate(fails) if p**4 <= 1e-3) == 7 == iterations(512, 4, 0.1)


def test_long_products_do_not_underflow():
    layer = ll.LocalFeedback(1, 2, feedback="net", bias=False, constrain=None, dtype=torch.float32)
    with torch.no_grad():
        layer.get_parameter("u_l0").copy_(torch.tensor([0.25, -0.5]))
    for method in ("exact", "probe"):
        found = flow.error_flow(layer, torch.randn(4000, 1, 1), method=method, lags=[10, 4000])
        wanted = torch.tensor([10.0, 4000.0], dtype=torch.float64) * math.log(0.5)
        helpers.same(found.log_singular[:, 0, 0], wanted, tolerance=1e-9)
        assert float(found.norm[1, 0]) == 0  # 2⁻⁴⁰⁰⁰ is no float of any format, its logarithm is
        helpers.same(found.rate[:, 0], torch.tensor([0.5, 0.5], dtype=torch.float64), tolerance=1e-7)


# ------------------------------------------------------------------------------------------------------ bounds
BOUNDED = {
    "elman": lambda d: ll.Elman(2, d, dtype=torch.float64),
    "relu": lambda d: ll.Elman(2, d, nonlinearity="relu", dtype=torch.float64),
    "rnn97": lambda d: ll.Recurrent(cells.rnn97, 2, d, dtype=torch.float64),
    "leaky": lambda d: ll.Leaky(2, d, alpha=torch.rand(d) * 5 + 1, dtype=torch.float64),
    "net": lambda d: ll.LocalFeedback(2, d, feedback="net", dtype=torch.float64),
    "activation": lambda d: ll.LocalFeedback(2, d, feedback="activation", dtype=torch.float64),
    "jordan": lambda d: ll.Jordan(2, d, 3, dtype=torch.float64),
    "logits": lambda d: ll.Jordan(2, d, 3, feedback="logits", dtype=torch.float64),
    "network": lambda d: ll.LocalFeedbackNetwork(2, (1, d, d), (1, 1, 1), constrain=None, dtype=torch.float64),
    "echo": lambda d: ll.EchoState(2, d, 1, density=1.0, leak=0.5, spectral_radius=1.5, dtype=torch.float64),
}


@settings(max_examples=100)
@given(st.integers(0, 10**9), st.sampled_from(sorted(BOUNDED)), st.floats(0.1, 20))
def test_no_bound_is_violated_in_ten_thousand_draws(seed, name, scale):
    """100 examples of 10 random networks on 10 random sequences each."""
    torch.manual_seed(seed)
    for _ in range(10):
        layer = BOUNDED[name](int(torch.randint(1, 5, ())))
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.requires_grad:
                    parameter.mul_(scale)
        assert layer.gain_bound() is not None
        x = scale * torch.randn(4, 10, 2, dtype=torch.float64)
        found = flow.error_flow(layer, x, lags=[1, 4])
        assert bool((found.log_singular[..., 0] <= found.log_bound + 1e-9).all())


def test_bounds_are_tight_at_their_worst_case():
    torch.manual_seed(0)
    U = 3 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    elman = ll.Elman(1, 6, bias=False, dtype=torch.float64)
    rnn97 = ll.Recurrent(cells.rnn97, 1, 6, dtype=torch.float64)
    with torch.no_grad():
        elman.get_parameter("weight_hh_l0").copy_(U)
        rnn97.get_parameter("weight_hh_l0").copy_(U)
        rnn97.get_parameter("bias_ih_l0").copy_(-U.sum(1) / 2)  # nets are 0 while every y is ½
        rnn97.get_parameter("bias_hh_l0").zero_()
    silence = torch.zeros(20, 1, 1, dtype=torch.float64)
    half = torch.full((1, 1, 6), 0.5, dtype=torch.float64)
    for layer, state, gamma in ((elman, None, 1.0), (rnn97, half, 0.25)):
        found = flow.error_flow(layer, silence, state=state)
        helpers.same(found.norm, found.bound, tolerance=1e-10)
        helpers.same(found.norm[:, 0], (3 * gamma) ** found.lags.double(), tolerance=1e-10)
    assert flow.error_flow(elman, silence).regime == ["exploding"]
    assert flow.error_flow(rnn97, silence, state=half).regime == ["vanishing"]


def test_an_integrator_keeps_its_error():
    layer = ll.LocalFeedback(1, 3, feedback="net", constrain=None, dtype=torch.float64)
    nn.init.ones_(layer.get_parameter("u_l0"))
    assert flow.error_flow(layer, helpers.randn(50, 2, 1)).regime == ["kept", "kept"]


def test_small_factors_on_every_path_yet_growth():
    """d = 20, all weights 1, nets at 0: every factor is ¼, the error grows fivefold a step. [RNN-97 1.1]"""
    layer = ll.Recurrent(cells.rnn97, 1, 20, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").fill_(1.0)
        layer.get_parameter("bias_ih_l0").fill_(-10.0)
        layer.get_parameter("bias_hh_l0").zero_()
    x, half = torch.zeros(10, 1, 1, dtype=torch.float64), torch.full((1, 1, 20), 0.5, dtype=torch.float64)
    found = flow.error_flow(layer, x, state=half)
    helpers.same(found.norm[:, 0], 5.0 ** found.lags.double(), tolerance=1e-10)
    helpers.same(torch.tensor(flow.conditions(layer)), torch.tensor([5.0, 5.0, 5.0, 5.0]))


def test_sufficient_conditions():
    layer = ll.Recurrent(cells.rnn97, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").copy_(torch.tensor([[1.0, -3.0], [2.0, 0.5]]))
    found = flow.conditions(layer)
    assert found[1:] == (1.0, 0.875, 1.5)  # row sums 4, 2.5; column sums 3, 3.5; 2 · 3
    largest = torch.linalg.svdvals(layer.get_parameter("weight_hh_l0").detach())[0]
    assert found.spectral == pytest.approx(0.25 * float(largest), rel=1e-12)


def test_paths_add_up_to_the_jacobian():
    layer, x = make("rnn97", size=3), helpers.randn(7, 2, 3)
    paths = flow.path_products(layer, x, lag=4, t=5)
    assert paths.shape == (2, *[3] * 5)
    wanted = autograd_jacobian(layer, x[:6], helpers.rest(layer, 2), 4)
    helpers.same(paths.sum((2, 3, 4)), wanted, tolerance=1e-10)
    # one path by hand: 0 ← 2 ← 1 ← 0 ← 2, each factor σ′(net) w
    y = torch.cat([torch.zeros(1, 2, 3), layer(x)[0]])[:, 1].detach()
    U, route, product = layer.weight_hh_l0.detach(), (0, 2, 1, 0, 2), 1.0
    for q in range(4):
        now = y[6 - q, route[q]]
        product *= float(now * (1 - now) * U[route[q], route[q + 1]])
    assert float(paths[(1, *route)]) == pytest.approx(product, rel=1e-10)


def test_spectrum():
    layer, x = make("lstm"), helpers.randn(5, 2, 3)
    found = flow.spectrum(layer, x, every=2)
    assert found.times.tolist() == [0, 2, 4]
    for i, t in enumerate(found.times.tolist()):
        start = layer(x[:t])[1] if t else helpers.whole(helpers.rest(layer, 2))
        A = autograd_jacobian(layer, x[t : t + 1], helpers.parts(start), 1)
        helpers.same(found.radius[i], torch.linalg.eigvals(A).abs().amax(-1), tolerance=1e-9)
        helpers.same(found.norm[i], torch.linalg.svdvals(A)[..., 0], tolerance=1e-10)


# --------------------------------------------------------------------------------------------------- bad input
X = torch.zeros(5, 2, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: flow.error_flow(nn.Linear(3, 3), X),
            TypeError,
            "error_flow: layer must be a longlag layer or torch.nn.RNN, LSTM or GRU, got Linear",
        ),
        (lambda: flow.error_flow(make("lstm_two_ways"), X), ValueError, "LSTM with bidirectional=True"),
        (
            lambda: flow.error_flow(nn.GRU(3, 2, bidirectional=True).double(), X),
            ValueError,
            "GRU with bidirectional=True",
        ),
        (lambda: flow.error_flow(nn.LSTM(3, 4, proj_size=2).double(), X), ValueError, "LSTM with proj_size=2"),
        (lambda: flow.error_flow(make("jordan", feedback="sample"), X), ValueError, "feedback='sample'"),
        (lambda: flow.error_flow(make("local_static"), X), ValueError, "LocalFeedback: it has no state"),
        (lambda: flow.spectrum(make("local_static"), X), ValueError, "LocalFeedback: it has no state"),
        (lambda: flow.error_flow(make("elman"), X, t=5), ValueError, "t must be a step of 0..4, got 5"),
        (
            lambda: flow.error_flow(make("elman"), X, lags=[6]),
            ValueError,
            r"lags must lie in 0..5, got \[6\]",
        ),
        (
            lambda: flow.error_flow(make("elman"), X, method="guess"),
            ValueError,
            "method must be one of 'exact'",
        ),
        (
            lambda: flow.error_flow(make("elman"), X, tolerance=0),
            ValueError,
            "tolerance must be a number in",
        ),
        (lambda: flow.error_flow(make("elman"), X, probes=0), ValueError, "probes must be a positive int"),
        (lambda: flow.error_flow(make("elman"), X.float()), TypeError, "input must be torch.float64"),
        (lambda: flow.spectrum(make("elman"), X, every=0), ValueError, "every must be a positive int"),
        (lambda: flow.conditions(make("lstm")), ValueError, "one level of Elman or RNN-97 units"),
        (lambda: flow.path_products(ll.Elman(3, 6).double(), X, 1), ValueError, "at most 5 units, got 6"),
        (lambda: flow.path_products(make("elman"), X, 6), ValueError, "lag must be an int of 1..5, got 6"),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("name", ["elman_relu", "lstm97_linear"])
def test_the_first_non_finite_step_is_reported(name):
    layer, x = make(name), helpers.randn(6, 3, 3)
    x[4, 1, 0] = math.nan
    text = rf"error_flow: states of {type(layer).__name__} must be finite, .* first at step 4, sequence 1"
    with pytest.raises(ValueError, match=text):
        flow.error_flow(layer, x)
    start = [part.fill_(math.nan) for part in helpers.some_state(layer, 3)]
    with pytest.raises(ValueError, match="first at the initial state, sequence 0"):
        flow.error_flow(layer, x, state=helpers.whole(start))
