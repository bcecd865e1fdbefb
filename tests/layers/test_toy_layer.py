"""A layer that the library has never seen: one file, one registered line, and every package serves it."""

import pytest
import torch
from helpers import randn, same, some_state, whole
from learn.course import autograd, case, forward
from torch import nn

import longlag as ll
from longlag import flow
from longlag.learn import BPTT, RTRL, LocalForward, Online, TruncatedBPTT, TruncatedRTRL, squared_error


class Oscillators(ll.layers.StepLayer):
    """Coupled oscillators: v(t) = v + h (tanh(W x + U p) − γ v), p(t) = p + h v(t); the output reads both.

    The state has two parts, and the output is none of them.
    """

    def __init__(self, input_size, size, *, batch_first=False, dtype=None):
        super().__init__(input_size, batch_first=batch_first)
        self.size = size
        self.W = nn.Parameter(torch.randn(size, input_size, dtype=dtype))
        self.U = nn.Parameter(torch.randn(size, size, dtype=dtype))
        self.V = nn.Parameter(torch.randn(2, 2 * size, dtype=dtype))

    @property
    def state_sizes(self):
        return {"p": self.size, "v": self.size}

    def advance(self, x_t, state):
        p, v = state
        v = v + 0.3 * (torch.tanh(x_t @ self.W.t() + p @ self.U.t()) - 0.5 * v)
        p = p + 0.3 * v
        return torch.cat([p, v], -1) @ self.V.t(), (p, v)


@pytest.fixture
def layer():
    torch.manual_seed(3)
    return Oscillators(3, 4, dtype=torch.float64)


def test_sequences_lengths_resets_and_layouts(layer):
    x, state = randn(6, 3, 3), whole(some_state(layer, 3))
    lengths, reset = torch.tensor([6, 2, 4]), torch.zeros(6, 3, dtype=torch.bool)
    reset[3, 0] = True
    y, final = layer(x, state, lengths=lengths, reset=reset)
    assert bool((y[2:, 1] == 0).all())
    same(layer(x[3:, :1])[0], y[3:, :1], "after a reset")
    now, outputs = state, []
    for t in range(2):
        y_t, now = layer.step(x[t], now)
        outputs.append(y_t)
    same(torch.stack(outputs)[:, 1], y[:2, 1], "steps")
    same([part[1] for part in now], [part[1] for part in final], "state at the length")
    layer.batch_first = True
    same(layer(x.transpose(0, 1), state, lengths=lengths, reset=reset.t())[0], y.transpose(0, 1), "batch first")


@pytest.mark.parametrize("rule", [RTRL(), BPTT(), TruncatedBPTT(7)], ids=str)
def test_exact_gradients(layer, rule):
    for ragged in (False, True):
        c = case(layer, ragged=ragged)
        y, state, wanted = autograd(layer, c)
        ours = forward(rule, layer, c)
        same(ours[2], wanted, f"{rule}: gradient of", 1e-9)
        same(ours[0], y, "outputs")
        same(ours[1], state, "state")


@pytest.mark.parametrize("rule", [LocalForward(), TruncatedRTRL()], ids=str)
def test_rules_that_need_local_units_say_why_not(layer, rule):
    with pytest.raises(ValueError, match=f"{type(rule).__name__}: Oscillators has no "):
        rule.start(layer, 1)


def test_flow(layer):
    x = randn(12, 2, 3)
    found = flow.error_flow(layer, x)
    assert found.log_singular.shape == (13, 2, 8)
    steps = [layer.linearise(x[t], layer.step(x[0])[1] if t else None).jacobian() for t in (0, 1)]
    product = torch.linalg.matrix_norm(steps[1] @ steps[0], 2)
    two = flow.error_flow(layer, x[:2])
    same(two.norm[2], product, "norm over two steps", 1e-9)
    credit = flow.gradient_by_lag(layer, x, lambda y: y.square().sum(-1))
    assert bool((credit.states[5, :6] > 0).all())


def test_learning_online(layer):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    learner = Online(layer, None, squared_error, RTRL(), optimizer, clip=1.0)
    x = randn(300, 1, 3)
    losses = []
    for x_t in x:
        learner.step(x_t, x_t[:, :2].tanh())
        losses.append(learner.loss_now)
    assert sum(losses[-50:]) < 0.6 * sum(losses[:50])


def test_sequence_to_sequence(layer):
    torch.manual_seed(0)
    decoder = Oscillators(5 + 2, 4, dtype=torch.float64)
    model = ll.Seq2Seq(layer, decoder, 6, start=0, end=1, attention=ll.Attention("additive", 4, 2, dtype=torch.float64))
    source, targets = randn(7, 2, 3), torch.tensor([[2, 3], [4, 1], [1, -1]])
    loss = model.loss(source, targets, source_lengths=[7, 4], target_lengths=[3, 2])
    loss.backward()
    for p in (layer.W, decoder.U, decoder.V):
        assert p.grad is not None
        assert bool(p.grad.any())
    assert model.beam(source, width=2, max_length=4).tokens.shape[1:] == (2, 2)


def test_what_a_subclass_must_provide_is_named():
    class Unfinished(ll.layers.StepLayer):
        def __init__(self):
            super().__init__(2)
            self.w = nn.Parameter(torch.ones(1))

    with pytest.raises(NotImplementedError, match="Unfinished: state_sizes must name the parts of the state"):
        Unfinished()(torch.randn(3, 1, 2))
    setattr(Unfinished, "state_sizes", {"s": 1})  # noqa: B010  (a property of the base class)
    with pytest.raises(NotImplementedError, match="Unfinished: advance must compute one step"):
        Unfinished()(torch.randn(3, 1, 2))
