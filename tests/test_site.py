"""The documentation site's sources are complete; `make docs` builds the site, where warnings are errors."""

import csv
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from longlag import cells

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_in_the_navigation(page):
    named = re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    assert page in named


def test_every_named_cell_has_measured_figures():
    """`python tools/fidelity.py` measures them."""
    named = [name for name in dir(cells) if isinstance(getattr(cells, name, None), cells.Cell)]
    with (DOCS / "fidelity.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == named
    differences = [value for row in rows for key, value in row.items() if "RTRL" in key or "steps" in key]
    assert all(float(value) < 1e-12 for value in differences)


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_every_figure_has_its_command(page):
    """The page names the file in the command that draws it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        name = f"docs/img/{target.rpartition('/')[2]}"
        assert re.search(rf"(?:python|longlag) .*{re.escape(name)}", text), f"{page}: no command for {name}"


@pytest.mark.parametrize(
    "module", ["layers", "learn", "flow", "structured", "tasks", "lab", "export", "estimators", "rl"]
)
def test_the_reference_has_every_public_name(module):
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    there = {line.rpartition(".")[2] for text in pages for line in text.splitlines() if line.startswith(":::")}
    package = importlib.import_module(f"longlag.{module}")
    ours = {n: getattr(package, n) for n in dir(package) if n[0] != "_"}
    ours = {n: v for n, v in ours.items() if callable(v) and getattr(v, "__module__", "").startswith("longlag")}
    assert ours
    assert [name for name, value in ours.items() if not {name, value.__name__} & there] == []


@pytest.fixture(scope="module")
def measured():
    """How many times as fast as the peer: the last row of every name in benchmarks/results.csv."""
    with (DOCS.parent / "benchmarks" / "results.csv").open(encoding="utf-8") as file:
        return {row["name"]: 1 / float(row["ratio"]) for row in csv.DictReader(file) if row["ratio"]}


FIGURES = {
    "a cell of your own": r"cpu: a user's cell .* / nn\.RNN of equal work",
    "unequal lengths": r"sequences: .* with lengths / packed",
    "episodes": r"sequences: .* with resets / loop",
}
QUOTED = [(page, *figure) for page in ("README.md", "docs/index.md") for figure in FIGURES.items()]


@pytest.mark.parametrize(("page", "what", "rows"), [*QUOTED, ("README.md", "RTRL", r"online: LSTM, RTRL / JAX")])
def test_figures_of_the_first_screen_are_those_measured(page, what, rows, measured):
    """If this fails, a benchmark was run again: write the new figures on the page, and run tools/targets.py."""
    found = [times for name, times in measured.items() if re.match(rows, name)]
    wanted = " to ".join(dict.fromkeys(f"{times:.2g}" for times in (min(found), max(found))))
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if what in line and re.search(r"times as fast|×</b>", line)]
    assert lines
    assert [line for line in lines if not re.search(rf"(?<![\d.]){wanted}(?: times| ×)", line)] == []


def test_every_extra_is_on_the_install_page():
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"`longlag\[(\w+)\]`", (DOCS / "install.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(extras)
