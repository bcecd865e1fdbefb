"""The JavaScript of every cell against the reference engine."""

import json

import pytest
import torch
from browser import run_node
from helpers import CELLS, SHELF, randn

from longlag import cells
from longlag.cells import cell

RUNNER = """
import { pathToFileURL } from "node:url";
const found = {};
for (const [name, { n, path, calls }] of Object.entries(data)) {
  const module = await import(pathToFileURL(path));
  found[name] = { cell: module.cell };
  for (const [form, { given, outputs }] of Object.entries(calls)) {
    const results = Object.fromEntries(outputs.map((output) => [output, new Float64Array(n)]));
    module[form](n, given, results);
    found[name][form] = Object.fromEntries(Object.entries(results).map(([k, v]) => [k, [...v].map(String)]));
  }
}
console.log(JSON.stringify(found));
"""


@cell(gates=["new", "var:x+sigmoid(new)*let"], states="let", params="n k this")
def reserved(new, var, let, n, k, this):
    """Names that mean something in JavaScript."""
    return this * cells.tanh(new + n * var), k * let + cells.erf(3 * new)


N = 40
EVERY = {**CELLS, **{name: getattr(cells, name) for name in SHELF}, "reserved": reserved}


def values_of(made, names, seed):
    """Random numbers for a cell's arguments, zeros and ties among them; positive where a cell needs that."""
    values = {name: 2 * randn(N, seed=seed + j).double() for j, name in enumerate(names)}
    for name in values:
        values[name][:2] = 0
        values[name][2] = 7.5
    low = {"p", "k", "u", "n", "alpha", "tau", "threshold", "dt"} & (set(made.params) | set(made.per_step))
    return values | {name: values[name].abs() + 0.1 for name in low if name in values}


def expected(made):
    """form -> what it is given, and what the reference finds."""
    given = values_of(made, made.inputs, 1)
    inputs = [given[name] for name in made.inputs]
    new = dict(zip(["y_new", *made.new_states], made.step(*inputs)))
    incoming = values_of(made, [f"d_{name}" for name in made.outputs], 50)
    back = dict(zip([f"d_{name}_" for name in made.inputs], made.step_back(*inputs, *incoming.values())))
    partials = {f"d_{o}_d_{v}": p for (o, v), p in made.partials(*inputs).items()}
    forms = {
        "step": (given, new),
        "partials": (given, partials),
        "adjoint": ({**given, **new, **incoming}, back),
    }
    for index, (_, read) in enumerate(made.reads):
        names = sorted(map(str, made.sources[index].free_symbols))
        leaves = {name: values_of(made, names, 90)[name].requires_grad_() for name in names}
        value = read(**leaves)
        slopes = torch.autograd.grad(value.sum(), list(leaves.values()))
        forms[f"source_{index}"] = (leaves, {"read": value} | {f"d_read_d_{v}": s for v, s in zip(names, slopes)})
    return forms


@pytest.fixture(scope="module")
def javascript(tmp_path_factory):
    folder, calls = tmp_path_factory.mktemp("javascript"), {}
    for k, (name, made) in enumerate(EVERY.items()):
        path = folder / f"cell_{k}.mjs"
        path.write_text(made.source("js"), encoding="utf-8")
        forms = {
            form: {"given": {key: v.tolist() for key, v in given.items()}, "outputs": list(found)}
            for form, (given, found) in expected(made).items()
        }
        calls[name] = {"n": N, "path": str(path), "calls": forms}
    return run_node(folder, RUNNER, calls)


@pytest.mark.parametrize("name", EVERY)
def test_javascript_is_the_reference(name, javascript):
    for form, (_, found) in expected(EVERY[name]).items():
        for output, value in found.items():
            wanted = torch.as_tensor(value, dtype=torch.float64).detach().expand(N)
            got = torch.tensor([float(text) for text in javascript[name][form][output]], dtype=torch.float64)
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12, equal_nan=True, msg=f"{form} {output}")


@pytest.mark.parametrize("name", ["lstm", "gru_original", "ctrnn"])
def test_the_description_is_the_cell(name, javascript):
    made, told = EVERY[name], javascript[name]["cell"]
    assert told["name"] == made.name
    for key in ("gates", "input_gates", "states", "fed_back", "per_step", "inputs", "fixed", "dense"):
        assert json.loads(json.dumps(getattr(made, key))) == told[key], key
    assert told["params"] == made.initial_params
    reads = {gate: k for k, source in enumerate(told["sources"]) for gate in source["gates"]}
    assert reads == made.source_of
    assert told["equations"][-1].startswith(("y(t) = ", "c(t) = "))


def test_the_error_function_over_its_whole_range(tmp_path):
    made = cell(gates="a")(lambda a: cells.erf(a))
    x = torch.cat([torch.linspace(-7, 7, 2801), torch.tensor([1e-300, -1e-9, 30.0])]).double()
    (tmp_path / "cell.mjs").write_text(made.source("js"), encoding="utf-8")
    code = 'import { step } from "./cell.mjs"; const y_new = []; step(data.length, { a: data }, { y_new });'
    got = run_node(tmp_path, code + "console.log(JSON.stringify(y_new));", x.tolist())
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), torch.erf(x), rtol=1e-13, atol=0)
