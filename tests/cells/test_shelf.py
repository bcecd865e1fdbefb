"""The shelf of cells: layers against the papers' formulas, the fused engine, exact gradients in real time."""

import itertools
from typing import Any

import pytest
import torch
from helpers import NAMED, SHELF, error, gradients, randn, same, weighted_sum
from torch import sigmoid, tanh

import longlag as ll
from longlag import cells

T, B, I, H = 9, 3, 3, 5
SPIKING = [name for name in SHELF if "lif" in name or "snn" in name]


def layer_of(name, dtype=torch.float64, engine="reference", hidden=H, **options):
    torch.manual_seed(3)
    layer = ll.Recurrent(getattr(cells, name), I, hidden, dtype=dtype, engine=engine, **options)
    with torch.no_grad():  # far from the initial values, where terms could be missing unseen
        for own in layer.cell.params:
            if own not in layer.cell.fixed:
                layer.get_parameter(f"{own}_l0").mul_(0.7).add_(0.1 * torch.rand(hidden, dtype=dtype))
        if name in SPIKING:  # currents that make the neurons spike
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
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def kernel_of(cell, dtype):
    """``run(which, values)``: the compiled equations of the CPU engine, ``unit`` (0) or its adjoint (1), at some units.

    The time loops around them are the same for all cells; engines/test_contract.py and test_sources.py test these.
    """
    import numpy as np

    from longlag.engines.cpu.cache import machine
    from longlag.engines.cpu.cache.compile import machine_code
    from longlag.engines.cpu.codegen import generate, rows
    from longlag.engines.cpu.codegen.pointers import pointers

    text, number = generate.source(cell, dtype, norm=False), getattr(np, dtype)
    forms, scope = (generate.unit(cell, False), generate.unit_back(cell, False)), generate.executed(text, "units")
    step, back = (rows.over_units(scope[f.name], number, vectors=not generate.NUMBA.uses_power(f)) for f in forms)
    (n, m), (n_back, m_back) = ((len(f.inputs), len(f.outputs)) for f in forms)
    read, read_back, written, written_back = (pointers(k, number) for k in (n, n_back, m, m_back))

    def kernel(table, first, last, thread):
        if first == 0:
            step(table, last, read(table, 0, 0), written(table, n, 0))
        else:
            back(table, last, read_back(table, 0, 0), written_back(table, n_back, 0))

    address = machine.load(f"units_{cell.name}_{dtype}", cell.key, "units", lambda: (text, machine_code(kernel)))

    def run(which, values):
        form = forms[which]
        given = [values[name].detach().contiguous() for name in form.inputs]
        found = [torch.full_like(given[0], torch.nan) for _ in form.outputs]
        table = torch.tensor([tensor.data_ptr() for tensor in given + found])
        machine.callable_at(address)(table.data_ptr(), which, len(given[0]), 0)
        return dict(zip(form.outputs, found))

    return run


def test_the_registry_of_the_tests_holds_every_named_cell():
    found = [name for name in dir(cells) if isinstance(getattr(cells, name, None), cells.Cell)]
    assert sorted(NAMED + SHELF) == sorted(found)


@pytest.mark.parametrize("name", NAMED + SHELF)
def test_derivatives_are_those_of_finite_differences(name):
    """At random points, which are away from kinks; a spike has no finite difference that could be its surrogate's."""
    cell = getattr(cells, name)
    inputs = {key: randn(6, seed=k) for k, key in enumerate(cell.inputs)}
    positive = {key: 0.5 + inputs[key].abs() for key in (*cell.per_step, *cell.params)}
    leaves = [value.requires_grad_() for value in (inputs | positive).values()]
    assert torch.autograd.gradcheck(cell.step, leaves, raise_exception=False) == (name not in SPIKING)


@DTYPES
@pytest.mark.parametrize("name", SHELF)
def test_the_compiled_equations_are_those_of_the_cell(name, dtype):
    cell, units = getattr(cells, name), 37  # vectors, and units that fill none
    run = kernel_of(cell, str(dtype).removeprefix("torch."))
    draw = lambda k: (randn(units, seed=k) + (1.2 if name in SPIKING else 0)).to(dtype)  # noqa: E731
    inputs = {key: draw(k).requires_grad_() for k, key in enumerate(cell.inputs)}
    inputs |= {key: (0.5 + inputs[key].detach().abs()).requires_grad_() for key in (*cell.per_step, *cell.params)}
    parts = {f"_U_{gate}": draw(50 + k) for k, gate in enumerate(cell.gates)}  # a net input comes as two sums
    parts |= {f"_{mark}_{gate}": inputs[gate].detach() - parts[f"_U_{gate}"] for gate in cell.gates for mark in "Wb"}
    wanted = dict(zip(("y_new", *cell.new_states), cell.step(*inputs.values())))
    found = run(0, inputs | parts)
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    for key, value in wanted.items():
        same(found[key], value, f"{name} {key}", tolerance)

    errors = {f"d_{key}": draw(80 + k) for k, key in enumerate(("y", *cell.states))}
    values = tuple(wanted.values())
    d = torch.autograd.grad(values, list(inputs.values()), [*errors.values()], allow_unused=True)
    fed_back = "y" in cell.fed_back  # then the error at y has two parts
    later = draw(90) if fed_back else torch.zeros_like(errors["d_y"])
    sums = {f"_sum_{p}": draw(95) for p in cell.params}
    given = inputs | parts | wanted | errors | sums | {"_d_out": errors["d_y"] - later, "_d_next": later}
    found = run(1, given)
    for key, value in zip(inputs, d):
        value = torch.zeros_like(errors["d_y"]) if value is None else value
        of_param = key in cell.params
        if of_param or f"d_{key}_" in found:
            mine = found[f"_new_sum_{key}"] - sums[f"_sum_{key}"] if of_param else found[f"d_{key}_"]
            scale = max(float(value.abs().max()), 1.0)
            assert float((mine - value).abs().max()) <= 3 * tolerance * scale, key


# Always: numbers, products of the step, several states. A kernel takes seconds to compile, so the others are tested by
# `pytest -m every_pair tests/cells/test_shelf.py`.
ALWAYS = [("gru_d", torch.float64), ("lem", torch.float64), ("cfc", torch.float32), ("adaptive_lif", torch.float32)]
FUSED = [
    pytest.param(name, dtype, marks=[] if (name, dtype) in ALWAYS else pytest.mark.every_pair, id=f"{name} {dtype}")
    for name, dtype in itertools.product(SHELF, (torch.float64, torch.float32))
]


@pytest.mark.parametrize(("name", "dtype"), FUSED)
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
