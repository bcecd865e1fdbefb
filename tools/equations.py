"""Find equations by their tags, and check docs/equations.md against the tags in the sources.

    python tools/equations.py ELMAN 1      file:line of every line tagged [ELMAN 1]
    python tools/equations.py              what the index and the sources disagree about; exit status 1 if anything

A tag in a comment, # [ELMAN 1], marks the line of code that computes the equation. A tag in a docstring cites the
equation, or a whole section of its source. A row of the index names a tag, the equation, the file that carries the
tag in a comment, and a test. No line numbers are kept anywhere: moving a line changes nothing.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "equations.md"
FOLDERS = ("src", "examples", "tests")
ROW = re.compile(
    r"^\| `\[(?P<tag>[^\]]+)\]` \| (?P<equation>.+) \| \[(?P<label>[^\]]+)\]\(\.\./(?P<path>[^#)]+)\)[^|]*"
    r"\| `(?P<test>[\w/]+\.py::test_\w+)` \|$"
)
# a system in capitals, or an experiment, then the section or the symbol: [ELMAN 1], [LF-92 2.1 E], [PAT-I], [E2a]
TAG = re.compile(r"\[((?:[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)*|E\d[a-c]?)(?: [^\[\]]+)?)\]")


class Row(NamedTuple):
    """One row of the index."""

    tag: str
    equation: str
    label: str
    path: str
    test: str


class Use(NamedTuple):
    """One place where a tag occurs: a tag in a comment marks a computation, a tag in a docstring cites."""

    tag: str
    line: int
    in_comment: bool


def rows(index: str) -> list[Row]:
    """The rows of the index; a row that is not well-formed is an error."""
    found = []
    for line in index.splitlines():
        if line.startswith("| `["):
            match = ROW.match(line)
            if match is None:
                raise ValueError(f"docs/equations.md: not | `[tag]` | equation | [file](../path) | `test` |: {line}")
            found.append(Row(**match.groupdict()))
    return found


def uses(source: str) -> Iterator[Use]:
    """The tags in the comments and docstrings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            for match in TAG.finditer(token.string):
                line = token.start[0] + token.string.count("\n", 0, match.start())
                yield Use(match[1], line, token.type == tokenize.COMMENT)


def sources() -> dict[str, str]:
    """The Python files that may carry tags, by their path from the root."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def problems(index: str, sources: dict[str, str]) -> Iterator[str]:
    """What is wrong with the index, one sentence each."""
    listed, used = rows(index), {path: list(uses(source)) for path, source in sources.items()}
    tags = [row.tag for row in listed]
    for row in listed:
        if tags.count(row.tag) > 1:
            yield f"docs/equations.md: [{row.tag}] has more than one row"
        if row.path not in used:
            yield f"docs/equations.md: [{row.tag}] names {row.path}, which does not exist{elsewhere(row.tag, used)}"
        elif not any(use.tag == row.tag and use.in_comment for use in used[row.path]):
            yield f"docs/equations.md: [{row.tag}] is in no comment of {row.path}{elsewhere(row.tag, used)}"
    for path, found in used.items():
        if not path.startswith("tests/"):  # tests cite: what a test computes is indexed where it is the only place
            for use in found:
                section = not use.in_comment and any(tag.startswith(f"{use.tag} ") for tag in tags)
                if use.tag not in tags and not section:
                    yield f"{path}:{use.line}: [{use.tag}] has no row in docs/equations.md"


def elsewhere(tag: str, used: dict[str, list[Use]]) -> str:
    """Where else the tag marks a computation, as the end of a sentence."""
    others = [path for path, found in used.items() if any(use.tag == tag and use.in_comment for use in found)]
    return f" (it is in {', '.join(others)})" if others else ""


def main(arguments: list[str]) -> int:
    """Print where a tag occurs, or everything that is wrong with the index."""
    if not arguments:
        found = list(problems(INDEX.read_text(encoding="utf-8"), sources()))
        print("\n".join(found) or "docs/equations.md agrees with the sources")
        return 1 if found else 0
    tag = " ".join(arguments).strip("[]")
    places = [
        f"{path}:{use.line}"
        for path, source in sources().items()
        for use in uses(source)
        if use.tag == tag and use.in_comment
    ]
    print("\n".join(places) or f"no line is tagged [{tag}]")
    return 0 if places else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
