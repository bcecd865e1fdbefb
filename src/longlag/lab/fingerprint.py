"""The fingerprint of the code that makes a record: trials made by different code are never mixed.

All modules of ours that `trials` imports, directly or through others, are read: a changed kernel changes the
fingerprint. Comments, docstrings and layout do not count. Neither do modules that are imported and never run in a
trial (`NOT_RUN`), such as the GPU engine.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = "longlag.lab.trials"
KERNELS = "longlag.engines.cpu.realtime."  # its modules are also imported by names made at run time
PACKAGES = ("longlag.cells", "longlag.engines", "longlag.layers", "longlag.learn", "longlag.tasks")  # lists of names
NOT_RUN = (
    *(f"longlag.engines.{name}" for name in ("gpu", "_gpu", "builtin", "recording", "_onnx")),
    *(
        f"longlag.layers.{name}"
        for name in ("echo", "_reservoir", "loading", "skip", "jordan", "packed", "cell_module")
    ),
    *(f"longlag.learn.{name}" for name in ("_comparison", "uoro", "rflo")),
    # equations of a cell are part of its trials' settings
    *(f"longlag.cells.{name}" for name in ("continuous", "fastgrnn", "gru_d", "indrnn", "lru", "mgu", "minimal")),
    *(f"longlag.cells.{name}" for name in ("oscillators", "peephole", "slstm", "spiking", "_javascript")),
    "longlag.style",
)


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


def runs(module: str) -> bool:
    """Whether code of a module may run in a trial."""
    return module not in PACKAGES and not any(f"{module}.".startswith(f"{name}.") for name in NOT_RUN)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The same code without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def reachable(start: str = START) -> dict[str, str]:
    """Module -> code, of `start` and all modules that it imports, directly or through others."""
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


def sources(start: str = START) -> dict[str, str]:
    """Module -> code, of the modules that may run in a trial."""
    return {name: code for name, code in reachable(start).items() if runs(name)}


@cache
def fingerprint() -> str:
    """Short digest of the code that trials run."""
    code = "".join(f"{name}\n{text}\n" for name, text in sorted(sources().items()))
    return hashlib.sha256(code.encode()).hexdigest()[:12]
