"""Docstrings of the site's reference: examples (``>>>``) become code blocks; mkdocstrings reads them as quotations."""

from __future__ import annotations

from typing import Any

import griffe  # pyright: ignore[reportMissingImports]


def with_code_blocks(text: str) -> str:
    """Fence every run of lines from ``>>>`` to the next blank line.

    >>> print(with_code_blocks("Twice.\\n\\n>>> 1 + 1\\n2\\n\\nEnd."))
    Twice.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    End.
    """
    found, inside = [], False
    for line in [*text.splitlines(), ""]:
        starts, ends = line.startswith(">>>") and not inside, inside and not line.strip()
        if starts or ends:
            found.append("```pycon" if starts else "```")
            inside = starts
        found.append(line)
    return "\n".join(found[:-1])


class Examples(griffe.Extension):
    """Applies `with_code_blocks` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)
