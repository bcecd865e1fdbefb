"""How kernels come to be: generated source, the cache folder, and what happens when it cannot be used."""

import ctypes
import itertools
import mmap
import os
import re
import subprocess
import sys
import threading

import helpers
import numpy as np
import pytest
import sympy
import torch

import longlag as ll
from longlag import cells, engines
from longlag.engines.cpu.cache import folder as cache
from longlag.engines.cpu.cache import machine
from longlag.engines.cpu.codegen import generate
from longlag.engines.cpu.runtime import plan, program
from longlag.engines.cpu.simd import product


def forget():
    """No kernel of a cell is in memory; products, which take longer to build, stay."""
    plan.forget()
    program.program.cache_clear()
    for key in [key for key in machine._loaded if not key[0].startswith("product")]:
        del machine._loaded[key]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and no kernel in memory."""
    monkeypatch.setattr(machine, "folder", lambda: tmp_path)
    forget()
    yield tmp_path
    forget()


def run_static():
    """y = tanh(W x / 2) for one step; the smallest kernel there is."""
    x, W = torch.ones(1, 1, 1, dtype=torch.float64), torch.full((2, 1), 0.5, dtype=torch.float64)
    y, _ = engines.run("cpu", cells.static, x, engines.Weights(W), ())
    assert torch.allclose(y, torch.tanh(torch.full((1, 1, 2), 0.25, dtype=torch.float64)))


def test_source_is_readable_and_named_after_its_content(folder):
    run_static()
    (path,) = folder.glob("static*.py")
    assert path.name.startswith("static_float64_")
    assert "y_new = tanh(number(0.5)*a)" in path.read_text()
    assert cells.lstm.source("cpu").count("def ") == 2
    with pytest.raises(ValueError, match=r"engine must be one of \['torch', 'js', 'cpu', 'gpu'\], got 'java'"):
        cells.lstm.source("java")


def test_damaged_machine_code_is_rebuilt(folder):
    run_static()
    (path,) = folder.glob("static*.o")  # a forward pass needs no backward kernel
    for damage in (lambda code: b"", lambda code: code[:-5], lambda code: code[:50] + b"?" + code[51:]):
        path.write_bytes(damage(path.read_bytes()))
        assert cache.read(path) is None
        forget()
        run_static()
        assert cache.read(path) is not None


def test_an_unusable_folder_warns_once_and_runs(tmp_path, monkeypatch):
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    monkeypatch.setattr(cache, "wanted", lambda: blocked / "kernels")
    forget()
    cache.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="the kernel cache .* is not used: .* built anew in every process"):
        run_static()
    forget()
    run_static()  # a second warning would be an error
    forget()


def test_a_second_process_uses_the_cache_and_loads_no_compiler(tmp_path):
    code = (
        "import sys, torch, longlag as ll; from longlag.engines.cpu.cache import machine;"
        "ll.LocalFeedback(1, 2, feedback='static')(torch.zeros(1, 1, 1));"
        "print(len(machine.build_seconds), 'numba' in sys.modules)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def run():
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return run.stdout.split()

    assert run() == ["3", "True"]  # the cell's forward kernel, multiply, pack
    assert run() == ["0", "False"]
    assert list(tmp_path.rglob("static_float32_*.forward.o"))


def test_a_kernel_that_would_call_python_is_not_built():
    from longlag.engines.cpu.cache.compile import machine_code

    def allocates(table, first, last, piece):
        table[0] = len(str(first))

    with pytest.raises(Exception, match=r"NRT|allocates calls"):
        machine_code(allocates)


def test_several_writers_at_once_leave_one_good_file(folder):
    text = generate.source(cells.static, "float32", norm=False)
    data = text.encode()
    threads = [
        threading.Thread(target=cache.write, args=(folder / "kernel.py", data), kwargs={"checksum": False})
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "kernel.py").read_text() == text
    assert [path.name for path in folder.iterdir()] == ["kernel.py"]


def test_kernels_are_loaded_once_however_many_cells_there_are(monkeypatch):
    layers, x = [ll.LSTM(2, 3), ll.GRU(2, 3), ll.Elman(2, 3), ll.Leaky(2, 3)], torch.randn(4, 2, 2)
    loaded, load = [], machine.load
    monkeypatch.setattr(machine, "load", lambda *words: loaded.append(words[:3]) or load(*words))
    forget()
    for _ in range(3):
        for layer in layers:
            layer(x)[0].sum().backward()
    assert len(loaded) == len(set(loaded))
    assert {part for _, _, part in loaded} >= {"forward", "backward"}


@pytest.mark.parametrize(
    ("name", "letter", "shape"),
    [("weight_ih", "W", (20, 2)), ("weight_hh", "U", (2, 2)), ("bias_ih", "b_x", (4,)), ("bias_hh", "bias_hh", (4,))],
)
def test_what_would_be_read_beyond_its_end_is_refused(name, letter, shape):
    layer, x = ll.LSTM(3, 5), torch.randn(4, 2, 3)
    good = getattr(layer, f"{name}_l0")
    setattr(layer, f"{name}_l0", torch.nn.Parameter(torch.zeros(shape)))
    match = f"engine 'cpu': {letter} of cell lstm must have shape {tuple(good.shape)}, got {shape}"
    with pytest.raises(ValueError, match=re.escape(match)):
        layer(x)
    setattr(layer, f"{name}_l0", torch.nn.Parameter(good.detach().double()))
    with pytest.raises(TypeError, match=r"must be torch.float32 .*like .*, got torch.float64|like the weights"):
        layer(x)


def test_what_is_missing_is_refused():
    x, W, U = torch.randn(4, 2, 3), torch.zeros(5, 3), torch.zeros(5, 5)
    with pytest.raises(ValueError, match=r"engine 'cpu': U of cell elman must have shape \(5, 5\), got none"):
        engines.run("cpu", cells.elman, x, engines.Weights(W), (None,))
    with pytest.raises(ValueError, match=r"engine 'cpu': y_0 of cell elman must have shape \(2, 5\), got \(1, 5\)"):
        engines.run("cpu", cells.elman, x, engines.Weights(W, U=U), (torch.zeros(1, 5),))


def test_an_input_that_outlived_torch_func_is_taken():
    layer, left = ll.LSTM(3, 5), []
    torch.func.grad(lambda x: left.append(2 * x) or x.sum())(x := torch.randn(4, 2, 3))
    assert torch.equal(layer(left[0])[0], layer(2 * x)[0])


def test_what_cannot_be_printed_is_refused_by_name(monkeypatch):
    odd = helpers.ll.cell(gates="a", dense=False)(lambda a: cells.tanh(a))
    monkeypatch.setattr(odd, "expressions", (sympy.Function("airy")(sympy.Symbol("a", real=True)),))
    with pytest.raises(ValueError, match=r"engine 'cpu' cannot print airy\(…\) .*; engine='reference' can"):
        generate.source(odd, "float32", norm=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("M", "K", "N"),
    [(1, 1, 1), (3, 5, 7), (8, 16, 64), (13, 33, 100), (7, 300, 5), (1, 4, 33), (1, 66, 16), (1, 7, 70), (1, 21, 57)],
)
def test_products(dtype, M, K, N):
    rng = np.random.default_rng(0)
    A, C = rng.normal(size=(M, K)).astype(dtype), rng.normal(size=(M, N)).astype(dtype)
    edge, tolerance = np.empty(M * 64, dtype), {np.float32: 3e-6, np.float64: 1e-14}[dtype]
    for transposed in (True, False):
        U = rng.normal(size=(N, K) if transposed else (K, N)).astype(dtype)
        expected = A.astype(np.float64) @ (U.T if transposed else U)
        for add, alone in itertools.product((True, False), repeat=2):
            ours, P = C.copy(), product.pack(U, transposed)
            product.multiply(A.reshape(-1), 0, K, M, K, P, ours.reshape(-1), 0, N, add, edge, alone)
            assert np.abs(ours - expected - add * C).max() <= tolerance * K
        stored = product.multiply_by_rows if transposed else product.multiply_by_columns
        for add in (True, False):
            ours = C.copy()
            stored(A.reshape(-1), 0, K, M, K, U.reshape(-1), ours.reshape(-1), 0, N, add, edge)
            assert np.abs(ours - expected - add * C).max() <= tolerance * K
            for m in range(M):  # a row has the same bits alone
                row = C[m].copy()
                stored(A[m], 0, K, 1, K, U.reshape(-1), row, 0, N, add, edge)
                assert (row == ours[m]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (32, 16), (64, 32), (70, 33), (5, 100), (33, 7)])
def test_packed_matrices(dtype, rows, columns):
    """Panels of w columns of Uᵀ or U, each contiguous, the last one filled up with zeros."""
    U = np.random.default_rng(0).normal(size=(rows, columns)).astype(dtype)
    for transposed in (True, False):
        matrix = U.T if transposed else U
        w = product.VECTORS * product.LANES[dtype]
        padded = np.zeros((len(matrix), -(-matrix.shape[1] // w) * w), dtype)
        padded[:, : matrix.shape[1]] = matrix
        panels = padded.reshape(len(matrix), -1, w).transpose(1, 0, 2)
        assert (product.pack(U, transposed) == panels.reshape(-1)).all()


def test_no_column_or_row_beyond_a_stored_matrix_is_read():
    """The matrix ends where its page ends; the next page may not be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    page, K, N = mmap.PAGESIZE, 21, 37
    memory = mmap.mmap(-1, 4 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(base + 3 * page), page, 0) == 0
    for transposed, multiply in ((True, product.multiply_by_rows), (False, product.multiply_by_columns)):
        start = 3 * page - 4 * N * K
        U = np.frombuffer(memory, np.float32, N * K, start)
        U[:] = np.random.default_rng(0).normal(size=N * K)
        A, C, edge = np.ones((9, K), np.float32), np.zeros((9, N), np.float32), np.empty(9 * 64, np.float32)
        multiply(A.reshape(-1), 0, K, 9, K, U, C.reshape(-1), 0, N, False, edge)
        sums = U.reshape(N, K).sum(1) if transposed else U.reshape(K, N).sum(0)
        np.testing.assert_allclose(C, np.tile(sums, (9, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["outer", "outer_narrow"])
@pytest.mark.parametrize(
    ("K", "M", "N"), [(0, 9, 3), (1, 1, 1), (100, 64, 8), (300, 13, 16), (700, 100, 70), (257, 8, 32)]
)
def test_sums_of_outer_products(dtype, kernel, K, M, N):
    """C = Σ_k A_k B_kᵀ and Σ_k A_k, with B in two places and the tiles in two pieces."""
    rng, tolerance = np.random.default_rng(0), {np.float32: 3e-6, np.float64: 1e-14}[dtype]
    A, B = rng.normal(size=(K, M)).astype(dtype), rng.normal(size=(K, N)).astype(dtype)
    early, late = B[: K // 3].copy(), B[K // 3 :].copy()
    C, sums, again = np.full((M, N), np.nan, dtype), np.full(M, np.nan, dtype), np.full(M, np.nan, dtype)
    scratch = np.full(2 * (machine.BLOCK * (8 + N + 64) + 16 * 64), np.nan, dtype)
    at = {name: value.ctypes.data for name, value in locals().items() if isinstance(value, np.ndarray)}
    words = [at["A"], M, K, at["early"], len(early), at["late"], N, at["C"], at["sums"], at["again"], at["scratch"]]
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_ssize_t] * 14)
    call, nothing, tiles = kind(program.product(kernel, np.dtype(dtype).name)), ctypes.c_void_p(), -(-M // 8)
    for piece, (first, last) in enumerate([(0, tiles // 2), (tiles // 2, tiles)]):
        call(ctypes.addressof(nothing), None, *words, first, last, piece)
    assert np.abs(C - A.T.astype(np.float64) @ B).max() <= tolerance * max(K, 1)
    assert np.abs(sums - A.sum(0, dtype=np.float64)).max() <= tolerance * max(K, 1)
    assert (sums == again).all()
