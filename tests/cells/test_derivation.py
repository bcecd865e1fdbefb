"""What is derived from a cell's equations: the step, its vector-Jacobian product, its partial derivatives."""

import copy
import pickle

import pytest
import torch
from helpers import CELLS, NAMED, randn, same

import longlag as ll
from longlag import cells
from longlag.cells import relu, sigmoid, tanh
from longlag.cells._language import LANGUAGE

every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def some_inputs(cell, shape=(3, 4)):
    """Leaves for every argument; params positive, as time constants and divisors are."""
    values = {name: randn(*shape, seed=i) for i, name in enumerate(cell.inputs)}
    values |= {name: values[name].abs() + 0.5 for name in cell.params}
    return {name: value.requires_grad_() for name, value in values.items()}


def evaluate(cell, inputs):
    """The equations as the author wrote them, on tensors."""
    returned = cell.equations(**inputs)
    return returned if isinstance(returned, tuple) else (returned,)


@every_cell
def test_step_is_the_equations(cell):
    inputs = some_inputs(cell)
    same(cell.step(*inputs.values()), evaluate(cell, inputs))


@every_cell
def test_step_back_is_the_vector_jacobian_product(cell):
    inputs = some_inputs(cell)
    outputs = evaluate(cell, inputs)
    d_outputs = [randn(*o.shape, seed=20 + i) for i, o in enumerate(outputs)]
    wanted = torch.autograd.grad(outputs, list(inputs.values()), d_outputs)
    same(cell.step_back(*inputs.values(), *d_outputs), wanted)


@every_cell
def test_partials_are_the_jacobian_and_the_missing_ones_are_zero(cell):
    inputs = some_inputs(cell)
    found = cell.partials(*inputs.values())
    for output, value in zip(cell.outputs, evaluate(cell, inputs), strict=True):
        wanted = torch.autograd.grad(value.sum(), list(inputs.values()), retain_graph=True, allow_unused=True)
        for name, derivative in zip(inputs, wanted, strict=True):
            if (output, name) in found:
                assert derivative.any()
                same(found[output, name] * torch.ones(3, 4, dtype=torch.float64), derivative, f"∂{output}/∂{name}")
            else:
                assert derivative is None or not derivative.any(), f"∂{output}/∂{name} is missing"
    assert {output for output, _ in found} == set(cell.outputs)


@every_cell
def test_the_source_shown_is_the_code_that_runs(cell):
    scope = {name: function.torch for name, function in LANGUAGE.items()}
    exec(cell.source("torch"), scope)
    inputs = some_inputs(cell)
    d_outputs = [randn(3, 4, seed=30 + i) for i in range(len(cell.outputs))]
    assert all(map(torch.equal, scope["step"](*inputs.values()), cell.step(*inputs.values())))
    scope["step"] = lambda x: (x > 0).double()  # the derivative of relu again, hidden by the cell's own step
    ours = cell.step_back(*inputs.values(), *d_outputs)
    assert all(map(torch.equal, scope["step_back"](*inputs.values(), *d_outputs), ours))
    for shown, partial in zip(scope["partials"](*inputs.values()), cell.partials(*inputs.values()).values()):
        assert torch.equal(torch.as_tensor(shown), torch.as_tensor(partial))


def test_engines_without_a_printer_are_refused():
    with pytest.raises(
        ValueError, match=r"^cell lstm: engine must be one of \['torch', 'js', 'cpu', 'gpu'\], got 'fortran'$"
    ):
        cells.lstm.source("fortran")


def test_a_constant_partial_is_a_number():
    found = cells.net_feedback.partials(*(randn(2) for _ in range(3)))
    assert found["n", "a"] == 1
    assert not isinstance(found["n", "a"], torch.Tensor)


def test_the_derivative_of_relu_at_zero_is_zero():
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert cells.elman_relu.step_back(zero, one)[0].item() == 0
    partial = cells.elman_relu.partials(zero)["y", "a"]
    assert isinstance(partial, torch.Tensor)
    assert partial.item() == 0


@pytest.mark.parametrize(
    ("name", "inputs", "fed_back", "from_x", "from_y"),
    [
        ("elman", "a", "y", "a", "a"),
        ("lstm", "i f g o c", "y c", "i f g o", "i f g o"),
        ("gru", "r z n m y", "y", "r z n", "r z m"),
        ("leaky", "a y alpha", "y", "a", "a"),
        ("static", "a", "", "a", ""),
        ("net_feedback", "a n u", "n", "a", ""),
        ("activation_feedback", "a y v", "y", "a", ""),
        ("user_everything", "a z m y c p q", "y c", "a z", "a m"),
    ],
)
def test_what_a_cell_reads_and_carries(name, inputs, fed_back, from_x, from_y):
    cell = CELLS[name]
    assert cell.inputs == tuple(inputs.split())
    assert cell.fed_back == tuple(fed_back.split())
    assert cell.input_gates == tuple(from_x.split())
    assert cell.recurrent_gates == tuple(from_y.split())
    assert cell.outputs == ("y", *cell.states)


def test_params_start_where_the_mapping_says_or_at_one():
    assert CELLS["user_everything"].initial_params == {"p": 0.7, "q": 1.3}
    assert CELLS["user_oscillator"].initial_params == {"k": 1.0}


def test_calling_a_cell_evaluates_its_equations():
    a, z, y = (randn(5, seed=i) for i in range(3))
    wanted = torch.sigmoid(z) * y + (1 - torch.sigmoid(z)) * torch.tanh(a)
    assert torch.equal(CELLS["user_gated"](a, z, y), wanted)
    assert torch.equal(CELLS["user_gated"](y=y, z=z, a=a), wanted)


def test_the_key_names_the_equations_and_nothing_else():
    def two(name, f):
        def equations(a, z, y):
            return f(a, z, y)

        equations.__name__ = name
        return ll.cell(gates="a z")(equations).key

    written = two("one", lambda a, z, y: sigmoid(z) * y + tanh(a))
    assert written == two("other", lambda a, z, y: tanh(a) + y * sigmoid(z))
    assert written != two("one", lambda a, z, y: sigmoid(z) * y + relu(a))
    assert len({cell.key for cell in CELLS.values()}) == len(CELLS)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_cell_survives_copy_and_pickle_as_itself(name):
    cell = CELLS[name]
    assert copy.deepcopy(cell) is cell
    assert pickle.loads(pickle.dumps(cell)) is cell


def test_a_cell_says_what_it_is():
    assert repr(cells.lstm) == "Cell(lstm: gates i f g o, states c)"
    assert repr(cells.net_feedback) == "Cell(net_feedback: gates a, states n, params u, local)"


def test_names_that_are_no_cell_are_refused():
    with pytest.raises(AttributeError, match=r"^module 'longlag.cells' has no attribute 'transformer'$"):
        cells.transformer  # noqa: B018
    assert set(NAMED) < set(dir(cells))


def test_memory_cells_are_made_once():
    assert cells.memory_cell("tanh", "tanh") is cells.memory_cell("tanh", "tanh")
