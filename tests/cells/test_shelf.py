"""The shelf of cells: layers against the papers' formulas, the fused engine, exact gradients in real time."""

from typing import Any

import pytest
import torch
from helpers import SHELF, error, gradients, randn, same, weighted_sum
from torch import sigmoid, tanh

import longlag as ll
from longlag import cells

T, B, I, H = 9, 3, 3, 5


def layer_of(name, dtype=torch.float64, engine="reference", hidden=H, **options):
    torch.manual_seed(3)
    layer = ll.Recurrent(getattr(cells, name), I, hidden, dtype=dtype, engine=engine, **options)
    with torch.no_grad():  # far from the initial values, where terms could be missing unseen
        for own in layer.cell.params:
            if own not in layer.cell.fixed:
                layer.get_parameter(f"{own}_l0").mul_(0.7).add_(0.1 * torch.rand(hidden, dtype=dtype))
        if "lif" in name or "snn" in name:  # currents that make the neurons spike
            layer.get_parameter("bias_ih_l0").add_(1.0)
    return layer


def numbers(layer, batch=B, steps=T, dtype=torch.float64, **given):
    return {name: 0.5 + randn(steps, batch, seed=7, dtype=dtype).abs() for name in layer.cell.per_step} | given


# --------------------------------------------------------------------------------- formulas with matrices
def loop(layer, x, step, states):
    """Outputs of ``step(W x + b, y, *states) -> y, *states`` with the layer's matrices, gate by gate."""
    weights = [getattr(layer, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    W, U, b, b_hh = ([row.view(-1, H, *row.shape[1:])[k] for k in range(len(row) // H)] for row in weights)
    now, outputs = [torch.zeros(B, H, dtype=torch.float64) for _ in range(1 + states)], []
    for x_t in x:
        now = step([x_t @ w.t() + c for w, c in zip(W, b)], U, b_hh, *now)
        outputs.append(now[0])
    return torch.stack(outputs)


def original_gru(a, U, b, y):
    r, z = (sigmoid(a[k] + y @ U[k].t() + b[k]) for k in (0, 1))
    return (z * y + (1 - z) * tanh(a[2] + (r * y) @ U[2].t() + b[2]),)


def minimal_gated(a, U, b, y):
    f = sigmoid(a[0] + y @ U[0].t() + b[0])
    return ((1 - f) * y + f * tanh(a[1] + (f * y) @ U[1].t() + b[1]),)


def coupled_oscillators(a, U, b, y, z):
    dt, gamma, eps = 0.05, 1.0, 1.0
    z = z + dt * (tanh(a[0] + y @ U[0].t() + b[0] + a[1] * 0 + z @ U[1].t() + b[1]) - gamma * y - eps * z)
    return y + dt * z, z


def long_expressive(a, U, b, y, z):
    d, e = (sigmoid(a[k] + y @ U[k].t() + b[k]) for k in (0, 1))
    z = (1 - d) * z + d * tanh(a[2] + y @ U[2].t() + b[2])
    return (1 - e) * y + e * tanh(a[3] + z @ U[3].t() + b[3]), z


@pytest.mark.parametrize(
    ("name", "step", "states"),
    [("gru_original", original_gru, 0), ("mgu", minimal_gated, 0), ("lem", long_expressive, 1)],
)
def test_cells_whose_matrices_read_products(name, step, states):
    layer, x = layer_of(name), randn(T, B, I)
    same(layer(x)[0], loop(layer, x, step, states), name)


def test_co_rnn_has_a_matrix_for_each_of_its_two_states():
    layer, x = layer_of("co_rnn", dt=0.3, gamma=2.0, eps=0.7), randn(T, B, I)
    W, b = layer.get_parameter("weight_ih_l0"), layer.get_parameter("bias_ih_l0")
    U, b_hh = layer.get_parameter("weight_hh_l0"), layer.get_parameter("bias_hh_l0")
    y = z = torch.zeros(B, H, dtype=torch.float64)
    rows = len(W) // H  # gates with a row in W
    for t in range(T):
        net = (x[t] @ W.t() + b)[:, :H] + y @ U[:H].t() + z @ U[H:].t() + b_hh[:H] + b_hh[H:]
        z = z + 0.3 * (tanh(net) - 2.0 * y - 0.7 * z)
        y = y + 0.3 * z
    assert rows == 1
    same(layer(x)[0][-1], y, "outputs")


def test_an_antisymmetric_matrix_stays_so_while_training():
    layer = layer_of("antisymmetric", recurrent="antisymmetric")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(randn(T, B, I))[0].square().sum().backward()
    optimizer.step()
    U: Any = layer.weight_hh_l0
    same(U, -U.t(), "U")
    assert U.abs().max() > 0.1


# --------------------------------------------------------------------------------------- engines and rules
FUSED = [name for name in SHELF if getattr(cells, name).reads_only_y]


@pytest.mark.parametrize("name", [name for name in SHELF if name not in FUSED])
def test_cells_that_no_kernel_computes_yet_say_so(name):
    assert name in ("gru_original", "mgu", "co_rnn", "lem", "gru_d", "gru_d_original")
    layer = layer_of(name, engine="auto")
    assert layer.engine_for(randn(T, B, I)).startswith("reference: ")
    with pytest.raises(ValueError, match=rf"^engine 'cpu' cannot serve this call: .*{name}"):
        layer_of(name, engine="cpu")(randn(T, B, I), **numbers(layer))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_engine_equals_the_reference(name, dtype):
    hidden, batch = 19, 2
    reference, exact = layer_of(name, dtype, hidden=hidden), layer_of(name, hidden=hidden)
    fused = layer_of(name, dtype, "cpu", hidden=hidden)
    for layer in (reference, exact):
        layer.load_state_dict({k: v.to(layer.dtype) for k, v in fused.state_dict().items()})
    x = randn(T, batch, I, dtype=dtype)
    reset = torch.zeros(T, batch, dtype=torch.bool)
    reset[4, 0] = reset[6, 1] = True
    results = []
    for layer in (fused, reference, exact):
        given = numbers(layer, batch, dtype=layer.dtype)
        for call in ({}, {"lengths": torch.tensor([T, 5]), "reset": reset}):
            inputs = x.to(layer.dtype).requires_grad_()
            y, state = layer(inputs, **given, **call)
            ends = state if isinstance(state, tuple) else (state,)
            results.append((y, *ends, *gradients(weighted_sum(y, *ends), layer, inputs).values()))
    for ours, wanted, precise in zip(results[:2], results[2:4], results[4:]):
        for a, b, c in zip(ours, wanted, precise):
            rounding = error(b, c)  # the reference's own
            same(a, b, name, 1e-12 if dtype == torch.float64 else max(3e-6, 4 * rounding))


@pytest.mark.parametrize("name", SHELF)
def test_real_time_gradients_are_those_through_time(name):
    layer = layer_of(name)
    x, given = randn(T, B, I), numbers(layer)
    if given:
        layer, x = ll.layers.Joined(layer), torch.cat([x, *(value.unsqueeze(-1) for value in given.values())], -1)
    rule, state = ll.learn.RTRL(), None
    trace, found = rule.start(layer, B), {}
    y, _ = layer(x)
    weights = randn(*y.shape, seed=9)
    for t in range(T):
        _, state, trace = rule.step(layer, x[t], state, trace)
        for path, gradient in rule.gradients(layer, trace, weights[t]).items():
            found[path] = found.get(path, 0) + gradient
    same(found, gradients((y * weights).sum(), layer), name, 1e-9)
