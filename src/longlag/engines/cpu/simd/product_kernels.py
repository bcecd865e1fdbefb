"""Products as separate kernels: the kernels of all cells share their machine code."""

from typing import Any

import numpy as np
from numba import types

from longlag.engines.cpu.cache.compile import KERNEL, flat, machine_code, row
from longlag.engines.cpu.cache.machine import BLOCK, VECTORS
from longlag.engines.cpu.simd.heads import multiply_heads, pack_heads
from longlag.engines.cpu.simd.product import (
    LANES,
    broadcast,
    load,
    multiply,
    multiply_by_columns,
    multiply_by_rows,
    narrow8,
    pack_into,
    store,
    tile8,
)
from longlag.engines.cpu.simd.shared import multiply_shared, pack_shared, pack_sparse_shared, run_shared
from longlag.engines.cpu.simd.sparse import multiply_sparse, pack_sparse, part_of_product


def _multiply(number: Any) -> Any:
    def kernel(A, distance, M, K, P, C, N, options, edge):
        """C (+)= A·P; options: 1 to add, 2 if the whole batch is one row."""
        rows, result, add, single = flat(A, number), flat(C, number), options & 1 != 0, options & 2 != 0
        multiply(rows, 0, distance, M, K, flat(P, number), result, 0, N, add, flat(edge, number), single)

    return kernel


def _stored(number: Any, product: Any) -> Any:
    def kernel(A, distance, M, K, P, C, N, options, edge):
        """The same with the matrix whose address `_keep_address` left in P."""
        rows, U, result = flat(A, number), flat(flat(P, np.int64)[0], number), flat(C, number)
        product(rows, 0, distance, M, K, U, result, 0, N, options & 1 != 0, flat(edge, number))

    return kernel


def _pack(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        pack_into(flat(P, number), flat(U, number), rows, columns, transposed != 0)

    return kernel


def _keep_address(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        """Replaces packing for products that read U unpacked."""
        flat(P, np.int64)[0] = U

    return kernel


def _outer(number: Any, tile8: Any = tile8, vectors: int = VECTORS, blocks: bool = False) -> Any:
    w = vectors * LANES[number]
    at_once = LANES[number] // 8  # rows of 8 numbers in a vector
    zero, one = number(0), number(1)

    def kernel(A, M, K, early, split, late, N, C, sums, again, scratch, first, last, piece):
        """Rows 8·first : 8·last of C (M, N) = Σ_k A_k B_kᵀ for A (K, M) and B (K, N), and of ``sums`` = Σ_k A_k.

        Rows k < split of B are in ``early``, the others in ``late``; ``again``, if given, is a copy of ``sums``. Every
        entry is summed over K in a fixed order, independent of the number of threads. With ``blocks``, ``again`` is the
        number of heads: entries outside the blocks on the diagonal, of which N/heads rows belong to a head, are zero.
        """
        heads, again = (again, 0) if blocks else (1, again)
        D = N // heads
        summed, twice = sums != 0, again != 0
        A, early, late, C = flat(A, number), flat(early, number), flat(late, number), flat(C, number)
        sums, again, scratch = flat(sums, number), flat(again, number), flat(scratch, number)
        panels = (N + w - 1) // w
        scratch = row(scratch, piece * (BLOCK * (8 + panels * w) + 16 * w), 0)
        left, edge = scratch, row(scratch, BLOCK * 8, 0)
        right = row(scratch, BLOCK * 8 + 16 * w, 0)
        if K == 0:
            for c in range(first * 8 * N, min(last * 8, M) * N):
                C[c] = zero
            for m in range(first * 8, min(last * 8, M) if summed else 0):
                sums[m] = zero
                if twice:
                    again[m] = zero
        for start in range(0, K, BLOCK):
            depth = min(BLOCK, K - start)
            for panel in range(panels):
                columns = min(w, N - panel * w)
                for k in range(depth):
                    to = panel * w * BLOCK + k * w
                    if start + k < split:
                        for n in range(columns):
                            right[to + n] = early[(start + k) * N + panel * w + n]
                    else:
                        for n in range(columns):
                            right[to + n] = late[(start + k - split) * N + panel * w + n]
                    for n in range(columns, w):  # padding of the last panel: ones, which give Σ_k A_k
                        right[to + n] = one
            for tile in range(first, last):
                height = min(8, M - tile * 8)
                # do not pack A if it is read once
                packed = panels > 1 or height < 8 or (summed and N % w == 0)
                if packed and height == 8:
                    for k in range(depth):
                        for m in range(8):
                            left[k * 8 + m] = A[(start + k) * M + tile * 8 + m]
                elif packed:
                    for k in range(depth):
                        for m in range(height):
                            left[k * 8 + m] = A[(start + k) * M + tile * 8 + m]
                        for m in range(height, 8):
                            left[k * 8 + m] = zero
                for panel in range(panels):
                    at, columns = tile * 8 * N + panel * w, min(w, N - panel * w)
                    if blocks:  # no row of the tile belongs to a head with columns in the panel
                        low, high = tile * 8 % N // D, (tile * 8 + height - 1) % N // D
                        outside = panel * w >= (high + 1) * D or panel * w + columns <= low * D
                        if low <= high and outside and not (summed and panel == panels - 1):
                            if start == 0:
                                for m in range(height):
                                    for n in range(columns):
                                        C[at + m * N + n] = zero
                            continue
                    whole = height == 8 and columns == w
                    to, c, apart = (C, at, N) if whole else (edge, 0, w)
                    if packed:
                        tile8(left, 0, 1, 8, right, panel * w * BLOCK, w, depth, to, c, apart, whole and start > 0)
                    else:
                        tile8(A, start * M + tile * 8, 1, M, right, 0, w, depth, to, c, apart, whole and start > 0)
                    if not whole:
                        for m in range(height):
                            for n in range(columns):
                                before = C[at + m * N + n] if start > 0 else zero
                                C[at + m * N + n] = before + edge[m * w + n]
                if summed:
                    if N % w == 0:
                        rows = broadcast(zero)
                        for k in range(0, depth // at_once * at_once, at_once):
                            rows = rows + load(left, k * 8)
                        store(edge, 0, rows)
                        for m in range(7, -1, -1):
                            value = edge[m]
                            for k in range(1, at_once):
                                value += edge[k * 8 + m]
                            for k in range(depth // at_once * at_once, depth):
                                value += left[k * 8 + m]
                            edge[m * w + w - 1] = value
                    for m in range(height):
                        at = tile * 8 + m
                        sums[at] = edge[m * w + w - 1] + (sums[at] if start > 0 else zero)
                        if twice:
                            again[at] = sums[at]

    return kernel


def _words(count: int) -> Any:
    return types.void(*[types.intp] * count)


_MAKERS: dict[str, Any] = {
    "multiply": (_multiply, _words(9)),
    "multiply_by_rows": (lambda number: _stored(number, multiply_by_rows), _words(9)),
    "multiply_by_columns": (lambda number: _stored(number, multiply_by_columns), _words(9)),
    "pack": (_pack, _words(5)),
    "keep_address": (_keep_address, _words(5)),
    "multiply_shared": (multiply_shared, _words(9)),
    "pack_shared": (pack_shared, _words(5)),
    "run_shared": (run_shared, KERNEL),
    "multiply_sparse": (multiply_sparse, _words(9)),
    "pack_sparse": (pack_sparse, _words(5)),
    "multiply_sparse_shared": (lambda number: multiply_shared(number, part_of_product), _words(9)),
    "pack_sparse_shared": (pack_sparse_shared, _words(5)),
    "run_sparse_shared": (lambda number: run_shared(number, part_of_product), KERNEL),
    "outer": (_outer, _words(14)),
    "outer_narrow": (lambda number: _outer(number, narrow8, 1), _words(14)),
    "multiply_heads": (multiply_heads, _words(9)),
    "pack_heads": (pack_heads, _words(5)),
    "outer_heads": (lambda number: _outer(number, blocks=True), _words(14)),
}


def build(name: str, dtype: str) -> tuple[str, bytes]:
    """The source and the machine code of a kernel of `_MAKERS`; ``outer_narrow`` is for N of at most a vector."""
    maker, signature = _MAKERS[name]
    kernel = maker({"float32": np.float32, "float64": np.float64}[dtype])
    return "# see longlag.engines.cpu.simd.product_kernels\n", machine_code(kernel, signature)
