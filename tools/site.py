"""Hooks of the documentation site (mkdocs.yml): pages that are made from the sources when the site is built.

- Links to source files lead to pages that show these files with line numbers.
- The changelog is CHANGELOG.md.
- Tutorials can be downloaded as notebooks, made from the same Markdown by jupytext.
- Every named cell has a page of its own: equations, printed code, and the figures of docs/fidelity.csv.
- The playground is part of the site, and so is the report of the experiments as `longlag report` writes it.
- Pages load nothing from other hosts; docs/assets/iframe-worker.js lets the theme search without a server.
"""

from __future__ import annotations

import csv
import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import jupytext  # pyright: ignore[reportMissingImports]
from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(
    r"\]\((?P<up>(?:\.\./)+)(?P<path>(?:src|tests|tools|examples|benchmarks|peers)/[\w/.-]+)(?:#[^)]*)?\)"
)
SHIM = "https://unpkg.com/iframe-worker/shim"
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="?https?:[^">]*|<link[^>]*stylesheet[^>]*href="?https?:[^">]*"""
)
REPORT = "reproduction/report.html"  # the site's page of report.md has this address, so the file needs another
IN_FULL = "reproduction/report-in-full.html"
TITLES = {"cpu": "Numba", "torch": "torch", "gpu": "Triton", "js": "JavaScript"}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = [(DOCS / file.src_uri, file) for file in files.documentation_pages()]
    linked = {match["path"] for page, _ in pages for match in LINK.finditer(page.read_text(encoding="utf-8"))}
    for path in sorted(linked):
        if path.endswith(".html"):
            files.append(File.generated(config, target_of(path), content=(ROOT / path).read_text(encoding="utf-8")))
        elif (ROOT / path).is_file():
            files.append(File.generated(config, target_of(path), content=source_page(path)))
    if written := files.get_file_from_path(REPORT):
        files.remove(written)
    files.append(File.generated(config, IN_FULL, content=(DOCS / REPORT).read_text(encoding="utf-8")))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    for page, file in pages:
        if file.src_uri.startswith("tutorials/") and page.stem != "index":
            notebook = jupytext.writes(jupytext.read(page), "ipynb")
            files.append(File.generated(config, file.src_uri.replace(".md", ".ipynb"), content=notebook))
    for name, content in cell_pages().items():
        files.append(File.generated(config, f"fidelity/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to source files at their pages; offer a tutorial as a notebook."""
    here = posixpath.dirname(page.file.src_uri)

    def to_page(match: re.Match[str]) -> str:
        target = target_of(match["path"])
        if files.get_file_from_path(target) is None:  # a folder: named, not linked
            return "]()"
        return f"]({posixpath.relpath(target, here or '.')})"

    markdown = re.sub(r"\[([^\]]*)\]\(\)", r"\1", LINK.sub(to_page, markdown))
    full = posixpath.basename(IN_FULL)
    if page.file.src_uri == REPORT.replace(".html", ".md"):
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n[The report in full, with learning curves and activities]({full})\n{rest}"
        page.meta["hide"] = ["toc"]  # the page begins with its contents; wide tables take the place
    markdown = markdown.replace(f"]({posixpath.basename(REPORT)})", f"]({full})")
    if page.file.src_uri == "fidelity.md":
        markdown += cell_table()
    if page.file.src_uri.startswith("tutorials/") and not page.file.src_uri.endswith("index.md"):
        name = posixpath.basename(page.file.src_uri).replace(".md", ".ipynb")
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n[Download this page as a notebook]({name})\n{rest}"
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load the theme's shim from the site; refuse what a page loads from another host."""
    here = posixpath.dirname(page.file.dest_uri)
    output = output.replace(SHIM, posixpath.relpath("assets/iframe-worker.js", here or "."))
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def target_of(path: str) -> str:
    """Where the site has a file of the repository: pages as they are, sources as pages with line numbers."""
    return f"source/{path}" if path.endswith(".html") else f"source/{path}.md"


def source_page(path: str) -> str:
    """A source file with line numbers; the search leaves it out."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return f'---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````python linenums="1"\n{text}````\n'


def measured() -> list[dict[str, str]]:
    """The rows of docs/fidelity.csv."""
    with (DOCS / "fidelity.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cell_table() -> str:
    """All cells with their figures."""
    rows = measured()
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        name, *figures = row.values()
        lines.append(f"| [{name}](fidelity/{name}.md) | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def cell_pages() -> dict[str, str]:
    """A page for every named cell."""
    from longlag import cells

    return {row["cell"]: cell_page(row["cell"], getattr(cells, row["cell"]), row) for row in measured()}


def cell_page(name: str, cell: Any, figures: dict[str, str]) -> str:
    """Equations, declaration, figures and printed code of a cell."""
    summary, _, rest = inspect.cleandoc(cell.__doc__).partition("\n")
    equations = f"```text\n{rest.strip()}\n```" if rest.strip() else ""
    parts = [f"# {name}", "[All cells](../fidelity.md)", summary, equations]
    facts = {
        "gates": " ".join(cell.gates),
        "states": " ".join(cell.states) or "none",
        "trained per unit": " ".join(cell.params) or "none",
        "inputs per step": " ".join(cell.per_step) or "none",
        "recurrent matrix": "yes" if cell.dense else "no: a unit reads only its own past",
    }
    parts.append("\n".join(["| declared | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())]))
    parts.append("## Measured\n\nLargest differences in float64, from `python tools/fidelity.py`.")
    rows = [(key, value) for key, value in figures.items() if key != "cell"]
    parts.append("\n".join(["| check | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]))
    parts.append("## Printed from the equations")
    for target, title in TITLES.items():
        try:
            code = cell.source(target)
        except ValueError as refusal:
            parts.append(f"### {title}\n\nNot printed: {refusal}")
            continue
        language = "javascript" if target == "js" else "python"
        parts.append(f"### {title}\n\n```{language}\n{code.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
