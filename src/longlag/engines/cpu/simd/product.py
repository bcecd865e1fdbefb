"""Matrix products for recurrent steps: C += A·P with P packed once, or C += A·U with U as it is stored.

Packing costs as much as a few dozen rows of the product, so short calls do not pack. A row of the result is summed in a
fixed order, independent of the other rows: results do not depend on how a batch is divided among threads.
"""

from typing import Any

import numpy as np
from numba import njit, types

from longlag.engines import _private
from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.cache.compile import OPTIONS, PLAIN
from longlag.engines.cpu.cache.machine import VECTOR_BYTES, VECTORS
from longlag.engines.cpu.simd.functions import FLAGS, intrinsic, splat
from longlag.engines.cpu.simd.tiles import dot_products, edge_tile, tile, transpose
from longlag.engines.cpu.simd.vector import Vector
from longlag.engines.cpu.simd.vector import total as total

LANES = {np.float32: VECTOR_BYTES // 4, np.float64: VECTOR_BYTES // 8}


@intrinsic
def load(typing, row, unit):
    """A vector of numbers, from this unit of a contiguous row on."""
    vector = Vector(row.dtype, VECTOR_BYTES * 8 // row.dtype.bitwidth)

    def codegen(context, builder, signature, arguments):
        pointer = _place(context, builder, signature.args[0], arguments, vector)
        return builder.load(pointer, align=row.dtype.bitwidth // 8)

    return vector(row, types.intp), codegen


@intrinsic
def store(typing, row, unit, vector):
    """Write a vector into a contiguous row, from this unit on."""

    def codegen(context, builder, signature, arguments):
        pointer = _place(context, builder, signature.args[0], arguments, vector)
        builder.store(arguments[2], pointer, align=row.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(row, types.intp, vector), codegen


@intrinsic
def broadcast(typing, number):
    """A number in every lane of a vector."""
    vector = Vector(number, VECTOR_BYTES * 8 // number.bitwidth)

    def codegen(context, builder, signature, arguments):
        return splat(builder, arguments[0], context.get_value_type(vector))

    return vector(number), codegen


def _place(context: Any, builder: Any, kind: Any, arguments: Any, vector: Vector) -> Any:
    data = _private.array_data(context, builder, kind, arguments[0])
    return builder.bitcast(builder.gep(data, [arguments[1]]), context.get_value_type(vector).as_pointer())


@njit(**FLAGS, forceinline=True)
def square(x):
    """x²"""
    return x * x


@njit(**FLAGS, forceinline=True)
def cube(x):
    """x³"""
    return x * x * x


tile8, _tile4, _tile2, _tile1 = (tile(rows) for rows in (8, 4, 2, 1))
narrow8 = tile(8, 1)
_edge8, _edge1 = edge_tile(8), edge_tile(1)
_single, _single_narrow, _narrow1 = tile(1, sums_of=4), tile(1, 1, sums_of=4), tile(1, 1)
_single_wide = tile(1, 8)
DEPTH = 64  # rows of a stored matrix read together: all of their columns, then the next rows


@njit(**PLAIN)
def width(matrix):
    """Columns of a panel for the type of this array."""
    return VECTORS * VECTOR_BYTES // matrix.itemsize


@njit(**PLAIN)
def pack_into(P, U, rows, columns, transposed):
    """Pack U (rows, columns), flat, for products with Uᵀ (columns, rows), or with U itself if not ``transposed``.

    Panels of ``width`` columns, each contiguous; the last is filled up with zeros.
    """
    pack_part(P, U, rows, columns, columns, transposed)


@njit(**PLAIN)
def pack_part(P, U, rows, columns, apart, transposed):
    """`pack_into` for a part of a matrix, whose rows are ``apart``."""
    N, K = (rows, columns) if transposed else (columns, rows)
    w = width(U)
    lanes = w // VECTORS
    for start in range(0, N, w):
        panel, count = start * K, min(w, N - start)
        whole = K // lanes * lanes if count == w else 0
        if not transposed and count == lanes:  # the last panel holds one vector of columns
            for k in range(K):
                store(P, panel + k * w, load(U, k * apart + start))
                for v in range(lanes, w, lanes):
                    store(P, panel + k * w + v, broadcast(U.dtype.type(0)))
            continue
        for k in range(0, whole, lanes):
            for v in range(0, w, lanes):
                if transposed:
                    transpose(U, (start + v) * apart + k, apart, P, panel + k * w + v, w)
                else:
                    for j in range(k, k + lanes):
                        store(P, panel + j * w + v, load(U, j * apart + start + v))
        for k in range(whole, K):
            for n in range(count):
                P[panel + k * w + n] = U[(start + n) * apart + k] if transposed else U[k * apart + start + n]
            for n in range(count, w):
                P[panel + k * w + n] = U.dtype.type(0)


@array_kernel(**OPTIONS)
def pack(U, transposed):
    """U (N, K) packed for products with Uᵀ, or with U (K, N) if not ``transposed``."""
    N, K = U.shape if transposed else U.shape[::-1]
    w = width(U)
    P = np.empty((N + w - 1) // w * w * K, U.dtype)
    pack_into(P, U.reshape(-1), U.shape[0], U.shape[1], transposed)
    return P


@njit(**PLAIN)
def _panel(A, a, row, M, K, P, p, across, C, c, column, add):
    """M rows of C, as many columns as a tile is wide."""
    m = 0
    while m + 8 <= M:
        tile8(A, a + m * row, row, 1, P, p, across, K, C, c + m * column, column, add)
        m += 8
    if m + 4 <= M:
        _tile4(A, a + m * row, row, 1, P, p, across, K, C, c + m * column, column, add)
        m += 4
    if m + 2 <= M:
        _tile2(A, a + m * row, row, 1, P, p, across, K, C, c + m * column, column, add)
        m += 2
    if m < M:
        _tile1(A, a + m * row, row, 1, P, p, across, K, C, c + m * column, column, add)


@njit(**PLAIN)
def _edge_panel(A, a, row, M, K, P, p, across, edge, count):
    """M rows of ``edge``, one vector wide, from ``count`` columns of P."""
    lanes = width(P) // VECTORS
    m = 0
    while m + 8 <= M:
        _edge8(A, a + m * row, row, 1, P, p, across, K, edge, m * lanes, lanes, False, count)
        m += 8
    while m < M:
        _edge1(A, a + m * row, row, 1, P, p, across, K, edge, m * lanes, lanes, False, count)
        m += 1


@njit(**PLAIN)
def _copy_edge(edge, width, C, c, M, N, count, add):
    """``count`` columns of C, from c on, (+)= the first columns of ``edge`` (M, width); rows of C are N apart."""
    for m in range(M):
        start = c + m * N
        for n in range(count):
            C[start + n] = edge[m * width + n] + (C[start + n] if add else C.dtype.type(0))


@njit(**PLAIN)
def multiply(A, a, row, M, K, P, C, c, N, add, edge, single=False):
    """C (M, N) = A (M, K)·P, or C += A·P if ``add``, P packed.

    A and C are flat arrays in which the matrices begin at a and c; rows of A are ``row`` apart, those of C N.
    ``edge`` is a buffer of M · width numbers. ``single``: the whole batch is one row.
    """
    multiply_part(A, a, row, M, K, P, C, c, N, N, add, edge, single)


@njit(**PLAIN)
def multiply_part(A, a, row, M, K, P, C, c, apart, N, add, edge, single):
    """`multiply` into N columns of a matrix whose rows are ``apart``."""
    w = width(P)
    whole = N // w
    rest = N - whole * w
    last = whole * w * K
    vector = rest == w // VECTORS  # the columns that are left fill a vector
    if M == 1 and single and K >= 4:  # latency-bound: use four accumulators
        most = K // 4 * 4
        for panel in range(whole):
            _single(A, a, row, 1, P, panel * w * K, w, most, C, c + panel * w, apart, add)
        if 2 * rest > w:
            _single(A, a, row, 1, P, last, w, most, edge, 0, w, False)
        elif vector:
            _single_narrow(A, a, row, 1, P, last, w, most, C, c + whole * w, apart, add)
            _narrow1(A, a + most, row, 1, P, last + most * w, w, K - most, C, c + whole * w, apart, True)
            rest = 0
        elif rest:
            _single_narrow(A, a, row, 1, P, last, w, most, edge, 0, w, False)
        for panel in range(whole if most < K else 0):
            _tile1(A, a + most, row, 1, P, (panel * K + most) * w, w, K - most, C, c + panel * w, apart, True)
        if rest and most < K:
            _tile1(A, a + most, row, 1, P, last + most * w, w, K - most, edge, 0, w, True)
    elif M == 1:  # inlined: for a single row the call overhead counts
        for panel in range(whole):
            _tile1(A, a, row, 1, P, panel * w * K, w, K, C, c + panel * w, apart, add)
        if rest:
            _tile1(A, a, row, 1, P, last, w, K, edge, 0, w, False)
    else:
        for panel in range(whole):
            _panel(A, a, row, M, K, P, panel * w * K, w, C, c + panel * w, apart, add)
        if rest:
            _panel(A, a, row, M, K, P, last, w, edge, 0, w, False)
    if rest:
        _copy_edge(edge, w, C, c + whole * w, M, apart, rest, add)


@njit(**PLAIN)
def multiply_by_rows(A, a, row, M, K, U, C, c, N, add, edge):
    """C (M, N) (+)= A·Uᵀ with U (N, K) as stored: dot products along its rows. Arguments as in `multiply`."""
    lanes = width(U) // VECTORS
    for n in range(0, N // lanes * lanes, lanes):
        for m in range(M):
            dot_products(A, a + m * row, U, n * K, K, lanes, K, C, c + m * N + n, add)
    rest = N % lanes
    if rest:
        for m in range(M):
            dot_products(A, a + m * row, U, (N - rest) * K, K, rest, K, edge, m * lanes, False)
        _copy_edge(edge, lanes, C, c + N - rest, M, N, rest, add)


@njit(**PLAIN)
def multiply_by_columns(A, a, row, M, K, U, C, c, N, add, edge):
    """C (M, N) (+)= A·U with U (K, N) as stored, `DEPTH` rows at a time. Arguments as in `multiply`."""
    w = width(U)
    lanes = w // VECTORS
    for k in range(0, K, DEPTH):
        depth, more = min(DEPTH, K - k), add or k > 0
        n = 0
        while M == 1 and n + 8 * lanes <= N:
            _single_wide(A, a + k, row, 1, U, k * N + n, N, depth, C, c + n, N, more)
            n += 8 * lanes
        while n + w <= N:
            _panel(A, a + k, row, M, depth, U, k * N + n, N, C, c + n, N, more)
            n += w
        while n < N:
            count = min(lanes, N - n)
            _edge_panel(A, a + k, row, M, depth, U, k * N + n, N, edge, count)
            _copy_edge(edge, lanes, C, c + n, M, N, count, more)
            n += count
