"""Numbers that enter the equations besides net inputs: per step, noise, fixed."""

import copy
import pickle
from typing import Any

import helpers
import pytest
import torch
from helpers import randn, same

import longlag as ll
from longlag import cells
from longlag.cells import exp, tanh


@ll.cell(gates="a g:x", states="v", inputs="dt m", noise="xi", fixed={"tau": 0.5}, params={"p": 0.9})
def driven(a, g, v, y, dt, m, xi, tau, p):
    v = v * exp(-dt / tau) + m * tanh(a + g) + 0.1 * xi
    return tanh(v * p) + 0.2 * y, v


@ll.cell(gates="a", inputs="dt", dense=False)
def local(a, y, dt):
    return y * exp(-dt) + tanh(a)


def make(cell=driven, size=5, **options) -> Any:
    torch.manual_seed(0)
    return ll.Recurrent(cell, 3, size, **{"dtype": torch.float64, "noise_seed": 1, **options})


def given(T=6, B=4, H=5, dtype=torch.float64):
    dt = (randn(T, B, seed=2).abs() + 0.1).to(dtype).requires_grad_()
    return {
        "dt": dt,
        "m": randn(T, B, H, seed=3, dtype=dtype).requires_grad_(),
        "xi": randn(T, B, H, seed=4, dtype=dtype),
    }


def test_the_layer_is_the_equations_step_by_step():
    layer, x, numbers = make(), randn(6, 4, 3), given()
    y, v = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.float64)
    W, U, b = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0.clone()
    b[:5] = b[:5] + layer.bias_hh_l0
    outputs, state, stepped = [], None, []
    for t in range(6):
        a, g = (x[t] @ W.t() + b).chunk(2, -1)
        dt = numbers["dt"][t, :, None]
        v = v * torch.exp(-dt / 0.5) + numbers["m"][t] * torch.tanh(a + y @ U.t() + g) + 0.1 * numbers["xi"][t]
        y = torch.tanh(v * layer.p_l0) + 0.2 * y
        outputs.append(y)
        now, state = layer.step(x[t], state, **{name: value[t] for name, value in numbers.items()})
        stepped.append(now)
    wanted = torch.stack(outputs)
    found = layer(x, **numbers)[0]
    same(found, wanted)
    same(torch.stack(stepped), wanted)
    leaves = [numbers["dt"], numbers["m"], *layer.parameters()]
    ours, theirs = (torch.autograd.grad(helpers.weighted_sum(v), leaves) for v in (found, wanted))
    same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "norm": "layer"}])
def test_the_cpu_engine_equals_the_reference(dtype, options):
    gathered = []
    for engine in ("cpu", "reference"):
        layer = make(size=19, engine=engine, **{**options, "dtype": dtype})
        x, numbers = randn(6, 4, 3, dtype=dtype).requires_grad_(), given(H=19, dtype=dtype)
        reset = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) < 0.2
        y, (y_end, v_end) = layer(x, **numbers, lengths=torch.tensor([6, 1, 4, 6]), reset=reset)
        leaves = [x, numbers["dt"], numbers["m"], *layer.parameters()]
        loss = helpers.weighted_sum(y, y_end, v_end)
        gathered.append([y, y_end, v_end, *torch.autograd.grad(loss, leaves)])
    same(*gathered, tolerance={torch.float64: 1e-12, torch.float32: 1e-5}[dtype])


def test_gradients_that_nobody_wants_are_not_computed():
    layer, numbers = make(), given()
    plain = {name: value.detach() for name, value in numbers.items()}
    x = randn(6, 4, 3)
    a, b = (torch.autograd.grad(layer(x, **n)[0].sum(), layer.weight_ih_l0)[0] for n in (numbers, plain))
    assert torch.equal(a, b)


def test_layouts_numbers_and_padding():
    layer, x, numbers = make(), randn(6, 4, 3), given()
    wanted = layer(x, **numbers)[0]
    first = make(batch_first=True)
    turned = {name: value.transpose(0, 1) for name, value in numbers.items()}
    same(first(x.transpose(0, 1), **turned)[0].transpose(0, 1), wanted)
    same(layer(x[:, 1], **{name: value[:, 1] for name, value in numbers.items()})[0], wanted[:, 1])
    constant = {**numbers, "m": 0.3}
    same(layer(x, **constant)[0], layer(x, **{**numbers, "m": torch.full((6, 4), 0.3, dtype=torch.float64)})[0])
    same(layer(x[:, 1], dt=0.2, m=0.3, xi=0)[0], layer(x[:, 1:2], dt=0.2, m=0.3, xi=0)[0][:, 0])
    padded = numbers["dt"].detach().clone()
    padded[3:, 2] = torch.nan
    y = layer(x, **{**numbers, "dt": padded}, lengths=torch.tensor([6, 6, 3, 6]))[0]
    same(y[:3], wanted[:3])


def test_noise_is_drawn_while_training_by_the_layers_own_generator():
    x, numbers = randn(6, 4, 3), {"dt": 0.1, "m": 0.5}
    layer, again = make(), make()
    torch.manual_seed(7)
    y = layer(x, **numbers)[0]
    torch.manual_seed(8)
    assert torch.equal(again(x, **numbers)[0], y)
    assert not torch.equal(layer(x, **numbers)[0], y)
    layer.noise_generator(x.device).manual_seed(1)
    assert torch.equal(layer(x, **numbers)[0], y)
    calm = make().eval()
    assert torch.equal(calm(x, **numbers)[0], calm(x, xi=0.0, **numbers)[0])
    assert not torch.equal(calm(x, **numbers)[0], y)
    xi = torch.randn((6, 4, 5), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    same(calm(x, xi=xi, **numbers)[0], y)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(make(local)))):
        assert copied.cell.per_step


def test_fixed_numbers_are_not_trained_and_belong_to_the_layer():
    layer = make(tau=0.8)
    assert "tau_l0" not in dict(layer.named_parameters())
    assert torch.equal(layer.state_dict()["tau_l0"], torch.full((5,), 0.8, dtype=torch.float64))
    other = make()
    x, numbers = randn(6, 4, 3), given()
    assert not torch.equal(other(x, **numbers)[0], layer(x, **numbers)[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x, **numbers)[0], layer(x, **numbers)[0])
    each = make(tau=torch.linspace(0.1, 1, 5))
    assert torch.equal(each.tau_l0, torch.linspace(0.1, 1, 5).double())
    assert driven.fixed == ("tau",)


@pytest.mark.parametrize("cell", [driven, local])
def test_rules_and_flow_take_the_joined_layer(cell):
    joined = ll.layers.Joined(make(cell).eval())
    numbers = given()
    features = [numbers["dt"].unsqueeze(-1), randn(6, 4, 1, seed=9), 0.1 * randn(6, 4, 1, seed=10)]
    x = torch.cat([randn(6, 4, 3), *features[: len(cell.per_step)]], -1).detach()
    d = randn(6, 4, 5, seed=11)
    wanted = dict(zip(dict(joined.named_parameters()), torch.autograd.grad(joined(x)[0], list(joined.parameters()), d)))
    for rule in (ll.learn.RTRL(), ll.learn.BPTT()):
        state, trace, total = None, rule.start(joined, 4), {}
        for t in range(6):
            _, state, trace = rule.step(joined, x[t], state, trace)
            if isinstance(rule, ll.learn.RTRL):
                found = rule.gradients(joined, trace, d[t])
                total = {name: total.get(name, 0) + value for name, value in found.items()}
        if isinstance(rule, ll.learn.BPTT):
            total = rule.gradients(joined, trace, list(d))
        same({name: total[name] for name in wanted}, wanted, tolerance=1e-11)
    J = ll.flow.error_flow(joined, x[:, :1])
    assert J is not None
    learner = ll.learn.Online(
        joined, None, ll.learn.squared_error, ll.learn.RTRL(), torch.optim.SGD(joined.parameters(), 0.01)
    )
    learner.step(x[0], torch.zeros(4, 5, dtype=torch.float64))
    assert learner.updates == 1


def test_compiled_by_torch():
    plain = torch.compile(ll.Leaky(3, 5).double(), backend="eager", fullgraph=True)
    for batch in (7, 9):  # the batch size of every layer is symbolic from here on
        plain(randn(2, batch, 3))
    layer = make(local)
    x, dt = randn(5, 2, 3), (randn(5, 2).abs() + 0.1).requires_grad_()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    ours, theirs = compiled(x, dt=dt)[0], layer(x, dt=dt)[0]
    same(ours, theirs)
    ours, theirs = (torch.autograd.grad(y.sum(), [dt, *layer.parameters()]) for y in (ours, theirs))
    same(ours, theirs)


def test_second_derivatives():
    layer = make(local, engine="cpu")
    x, dt = randn(3, 2, 3).requires_grad_(), (randn(3, 2).abs() + 0.1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, dt: layer(x, dt=dt)[0], (x, dt))


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ({}, ValueError, "Recurrent: the input dt of the cell local is missing; learning rules, flow and Online take"),
        (
            {"dt": 1.0, "m": 1},
            TypeError,
            "'m' is no argument of a call and no input per step; the cell local ",
        ),
        ({"dt": torch.ones(6, 5)}, TypeError, "Recurrent: the input dt must be torch.float64 like the weights"),
        ({"dt": torch.ones(6, 5).double()}, ValueError, "the input dt must have shape (6, 4) or (6, 4, 5), got (6, 5)"),
        ({"dt": "fast"}, TypeError, "Recurrent: the input dt must be a tensor, got str"),
        (
            {"dt": torch.full((6, 4), torch.nan).double()},
            ValueError,
            "the input dt must be finite, got NaN or infinity",
        ),
    ],
)
def test_numbers_that_are_refused(numbers, error, text):
    with pytest.raises(error) as caught:
        make(local)(randn(6, 4, 3), **numbers)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: ll.LSTM(3, 5)(torch.ones(6, 4, 3), dt=1.0), TypeError, "'dt' is no argument of a call"),
        (lambda: make(sigma=1), TypeError, "unknown option 'sigma'; the fixed numbers of the cell driven are tau"),
        (lambda: make(tau=torch.ones(3)), ValueError, "tau must be one number or (5,), got shape (3,)"),
        (lambda: make(tau=torch.inf), ValueError, "tau must be finite"),
        (lambda: ll.learn.RTRL().start(make(), 2), ValueError, "pass longlag.layers.Joined(layer)"),
        (lambda: ll.flow.error_flow(make(), randn(6, 4, 3)), ValueError, "ll.layers.Joined(layer)"),
        (lambda: ll.layers.Joined(ll.LSTM(3, 5)), ValueError, "Joined: layer must have inputs per step, and LSTM has"),
        (lambda: ll.layers.Joined(make())(randn(6, 4, 3)), ValueError, "must have 6 features (dt, m, xi last)"),
    ],
)
def test_other_refusals(act, error, text):
    with pytest.raises(error) as caught:
        act()
    assert text in str(caught.value)


def test_the_cells_say_so():
    assert repr(driven) == "Cell(driven: gates a g, states v, inputs dt m, noise xi, params p, fixed tau)"
    assert driven.key != cells.lstm.key
