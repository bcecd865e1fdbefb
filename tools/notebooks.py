"""The tutorials as notebooks, executed: every page of docs/tutorials, made by jupytext from its Markdown.

python tools/notebooks.py build/notebooks
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jupytext  # pyright: ignore[reportMissingImports]
import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

PAGES = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        if page.stem == "index":
            continue
        notebook = jupytext.read(page)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        with tempfile.TemporaryDirectory() as place:  # tutorials write files
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": place}}).execute()
        target = folder / f"{page.stem}.ipynb"
        nbformat.write(notebook, target)
        print(target, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
