"""The links of the package's metadata: addresses in the repository, and a README whose links are URLs.

A build inside a GitHub workflow knows the repository's address from the variables GITHUB_SERVER_URL and
GITHUB_REPOSITORY. A build that knows no address has no links, and its README is the file as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface  # pyright: ignore[reportMissingImports]

PAGES = {"Source": "", "Documentation": "/tree/HEAD/docs", "Changelog": "/blob/HEAD/CHANGELOG.md", "Issues": "/issues"}
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
PICTURE = re.compile(r"\.(?:png|svg|jpg)$")


class Links(MetadataHookInterface):
    """What hatchling asks for the dynamic fields of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata.update(fields(text, address(os.environ)))


def address(environment: Mapping[str, str]) -> str | None:
    """The repository's address, where the build knows it."""
    host, repository = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    return f"{host}/{repository}" if host and repository else None


def fields(text: str, address: str | None) -> dict[str, Any]:
    """The fields ``readme`` and ``urls``."""
    if address is None:
        return {"readme": {"content-type": "text/markdown", "text": text}, "urls": {}}

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if PICTURE.search(match[1]) else "blob"
        return f"]({address}/{kind}/HEAD/{match[1]})"

    text = RELATIVE.sub(absolute, text)
    urls = {name: address + path for name, path in PAGES.items()}
    return {"readme": {"content-type": "text/markdown", "text": text}, "urls": urls}
