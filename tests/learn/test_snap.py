"""SnAp-n against the recursion of the paper, written with dense matrices; what it keeps, and what it costs."""

import pytest
import torch
from helpers import DEFAULTS, error, randn, same
from learn.course import MAKERS, autograd, case, forward, make
from learn.test_theory import numbers
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.utils import parametrize

import longlag as ll
from longlag.layers.units import NotLocal
from longlag.learn import RTRL, SnAp
from longlag.learn._sparse import Sparse, reached


def masked_rtrl(layer, c, n) -> dict[str, Tensor]:
    """Menick et al. 2021: J̃ = P ⊙ (I + D J̃), g = Σ_t ∂L/∂s(t) J̃(t), I = ∂s(t)/∂θ, D = ∂s(t)/∂s(t−1), by autograd.

    For layers whose output is the first part of the state.
    """
    named = {name: p.detach() for name, p in layer.named_parameters()}
    spec, B = layer.state_spec, c.x.shape[1]
    start = spec.flatten(layer.initial_state(B) if c.state is None else c.state)

    def step(parameters, s, x):
        _, new = functional_call(layer, parameters, (x.unsqueeze(0), spec.whole(spec.unflatten(s.unsqueeze(0)))))
        return spec.flatten(new)[0]

    def derivatives(s, x):
        by_parameter, D = jacrev(step, (0, 1))(named, s, x)
        return torch.cat([g.flatten(1) for g in by_parameter.values()], 1), D

    I, D = (torch.stack(m) for m in zip(*(derivatives(start[b], c.x[0, b : b + 1]) for b in range(B))))
    direct, linked = (I != 0).any(0), (D != 0).any(0).double()
    P = direct
    for _ in range(n - 1):
        P = direct | (linked @ P.double() > 0)
    total = torch.zeros(P.shape[1], dtype=torch.float64)
    for b in range(B):
        s, J = start[b], torch.zeros(P.shape, dtype=torch.float64)
        for x, dy in zip(c.x[:, b : b + 1], c.dy[:, b]):
            I, D = derivatives(s, x)
            J = P * (I + D @ J)
            s = step(named, s, x)
            total += dy @ J[: len(dy)]
    pieces = total.split([p.numel() for p in named.values()])
    return {name: piece.view(p.shape) for (name, p), piece in zip(named.items(), pieces)}


class Masked(nn.Module):
    """A weight with zeros at fixed places."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, value):
        return value * self.mask


def ring(layer):
    """Every unit reads itself and its neighbour only."""
    H = layer.hidden_size
    mask = (torch.eye(H) + torch.eye(H).roll(1, 0)).repeat(len(layer.weight_hh_l0) // H, 1).double()
    parametrize.register_parametrization(layer, "weight_hh_l0", Masked(mask))
    return layer


ONE_LEVEL = ["elman", "elman_no_bias", "rnn97", "lstm", "gru", "leaky_learned", "user_everything", "user_apart"]


@pytest.mark.parametrize("name", ONE_LEVEL)
def test_snap_1_is_the_papers_recursion(name):
    layer = make(name)
    c = case(layer, ragged=False)
    ours = forward(SnAp(1), layer, c)[2]
    same(ours, masked_rtrl(layer, c, 1), name, 1e-9)
    exact = autograd(layer, c)[2]
    assert max(error(ours[key], exact[key]) for key in exact) > 0.01


@pytest.mark.parametrize("name", ["elman", "lstm", "gru"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_snap_n_on_sparse_connections(name, n):
    """In a ring of five units, a parameter reaches one unit more with every step."""
    layer = ring(make(name) if name != "elman" else ll.Elman(3, 5, **DEFAULTS))
    c = case(layer, ragged=False)
    ours = forward(SnAp(n), layer, c)[2]
    wanted = masked_rtrl(layer, c, n)
    same(ours, wanted, f"{name} {n}", 1e-9)
    H, method = layer.hidden_size, SnAp(n).start(layer, 1).method
    if name == "elman":
        assert isinstance(method, Sparse)
        assert {reach.states.shape for reach in method.reach.values()} == {(H, n)}


@pytest.mark.parametrize("name", [name for name in MAKERS if not name.startswith(("jordan", "echo"))])
def test_units_with_local_feedback_lose_nothing(name):
    layer = make(name)
    try:
        layer.local_units()
    except NotLocal:
        return
    c = case(layer)
    same(forward(SnAp(1), layer, c)[2], autograd(layer, c)[2], name, 1e-9)


def test_local_units_with_a_general_step():
    """Without the short cut for graphs of local units: p reaches q in a second step, and no more is to be reached."""
    layer = make("user_oscillator x2")
    c = case(layer)

    class General(SnAp):
        def _method(self, layer):
            return Sparse("SnAp", layer, self.n)

    wanted = autograd(layer, c)[2]
    same(forward(General(2), layer, c)[2], wanted, "oscillator", 1e-9)
    assert error(forward(General(1), layer, c)[2]["weight_ih_l0"], wanted["weight_ih_l0"]) > 0.01


@pytest.mark.parametrize("name", ["lstm97", "lstm97_linear", "jordan_hidden", "skip_several", "lstm_norm", "gru x2"])
def test_more_steps_come_closer_until_the_gradient_is_exact(name):
    layer = make(name)
    c = case(layer)
    wanted = autograd(layer, c)[2]
    far, near = (max(error(g, wanted[k]) for k, g in forward(SnAp(n), layer, c)[2].items()) for n in (1, 9))
    assert far > 0.01
    assert near < 1e-9


def test_influence_starts_empty_after_a_reset_and_rests_while_inactive():
    layer, rule = make("lstm"), SnAp(1)
    c = case(layer, ragged=False)
    trace, state = rule.start(layer, 3), c.state
    for x_t in c.x[:4]:
        _, state, trace = rule.step(layer, x_t, state, trace)
    before = trace.clone()
    _, _, after = rule.step(
        layer, c.x[4], state, trace, active=torch.tensor([False, True, True]), reset=torch.tensor([False, True, False])
    )
    for key, E in after.values["after"].items():
        assert torch.equal(E[0], before.values["after"][key][0])
        alone = rule.step(layer, c.x[4, 1:2], None, rule.start(layer, 1))[2]
        same(E[1], alone.values["after"][key][0], key)


def test_memory_is_one_number_per_parameter_and_state_of_its_unit():
    """Elman and GRU: w numbers. LSTM: the output gate reaches y alone, the other gates y and c."""
    for layer, states in ((ll.Elman(10, 20), 1), (ll.GRU(10, 20), 1), (ll.LSTM(10, 20), 2)):
        rule, x = SnAp(1), torch.randn(1, 10)
        _, _, trace = rule.step(layer, x, None, rule.start(layer, 1))
        w = sum(p.numel() for name, p in layer.named_parameters() if name != "bias_hh_l0")  # one trace for both biases
        held = numbers(trace.values["after"])
        assert held <= states * (w + 20), type(layer).__name__
        assert held >= w - 20


def test_a_frozen_zero_is_no_connection_but_a_trained_one_is():
    layer = ll.Elman(2, 4, **DEFAULTS)
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").mul_(torch.eye(4).double())
    trained = SnAp(9).start(layer, 1).method
    assert not isinstance(trained, Sparse)  # RTRL: the zeros may change
    layer.get_parameter("weight_hh_l0").requires_grad_(False)
    fixed = SnAp(9).start(layer, 1).method
    assert isinstance(fixed, Sparse)
    assert {reach.states.shape[1] for reach in fixed.reach.values()} == {1}
    c = case(layer)
    same(forward(SnAp(1), layer, c)[2], autograd(layer, c)[2], "diagonal", 1e-9)


def test_finding_what_is_reached_changes_no_weight_and_draws_no_number():
    layer = ll.Jordan(3, 4, 5, hidden_feedback=True, feedback="sample", dtype=torch.float64)
    paths, before = layer.state_parameters(), {k: v.clone() for k, v in layer.state_dict().items()}
    random = torch.random.get_rng_state()
    reached("SnAp", layer, paths, 1)
    assert torch.equal(torch.random.get_rng_state(), random)
    same(dict(layer.state_dict()), before, "weights", 0.0)


def test_refusals():
    with pytest.raises(ValueError, match="SnAp: n must be a positive int, got 0"):
        SnAp(0)
    with pytest.raises(ValueError, match="SnAp: LSTM must hold numbers, got parameters on the device meta"):
        SnAp(1).start(ll.LSTM(3, 4, device="meta"), 1)
    assert repr(SnAp(2)) == "SnAp(2)"
    layer = make("lstm")
    y, _, trace = RTRL().step(layer, randn(2, 3), None, RTRL().start(layer, 2))
    with pytest.raises(ValueError, match="SnAp: trace must come from start"):
        SnAp().gradients(make("lstm"), trace, y)
