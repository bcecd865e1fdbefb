"""How kernels come to be: generated source, the cache folder, and what happens when it cannot be used."""

import os
import subprocess
import sys
import threading

import helpers
import numpy as np
import pytest
import sympy
import torch

from longlag import cells, engines
from longlag.engines.cpu import generate, kernels, product


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and no kernel in memory."""
    monkeypatch.setattr(kernels, "folder", lambda: tmp_path / "kernels")
    kernels.kernels.cache_clear()
    yield tmp_path / "kernels"
    kernels.kernels.cache_clear()


def run_static():
    """y = tanh(W x / 2) for one step; the smallest kernel there is."""
    x, W = torch.ones(1, 1, 1, dtype=torch.float64), torch.full((2, 1), 0.5, dtype=torch.float64)
    y, _ = engines.run("cpu", cells.static, x, W, None, None, (), ())
    assert torch.allclose(y, torch.tanh(torch.full((1, 1, 2), 0.25, dtype=torch.float64)))


def test_source_is_readable_and_named_after_its_content(folder):
    run_static()
    (path,) = folder.glob("*.py")
    assert path.name.startswith("static_float64_")
    assert "y_new = tanh(number(0.5)*a)" in path.read_text()
    assert cells.lstm.source("cpu").count("def ") == 4
    with pytest.raises(ValueError, match=r"cell lstm: engine must be one of \['torch', 'cpu'\], got 'gpu'"):
        cells.lstm.source("gpu")


def test_a_damaged_source_file_is_rebuilt(folder):
    run_static()
    (path,) = folder.glob("*.py")
    good = path.read_text()
    path.write_bytes(b"\xff\xfe not python")
    kernels.kernels.cache_clear()
    run_static()
    assert path.read_text() == good


def test_damaged_machine_code_is_rebuilt(folder):
    run_static()
    damaged = list(folder.glob("__pycache__/*.nb[ic]"))
    assert damaged
    for path in damaged:
        path.write_bytes(b"damaged")
    kernels.kernels.cache_clear()
    run_static()


def test_an_unusable_folder_warns_once_and_runs(tmp_path, monkeypatch):
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    monkeypatch.setattr(kernels, "folder", lambda: blocked / "kernels")
    kernels.kernels.cache_clear()
    kernels._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot write the kernel cache .* compiled anew in every process"):
        run_static()
    kernels.kernels.cache_clear()
    run_static()  # a second warning would be an error
    kernels.kernels.cache_clear()


def test_a_second_process_uses_the_cache(tmp_path):
    code = (
        "import torch, longlag as ll; from longlag.engines.cpu import kernels;"
        "ll.LocalFeedback(1, 2, feedback='static')(torch.zeros(1, 1, 1));"
        "print(sum(kernels.compile_seconds.values()))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def run():
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    first, second = (float(run().stdout) for _ in range(2))
    assert second < first / 2
    assert list(tmp_path.rglob("static_float32_*.nbc"))


def test_several_writers_at_once_leave_one_good_file(folder):
    text = generate.source(cells.static, "float32", norm=False)
    threads = [threading.Thread(target=kernels._write, args=(folder / "kernel.py", text)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "kernel.py").read_text() == text
    assert [path.name for path in folder.iterdir()] == ["kernel.py"]


def test_what_cannot_be_printed_is_refused_by_name(monkeypatch):
    odd = helpers.ll.cell(gates="a", dense=False)(lambda a: cells.tanh(a))
    monkeypatch.setattr(odd, "expressions", (sympy.Function("erf")(sympy.Symbol("a", real=True)),))
    with pytest.raises(ValueError, match=r"engine 'cpu' cannot print erf\(…\) .*; engine='reference' can"):
        generate.source(odd, "float32", norm=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (3, 5, 7), (8, 16, 64), (13, 33, 100), (7, 300, 5)])
def test_products(dtype, M, K, N):
    rng = np.random.default_rng(0)
    A, C = rng.normal(size=(M, K)).astype(dtype), rng.normal(size=(M, N)).astype(dtype)
    edge, tolerance = np.empty(M * 64, dtype), {np.float32: 3e-6, np.float64: 1e-14}[dtype]
    for transposed in (True, False):
        U = rng.normal(size=(N, K) if transposed else (K, N)).astype(dtype)
        expected = A.astype(np.float64) @ (U.T if transposed else U)
        for add in (True, False):
            ours = C.copy()
            product.multiply(A.reshape(-1), 0, K, M, K, product.pack(U, transposed), ours.reshape(-1), 0, N, add, edge)
            assert np.abs(ours - expected - add * C).max() <= tolerance * K
    B = rng.normal(size=(K, N)).astype(dtype)
    left = np.ascontiguousarray(A.T)
    wide = np.empty((-(-M // 8) * 8, -(-N // product.width(A)) * product.width(A)), dtype)
    product.sum_of_outer_products(left, B, wide, 0, len(wide) // 8)
    assert np.abs(wide[:M, :N] - left.T.astype(np.float64) @ B).max() <= tolerance * K
