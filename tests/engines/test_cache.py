"""The kernel cache: one folder, trusted or not used; one kind of key, made of everything a kernel is made of."""

import ast
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import longlag
from longlag.engines.cpu.cache import array_kernels, folder, machine

PACKAGE = Path(longlag.__file__).parent
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")


# ------------------------------------------------------------------------------------------------------- trust
@pytest.fixture
def wanted(tmp_path, monkeypatch):
    path = tmp_path / "longlag" / "kernels"
    monkeypatch.setattr(folder, "wanted", lambda: path)
    folder.warn_once.cache_clear()
    yield path
    folder.warn_once.cache_clear()


def test_a_new_folder_is_private(wanted):
    assert folder.folder() == wanted
    if os.name != "nt":
        assert stat.S_IMODE(wanted.stat().st_mode) == stat.S_IMODE(wanted.parent.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
@pytest.mark.parametrize("which", ["folder", "parent"])
def test_a_folder_that_others_can_write_to_is_not_used(wanted, mode, which):
    wanted.mkdir(parents=True, mode=0o700)
    wanted.parent.chmod(0o700)
    (wanted if which == "folder" else wanted.parent).chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"the kernel cache .* is not used: others can write to .* built anew"):
        used = folder.folder()
    assert used != wanted
    assert stat.S_IMODE(used.stat().st_mode) == 0o700
    assert folder.folder() == used  # a second warning would be an error


@posix
def test_a_folder_under_one_that_anybody_can_change_is_not_used(wanted):
    wanted.parent.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others can write to"):
        assert folder.folder() != wanted
    folder.warn_once.cache_clear()
    wanted.parent.parent.chmod(0o1777)  # like a folder for temporary files: nobody can replace what is ours there
    assert folder.folder() == wanted


@posix
def test_a_folder_of_somebody_else_is_not_used(wanted, monkeypatch):
    wanted.mkdir(parents=True, mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.warns(RuntimeWarning, match=f"it belongs to user {me}, not to user {me + 1}"):
        assert folder.folder() != wanted


@posix
def test_a_symbolic_link_of_somebody_else_is_not_followed(wanted, tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    wanted.parent.mkdir(mode=0o700)
    wanted.symlink_to(target)
    assert folder.folder() == wanted  # our own link to our own folder
    real = Path.lstat

    def lstat(path):
        found = real(path)
        return os.stat_result((*found[:4], 12345, *found[5:])) if path == wanted else found

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.warns(RuntimeWarning, match="kernels belongs to user 12345"):
        assert folder.folder() != wanted


@posix
def test_a_link_into_a_folder_that_others_can_write_to_is_not_followed(wanted, tmp_path):
    target = tmp_path / "open" / "target"
    target.mkdir(parents=True)
    target.chmod(0o777)
    wanted.parent.mkdir(mode=0o700)
    wanted.symlink_to(target)
    with pytest.warns(RuntimeWarning, match="others can write to"):
        assert folder.folder() != wanted


def test_a_folder_that_cannot_be_written_to_is_still_read(tmp_path, monkeypatch):
    folder.warn_once.cache_clear()
    folder.write(tmp_path / "kernel.o", b"code")
    assert folder.read(tmp_path / "kernel.o") == b"code"

    def refuse(*args, **options):
        raise PermissionError("read-only")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.warns(RuntimeWarning, match=r"cannot write the kernel cache \(read-only\)"):
        folder.write(tmp_path / "other.o", b"code")
    folder.write(tmp_path / "third.o", b"code")  # a second warning would be an error
    assert folder.read(tmp_path / "kernel.o") == b"code"
    folder.warn_once.cache_clear()


# --------------------------------------------------------------------------------------------------------- keys
def closure(file, seen=None):
    """Files of ours that a module imports, and those that they import."""
    seen = {file} if seen is None else seen
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("longlag."):
            base = PACKAGE.parent / (node.module or "").replace(".", "/")
            for alias in node.names:
                for path in (base / f"{alias.name}.py", base.with_suffix(".py")):
                    if path.exists() and path not in seen:
                        seen.add(path)
                        closure(path, seen)
    return seen


def made_of(*names):
    files = [PACKAGE / name for name in names]
    return {path for each in (*machine.SHARED, *files) for path in (each.rglob("*.py") if each.is_dir() else [each])}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("engines/cpu/simd/product_kernels.py", []),
        ("engines/cpu/codegen/generate.py", [str(path.relative_to(PACKAGE)) for path in machine.CELLS]),
        ("engines/cpu/codegen/lstm97.py", [str(path.relative_to(PACKAGE)) for path in machine.CELLS]),
        ("engines/cpu/runtime/jordan_kernels.py", ["engines/cpu/runtime/jordan_kernels.py"]),
        ("structured/_crf_cpu.py", ["structured/_crf_cpu.py"]),
        ("lab/plain_cpu.py", ["lab/plain_cpu.py"]),
    ],
)
def test_a_key_covers_all_that_a_kernel_is_made_of(module, names):
    """D1: every file a kernel's module imports from ours, directly or not, is in the kernel's fingerprint."""
    assert closure(PACKAGE / module) - made_of(*names) == set()


def test_numbas_own_cache_is_used_nowhere():
    uses = re.compile(r"cache=True|\"cache\": True")
    assert [path for path in PACKAGE.rglob("*.py") if uses.search(path.read_text(encoding="utf-8"))] == []


def test_a_fingerprint_names_processor_and_compilers(monkeypatch):
    fingerprint = machine.fingerprint.__wrapped__
    before = fingerprint()
    monkeypatch.setattr(machine._private, "processor", lambda: ("cpu", "+avx2"))
    one = fingerprint()
    monkeypatch.setattr(machine._private, "processor", lambda: ("cpu", "+avx512f"))
    two = fingerprint()
    monkeypatch.setattr(machine.metadata, "version", lambda package: f"{package} 0")
    assert len({before, one, two, fingerprint()}) == 4


def test_kernels_are_rebuilt_when_a_helper_changes_and_only_then(tmp_path):
    """D1: break sigmoid by hand, and the laboratory's kernels notice; a change of run.py rebuilds nothing."""
    copy = tmp_path / "longlag"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = """
import numpy as np
from longlag.engines.cpu.cache import machine
from longlag.lab.plain_cpu import advance
new = np.zeros(1)
advance(np.array([[1.0, 0.0]]), 0, np.zeros(1), new)
print(round(new[0], 4), len(machine.build_seconds))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run():
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def change(file, old="", new=""):
        text = (copy / file).read_text(encoding="utf-8")
        assert old in text
        (copy / file).write_text(text.replace(old, new, 1) + "\n# changed\n", encoding="utf-8")

    assert run() == ["0.7311", "1"]
    change("engines/cpu/runtime/run.py")
    assert run() == ["0.7311", "0"]
    change("engines/cpu/simd/functions.py", "return top - top * (e / (e + one))", "return top")
    assert run() == ["1.0", "1"]


def test_a_damaged_array_kernel_is_rebuilt(wanted):
    assert importlib.util.find_spec("numba")

    def make():
        @array_kernels.array_kernel(__file__)
        def double(x):
            return 2 * x

        return double

    assert make()(2.5) == 5.0
    (path,) = wanted.glob("*double*.pickle")
    path.write_bytes(path.read_bytes()[:-3])
    machine.build_seconds.clear()
    assert make()(2.5) == 5.0
    assert len(machine.build_seconds) == 1
    assert make()(1.5) == 3.0
    assert folder.read(path) is not None


def test_long_compiling_is_announced_and_loading_is_not(wanted, monkeypatch, capsys):
    monkeypatch.setattr(machine, "PATIENCE", 0.001)

    def run():
        @array_kernels.array_kernel(__file__)
        def half(x):
            return x / 2

        assert half(5.0) == 2.5
        return capsys.readouterr().err

    name = "test_cache.test_long_compiling_is_announced_and_loading_is_not._locals_.run._locals_.half"
    assert run() == f"longlag: compiling {name} (once; the result is kept in {wanted}) …\n"
    assert run() == ""
