"""The fingerprint of the code that makes a record: trials made by different code are never mixed.

All modules of ours that `trials` imports, directly or through others, are read: a changed kernel changes the
fingerprint. Comments, docstrings and layout do not count.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = "longlag.lab.trials"
KERNELS = "longlag.engines.cpu.realtime."  # its modules are also imported by names made at run time


def file_of(module: str) -> Path | None:
    """The source file of a module of ours; None if the name is not a module."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that a module imports; "from a import b" means the module a.b if there is one, else a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if file_of(name) else f"{node.module}" for name in names]
        else:
            continue
        yield from (name for name in names if name.startswith("longlag."))


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The same code without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def sources(start: str = START) -> dict[str, str]:
    """Module -> code, of all modules reachable from `start`."""
    found: dict[str, str] = {}
    open_names = [start]
    while open_names:
        name = open_names.pop()
        file = file_of(name)
        if name in found or file is None:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        open_names += imported(tree)
        if name.startswith(KERNELS):
            open_names += [f"{name.rpartition('.')[0]}.{each.stem}" for each in file.parent.glob("*.py")]
        found[name] = ast.unparse(without_docstrings(tree))
    return found


@cache
def fingerprint() -> str:
    """Short digest of the code that trials run."""
    code = "".join(f"{name}\n{text}\n" for name, text in sorted(sources().items()))
    return hashlib.sha256(code.encode()).hexdigest()[:12]
