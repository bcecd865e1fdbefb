"""Cells from text: the same cell as from Python, and nothing of the text is executed."""

import inspect

import pytest

from longlag import cells

MINE = '@cell(gates="a z")\ndef mine(a, z, y):\n    keep = sigmoid(z)\n    return keep * y + (1 - keep) * tanh(a)'


def written(body="tanh(a)", options='gates="a"', arguments="a"):
    return f"@cell({options})\ndef mine({arguments}):\n    return {body}"


@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "leaky", "lif", "co_rnn", "gru_original"])
def test_the_source_of_a_cell_is_that_cell(name):
    made = getattr(cells, name)
    text = inspect.getsource(made.equations)
    assert cells.from_text(text).source("torch").partition("\n")[2] == made.source("torch").partition("\n")[2]


def test_assignments_and_an_import_are_read():
    text = "from longlag.cells import cell, sigmoid, tanh\n\n" + MINE
    assert str(cells.from_text(text)) == "Cell(mine: gates a z)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text must have 1 to 4000 characters, got 0 characters"),
        ("x" * 4001, "got 4001 characters"),
        ("def f(", "text must be Python, got line 1"),
        ("import os", "got line 1: Import"),
        (MINE + "\n" + MINE, "got line 2: FunctionDef, line 6: FunctionDef"),
        (MINE.replace("@cell", "@os.system"), "cell mine: text must be @cell"),
        (written(options=""), 'write @cell(gates="…")'),
        (written(options='gates=__import__("os").name'), "gates must be a literal"),
        (written(options='gates="a", dense=1'), "dense must be True or False, got 1"),
        (written(options='gates="a", engine="cpu"'), "got 'engine'"),
        (written(options='gates="a: y.__class__"'), "cell mine"),
        (written("__import__('os')"), "line 3: __import__ is not a function of the language"),
        (written("a.__class__"), "a.__class__ (Attribute) is not in the language of cells"),
        (written("[tanh(b) for b in a]"), "(ListComp) is not in the language"),
        (written("torch.tanh(a)"), "torch.tanh is not a function of the language, use longlag.cells.tanh"),
        (written("tanh(a) if a > 0 else a"), "equations do not branch"),
        (written("a ** a"), "** needs a constant exponent, got a"),
        (written("a ** 1000000"), "exponents go up to 16, got 1000000"),
        (written("tanh(b)"), "'b' is not defined"),
        (written("1 / 0"), "division by zero"),
        (written("tanh(a)", arguments="a, *b"), "arguments must be plain names"),
        (written("tanh(a)\n    return a"), "return must come last and once"),
        (MINE.replace("    return", "    keep +="), "a line is an assignment of names or return"),
        (written("+".join(["a"] * 1100)), "its equations are nested too deeply"),
    ],
)
def test_what_is_no_cell_is_refused_by_name(text, message):
    with pytest.raises((ValueError, TypeError)) as refused:
        cells.from_text(text)
    assert message in str(refused.value)


def test_equations_that_grow_are_refused_before_they_do():
    lines = ["    a = a * a"] + ["    a = a * a + a"] * 60
    with pytest.raises(ValueError, match="more than 1000 operations when written out"):
        cells.from_text('@cell(gates="a")\ndef mine(a):\n' + "\n".join(lines) + "\n    return a")
