"""Bring the line numbers in docs/equations.md up to date with the equation tags in the sources.

    python tools/equations.py

A row of the index names a tag, `[ELMAN 1]`, and links to a line, [cells/elman.py:12](../src/…/elman.py#L12). The
tag stands in that file: in a comment (# [ELMAN 1]), else anywhere in a docstring, else as the first word of one.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "equations.md"
ROW = re.compile(
    r"^\| `\[(?P<tag>[^\]]+)\]` \|(?P<equation>.*)\| \[(?P<label>[^\]:]+):\d+\]\(\.\./(?P<path>[^#)]+)#L\d+\)",
    re.MULTILINE,
)


def line_of(tag: str, source: str) -> int:
    """The line of ``source`` that carries the tag, counted from 1."""
    name = re.escape(tag)
    for pattern in (rf"#.*\[{name}\]", rf"\[{name}\]", rf'"""{name}[:,]'):
        for number, line in enumerate(source.splitlines(), 1):
            if re.search(pattern, line):
                return number
    raise LookupError(f"no line carries [{tag}]")


def refreshed(text: str) -> str:
    """The index with every link pointing at the line that carries its row's tag."""

    def row(match: re.Match[str]) -> str:
        tag, equation, label, path = match.group("tag", "equation", "label", "path")
        try:
            line = line_of(tag, (ROOT / path).read_text(encoding="utf-8"))
        except (LookupError, OSError) as error:
            raise SystemExit(f"docs/equations.md: row [{tag}] names {path}: {error}") from error
        return f"| `[{tag}]` |{equation}| [{label}:{line}](../{path}#L{line})"

    return ROW.sub(row, text)


if __name__ == "__main__":
    INDEX.write_text(refreshed(INDEX.read_text(encoding="utf-8")), encoding="utf-8")
