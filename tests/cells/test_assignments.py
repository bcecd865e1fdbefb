"""The intermediate form of a cell, and its printers."""

import dataclasses

import pytest
import sympy
import torch
from helpers import CELLS, randn, same

from longlag import cells
from longlag.cells import Assignments, Printer, register_printer
from longlag.cells._language import LANGUAGE

every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
SCOPE = {name: f.torch for name, f in LANGUAGE.items() if name not in ("spike", "detach")}  # of values only
PYTHON = Printer("the test", {name: name for name in SCOPE})
FORMS = ["step", "step_back", "adjoint", "partials"]


def evaluate(form, values):
    """The printed function on named tensors; results by name."""
    scope = dict(SCOPE)
    exec(PYTHON.function(dataclasses.replace(form, name="printed")), scope)
    return dict(zip(form.outputs, scope["printed"](*(values[name] for name in form.inputs)), strict=True))


def some_values(cell):
    """Inputs, what the equations make of them, and errors of the outputs."""
    values = {name: randn(5, seed=k) for k, name in enumerate(cell.inputs)}
    values |= {name: values[name].abs() + 0.5 for name in cell.params}
    inputs = {name: value.requires_grad_() for name, value in values.items()}
    outputs = cell.equations(**inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    errors = [randn(5, seed=20 + k) for k in range(len(outputs))]
    new = dict(zip((f"{o}_new" for o in cell.outputs), outputs))
    return inputs, outputs, errors, {**inputs, **new, **dict(zip((f"d_{o}" for o in cell.outputs), errors))}


@every_cell
@pytest.mark.parametrize("which", FORMS)
def test_every_name_is_assigned_once_and_before_it_is_read(cell, which):
    form = cell.assignments(which)
    known = set(form.inputs)
    assert len(known) == len(form.inputs)
    for name, value in form.lines:
        assert {str(symbol) for symbol in value.free_symbols} <= known
        assert name not in known
        known.add(name)
    assert set(form.outputs) <= known
    assert cell.assignments(which) is form


@every_cell
def test_the_printed_step_is_the_equations(cell):
    _, outputs, _, values = some_values(cell)
    same(list(evaluate(cell.assignments("step"), values).values()), list(outputs))


@every_cell
@pytest.mark.parametrize("which", ["step_back", "adjoint"])
def test_the_printed_gradients_are_those_of_autograd(cell, which):
    inputs, outputs, errors, values = some_values(cell)
    wanted = torch.autograd.grad(outputs, list(inputs.values()), errors)
    found = evaluate(cell.assignments(which), values)
    assert list(found) == [f"d_{name}_" for name in cell.inputs]
    same(list(found.values()), list(wanted))


@every_cell
def test_a_step_with_some_partials_is_the_step_and_those_partials(cell):
    values = list(some_values(cell)[0].values())
    for rows in ((), cell.outputs[:1], cell.outputs):
        outputs, partials = cell.with_partials(rows)(*values)
        same(list(outputs.values()), list(cell.step(*values)))
        wanted = {key: value for key, value in cell.partials(*values).items() if key[0] in rows}
        assert partials.keys() == wanted.keys()
        for key, value in partials.items():
            same(torch.as_tensor(value).double(), torch.as_tensor(wanted[key]).double(), str(key))
    with pytest.raises(ValueError, match=rf"cell {cell.name}: rows must be among .*, got 'x'"):
        cell.with_partials(("x",))


def test_an_unknown_form_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"^cell lstm: assignments must be one of \['step', .*\], got 'hessian'$"):
        cells.lstm.assignments("hessian")


def test_a_printer_refuses_what_it_does_not_know_by_name():
    a = sympy.Symbol("a", real=True)
    form = Assignments("f", "mine", ("a",), (("b", sympy.Function("gamma")(a)),), ("b",))
    with pytest.raises(ValueError, match=r"^the test cannot print gamma\(…\) of cell mine$"):
        PYTHON.function(form)
    poor = dataclasses.replace(PYTHON, functions={"tanh": "tanh"}, hint="; another can")
    with pytest.raises(ValueError, match=r"^the test cannot print sigmoid\(…\) of cell lstm; another can$"):
        poor.function(cells.lstm.assignments("step"))


def test_a_target_is_a_table():
    c = dataclasses.replace(PYTHON, number="{}f", power="powf({}, {})", line="const float {} = {};")
    c = dataclasses.replace(c, functions={name: f"ll_{name}" for name in c.functions})
    odd = cells.cell(gates="a", params="p", dense=False)(lambda a, p: p**2.5 * cells.tanh(a / 2) + 3 * a**2)
    form = odd.assignments("step")
    assert c.lines(form) == ["const float y_new = 3f*a*a + powf(p, 2.5f)*ll_tanh(0.5f*a);"]
    assert c.uses_power(form)
    assert not c.uses_power(cells.leaky.assignments("step_back"))


def test_an_engine_registers_its_printer_once(monkeypatch):
    monkeypatch.setattr(cells._cell, "_PRINTERS", {})
    register_printer("mine", lambda cell: f"# {cell.name}")
    assert cells.lstm.source("mine") == "# lstm"
    with pytest.raises(ValueError, match=r"^register_printer: engine 'mine' has a printer already$"):
        register_printer("mine", lambda cell: "")
    with pytest.raises(ValueError, match=r"^cell lstm: engine must be one of \['mine'\], got 'torch'$"):
        cells.lstm.source("torch")
