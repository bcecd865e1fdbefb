"""What the documents show runs: Python blocks of README and docs, links, and the examples of the patterns."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))) if page.exists()]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page are one session, from top to bottom, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text, session = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    for block in PYTHON.finditer(text):
        above = text.count("\n", 0, block.start(1))
        code = compile("\n" * above + block.group(1), str(page), "exec")  # errors name the line of the page
        exec(code, session)


@every_page
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target} does not exist"


@every_page
def test_nothing_is_left_to_fill_in(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(r"^[A-Z_]{4,}$|TODO|TBD", text, re.MULTILINE) == []


def example(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its types
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("pattern", example("patterns").PATTERNS, ids=lambda pattern: pattern.__name__)
def test_a_pattern_learns_its_task(pattern):
    assert pattern() > 0.98
