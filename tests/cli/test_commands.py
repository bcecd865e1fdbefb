"""The command line as a whole: how it starts, its help pages, shell completion, options out of range."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import longlag as ll
from longlag.cli import COMMANDS, app

PAGES = [
    *([], ["tag"], ["flow"], ["bench"], ["reproduce"], ["report"], ["experiments"], ["export"], ["play"], ["verify"]),
    *(["tag", name] for name in ("train", "eval", "predict")),
    *(["flow", name] for name in ("error", "credit", "forgetting", "drift", "memory", "compare")),
]


def run(*arguments, **options):
    return CliRunner().invoke(app, list(arguments), prog_name="longlag", **options)


def help_of(page):
    done = run(*page, "--help")
    assert done.exit_code == 0, done.output
    return done.output


def test_the_pages_are_all_of_them():
    assert {page[0] for page in PAGES if page} == set(COMMANDS)


def test_python_dash_m_is_the_command():
    command = [sys.executable, "-m", "longlag"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"longlag {ll.__version__}\n"
    done = subprocess.run([*command, "tag", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: longlag tag [OPTIONS] COMMAND" in done.stdout
    done = subprocess.run([*command, "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such command 'nonsense'" in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_flags_show_no_type(page):
    text = help_of(page)
    assert "--help" in text
    assert "bool" not in text


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_help_is_set_to_the_width_of_the_terminal(page):
    """A paragraph is filled to the width, not cut where its source line ends."""
    lines = [line.strip() for line in help_of(page).split("─", 1)[0].splitlines()]
    for line, after in pairwise(lines):
        if line and after and not line.startswith(("longlag", "echo")):  # examples
            assert len(line) + 1 + len(after.split()[0]) > 75, f"{line!r}, then {after!r}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared.shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    done = run("--install-completion")
    assert done.exit_code == 0, done.output
    assert f"{shell} completion installed in" in done.output
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "_LONGLAG_COMPLETE" in path.read_text()]
    assert scripts


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("longlag ", set(COMMANDS)), ("longlag tag ", {"train", "eval", "predict"}), ("longlag flow er", {"error"})],
)
def test_completion_knows_the_commands(typed, offered):
    words = typed.split()
    environment = {
        **os.environ,
        "_LONGLAG_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - (not typed.endswith(" "))),
    }
    code = "from longlag.cli import app; app(prog_name='longlag')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == offered, done.stderr


def test_completion_belongs_to_the_whole_command():
    assert "--install-completion" in help_of([])
    for page in PAGES[1:]:
        assert "completion" not in help_of(page)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["flow", "error", "--gain", "-1"], "flow error: --gain must be a positive number, got -1"),
        (["flow", "error", "--gain", "1", "--gain", "0"], "flow error: --gain must be a positive number, got 0"),
        (["flow", "error", "--gain", "nan"], "flow error: --gain must be a positive number, got nan"),
        (["flow", "error", "--gain", "inf"], "flow error: --gain must be a positive number, got inf"),
        (["flow", "error", "--hidden", "0"], "must be a positive int, got 0"),
        (["flow", "credit", "--length", "0"], "flow: length must be a positive int, got 0"),
        (["flow", "forgetting", "--epsilon", "-1"], "epsilon must be positive, got -1.0"),
        (["flow", "forgetting", "--time-constant", "-3"], "time_constant must be"),
        (["flow", "drift", "--updates", "0"], "drift: updates must be a positive int, got 0"),
        (["flow", "drift", "--rate", "-1"], "flow drift: --rate must be a positive number, got -1"),
        (["flow", "memory", "--updates", "-1"], "flow memory: --updates must be 0 or a positive int, got -1"),
        (["flow", "memory", "--seed", "-1"], "flow: seed must be 0 or a positive int, got -1"),
        (["flow", "error", "--seed", "-1"], "flow: seed must be 0 or a positive int, got -1"),
    ],
)
def test_options_out_of_range_are_one_line(arguments, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert re.fullmatch(rf"longlag: .*{re.escape(complaint)}.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
