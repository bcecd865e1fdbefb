"""The equations in a cell's docstring are evaluated and must be what its step computes."""

import re

import pytest
import torch
from helpers import NAMED, SHELF, SQUASHES, randn, same

from longlag import cells

GLYPHS = {"−": "-", "·": "*", "σ": "sigmoid", "α": "alpha", "γ": "gamma", "ε": "eps", "ζ": "zeta", "ν": "nu"}
FUNCTIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "exp": torch.exp, "sin": torch.sin}
FUNCTIONS |= {"sqrt": torch.sqrt}
FUNCTIONS |= {"cos": torch.cos, "softplus": torch.nn.functional.softplus, "maximum": torch.maximum}
FUNCTIONS |= {"where": torch.where, "detach": torch.Tensor.detach, "spike": lambda v, *_: (v > 0).to(v.dtype)}
SQUASH = {  # [LSTM-97 2]: the ranges (−2, 2) and (−1, 1), and what experiment 2 uses
    "4s-2": lambda x: 4 / (1 + torch.exp(-x)) - 2,
    "2s-1": lambda x: 2 / (1 + torch.exp(-x)) - 1,
    "logistic": lambda x: 1 / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def evaluate(docstring, gates, before, params, functions):
    """Values of the lines ``name(t) = expression``: ``name(t−1)`` is read from ``before``, gates by their name.

    A line ``name = expression`` defines an abbreviation.
    """
    scope = {**FUNCTIONS, **functions, **gates, **params, **{f"{name}_before": v for name, v in before.items()}}
    now = {}
    for name, result, expression in re.findall(r"^ *(\w+)(\(t\))? = (.+)$", docstring, re.MULTILINE):
        for glyph, word in GLYPHS.items():
            expression = expression.replace(glyph, word)
        expression = re.sub(r"(\w+)\(t-1\)", r"\1_before", expression)
        expression = re.sub(r"(\w+)\(t\)", r"\1_now", expression)
        value = scope[f"{name}_now" if result else name] = eval(expression, {"__builtins__": {}}, scope)
        now |= {name: value} if result else {}
    return now


def stated(cell, docstring, functions=None):
    """(what the docstring says, what the cell computes) on random values."""
    values = {name: randn(6, seed=i) for i, name in enumerate(cell.inputs)}
    values |= {name: values[name].abs() + 0.5 for name in cell.params}
    groups = (*cell.gates, *cell.per_step), (*cell.fed_back, *(["y"] if cell.reads_y else [])), cell.params
    gates, before, params = ({n: v for n, v in values.items() if n in group} for group in groups)
    now = evaluate(docstring, gates, before, params, functions or {})
    return now, dict(zip(cell.outputs, cell.step(*values.values()), strict=True))


@pytest.mark.parametrize("name", NAMED + SHELF)
def test_the_docstring_states_what_the_cell_computes(name):
    cell = getattr(cells, name)
    said, computed = stated(cell, cell.__doc__)
    assert said.keys() == computed.keys()
    same(said, {key: computed[key] for key in said})


@pytest.mark.parametrize("g", SQUASHES)
@pytest.mark.parametrize("h", SQUASHES)
def test_the_docstring_of_the_memory_cell(g, h):
    said, computed = stated(cells.memory_cell(g, h), cells.memory_cell.__doc__, {"g": SQUASH[g], "h": SQUASH[h]})
    same(said, {key: computed[key] for key in said})


def test_an_open_memory_cell_has_an_output_gate_of_one():
    cell = cells.memory_cell(output_gate=False)
    i, a, s = (randn(6, seed=k) for k in range(3))
    said = evaluate(
        cells.memory_cell.__doc__,
        {"i": i, "a": a, "o": torch.full_like(i, torch.inf)},  # σ(∞) = 1
        {"s": s},
        {},
        {"g": SQUASH["4s-2"], "h": SQUASH["2s-1"]},
    )
    y, s_new = cell.step(i, a, s)
    same([y, s_new], [said["y"], said["s"]])


@pytest.mark.parametrize(("right", "wrong"), [("σ(f)·c(t−1)", "σ(i)·c(t−1)"), ("tanh(c(t))", "tanh(c(t−1))")])
def test_a_docstring_that_lies_is_found_out(right, wrong):
    docstring = cells.lstm.__doc__ or ""
    assert right in docstring
    said, computed = stated(cells.lstm, docstring.replace(right, wrong))
    assert (said["y"] - computed["y"]).abs().max() > 1e-3
