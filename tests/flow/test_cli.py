"""`longlag flow`: commands that write a picture and its numbers."""

import csv
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import longlag as ll
from longlag import flow
from longlag.cli import COMMANDS, app
from longlag.cli._specimens import Kind, build

SMALL = {
    "error": ["--hidden", "5", "--length", "8"],
    "credit": ["--hidden", "5", "--length", "8"],
    "forgetting": ["--hidden", "2", "--length", "30", "--time-constant", "2"],
    "drift": ["--length", "22", "--updates", "2", "--batch", "2", "--bias", "0", "--bias", "-4"],
    "memory": ["--hidden", "3", "--length", "22", "--updates", "2"],
    "compare": ["--hidden", "4", "--length", "8"],
}


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", SMALL)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_command_writes_a_picture_and_its_numbers(command, kind, tmp_path):
    picture = tmp_path / f"{command}.{kind}"
    result = run("flow", command, *SMALL[command], "--out", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    assert len(table(picture.with_suffix(".csv"))) > 1
    assert str(picture) in result.output.replace("\n", "")


def test_the_numbers_are_those_of_the_library(tmp_path):
    run("flow", "error", "--layer", "gru", "--hidden", 4, "--length", 6, "--seed", 3, "--out", tmp_path / "e.png")
    x = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.manual_seed(3)
    wanted = flow.error_flow(ll.GRU(3, 4, dtype=torch.float64), x).norm.flatten().tolist()
    assert [float(row["norm"]) for row in table(tmp_path / "e.csv")] == wanted


def test_gains_are_spectral_radii_on_one_axis(tmp_path):
    result = run("flow", "error", *SMALL["error"], "--gain", 0.5, "--gain", 9, "--out", tmp_path / "g.png")
    assert "radius 0.5: vanishing" in result.output
    assert {row["name"] for row in table(tmp_path / "g.csv")} == {"radius 0.5", "radius 9"}


def test_compare_shows_the_carousel_at_one(tmp_path):
    run("flow", "compare", *SMALL["compare"], "--out", tmp_path / "c.png")
    rows = table(tmp_path / "c.csv")
    assert {row["name"] for row in rows} >= {"Elman", "LSTM, forget gate", "local feedback", "leaky, α = 10"}
    assert {row["norm"] for row in rows if row["name"] == "LSTM-97, as it learns"} == {"1.0"}
    assert len({row["norm"] for row in rows if row["name"] == "LSTM-97, nothing cut"}) > 10


@pytest.mark.parametrize("kind", Kind)
def test_every_layer_has_an_error_flow(kind):
    layer = build(kind, 2, 4, 0)
    assert flow.error_flow(layer, torch.randn(5, 1, 2, dtype=torch.float64)).norm.shape == (6, 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["error", "--hidden", "-3"], "longlag: Elman: hidden_size must be a positive int, got -3"),
        (["error", "--length", "0"], "longlag: flow: length must be a positive int, got 0"),
        (
            ["error", "--layer", "lstm", "--gain", "1"],
            "--gain needs a layer with one square recurrent matrix, got LSTM",
        ),
        (["credit", "--length", "5", "--out", "x.jpg"], "path must end in .png, .svg, .pdf, got 'x.jpg'"),
        (["drift", "--length", "5"], "T must be"),
    ],
)
def test_bad_input_is_one_line(arguments, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("flow", *arguments)
    assert result.exit_code == 2
    assert text in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", SMALL)
def test_help_teaches(command):
    result = run("flow", command, "--help")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert "--out" in words
    assert len(words) > 600


def test_the_command_list():
    result = run("--help")
    assert result.exit_code == 0
    assert "flow" in COMMANDS
    assert "See why gradients vanish" in result.output
    assert run("--version").output.strip() == f"longlag {ll.__version__}"
    assert run("flow").output.count("\n") > 10
    assert run("nonsense").exit_code == 2


def test_starting_loads_no_tools():
    """Neither pictures nor analyses are loaded to show the help."""
    code = (
        "import sys; from typer.testing import CliRunner; from longlag.cli import app;"
        "r = CliRunner().invoke(app, ['flow', '--help']); assert r.exit_code == 0;"
        "print([m for m in ('matplotlib', 'numba', 'sympy.core', 'longlag.lab.trials') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
