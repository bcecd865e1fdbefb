"""Matrix products for recurrent steps: C += A·P with P packed once and used at every time step.

A row of the result is summed in one fixed order, whatever rows are computed beside it: results do not depend on how
a batch is cut into threads. The tile (8 rows × 2 vectors) is written as LLVM vectors, because a loop would not be
kept in registers.
"""

import itertools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from longlag.engines import _private
from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.cache.compile import OPTIONS, PLAIN
from longlag.engines.cpu.cache.machine import VECTOR_BYTES, VECTORS
from longlag.engines.cpu.simd.functions import FLAGS, intrinsic, llvm_intrinsic, splat
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


def _place(context, builder, kind, arguments, vector):
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


def _tile(rows: int, width: int = VECTORS, panel: int | None = None, sums_of: int = 1) -> Any:
    """``tile(A, a, row, deep, P, p, K, C, c, column, add)``: rows × (width vectors) of C (+)= A·P, K deep.

    a, p and c are where the tile begins in A, P and C (flat arrays), row and column the distance between rows of A
    and of C, deep that between columns of A. A panel of P is as wide as the tile, or ``panel`` vectors. Every sum over
    K is the sum of so many (``sums_of``, which must divide K): they do not wait for each other.
    """

    @intrinsic
    def tile(typing, A, a, row, deep, P, p, K, C, c, column, add):
        number = C.dtype
        lanes = VECTOR_BYTES * 8 // number.bitwidth
        signature = types.void(A, *[types.intp] * 3, P, *[types.intp] * 2, C, *[types.intp] * 2, types.boolean)

        def codegen(context, builder, signature, arguments):
            A, a, row, deep, P, p, K, C, c, column, add = arguments
            vector = ir.VectorType(context.get_data_type(number), lanes)
            align = number.bitwidth // 8

            def data(k, value, start):
                return builder.gep(_private.array_data(context, builder, signature.args[k], value), [start])

            def vectors(pointer):
                for v in range(width):
                    yield builder.bitcast(builder.gep(pointer, [K.type(v * lanes)]), vector.as_pointer())

            A, P, C = data(0, A, a), data(4, P, p), data(7, C, c)
            entry, loop, body, end = builder.block, *(builder.append_basic_block(n) for n in ("loop", "body", "end"))
            builder.branch(loop)
            builder.position_at_end(loop)
            k, A_k, P_k = builder.phi(K.type), builder.phi(A.type), builder.phi(P.type)
            parts = [[[builder.phi(vector) for _ in range(width)] for _ in range(rows)] for _ in range(sums_of)]
            for phi, start in ((k, K.type(0)), (A_k, A), (P_k, P)):
                phi.add_incoming(start, entry)
            for phi in itertools.chain(*itertools.chain(*parts)):
                phi.add_incoming(ir.Constant(vector, None), entry)
            builder.cbranch(builder.icmp_signed("<", k, K), body, end)
            builder.position_at_end(body)
            left_at, right_at = A_k, P_k
            for part in parts:
                right = [builder.load(q, align=align) for q in vectors(right_at)]
                for r in range(rows):
                    left = splat(builder, builder.load(builder.gep(left_at, [builder.mul(row, K.type(r))])), vector)
                    for v in range(width):
                        part[r][v].add_incoming(llvm_intrinsic(builder, "fma", left, right[v], part[r][v]), body)
                left_at = builder.gep(left_at, [deep])
                right_at = builder.gep(right_at, [K.type((panel or width) * lanes)])
            k.add_incoming(builder.add(k, K.type(sums_of)), body)
            A_k.add_incoming(left_at, body)
            P_k.add_incoming(right_at, body)
            builder.branch(loop)
            builder.position_at_end(end)
            sums = parts[0]
            for part in parts[1:]:
                sums = [[builder.fadd(x, y) for x, y in zip(*pair)] for pair in zip(sums, part)]
            targets = [list(vectors(builder.gep(C, [builder.mul(column, K.type(r))]))) for r in range(rows)]
            with builder.if_else(add if add.type.width == 1 else builder.trunc(add, ir.IntType(1))) as (
                then,
                otherwise,
            ):
                with then:  # added at the end, not the start: sums in blocks lose less to rounding
                    for q, value in zip(itertools.chain(*targets), itertools.chain(*sums)):
                        builder.store(builder.fadd(builder.load(q, align=align), value), q, align=align)
                with otherwise:
                    for q, value in zip(itertools.chain(*targets), itertools.chain(*sums)):
                        builder.store(value, q, align=align)
            return context.get_dummy_value()

        return signature, codegen

    return tile


tile8, _tile4, _tile2, _tile1 = (_tile(rows) for rows in (8, 4, 2, 1))
narrow8 = _tile(8, 1)
_alone, _alone_narrow = _tile(1, sums_of=4), _tile(1, 1, VECTORS, sums_of=4)


@njit(**PLAIN)
def width(matrix):
    """Columns of a tile for the type of this array."""
    return VECTORS * VECTOR_BYTES // matrix.itemsize


@njit(**PLAIN)
def pack_into(P, U, rows, columns, transposed):
    """U (rows, columns), flat, for products with Uᵀ (columns, rows), or with U itself if not ``transposed``.

    Panels of ``width`` columns, each contiguous; the last is filled up with zeros.
    """
    N, K = (rows, columns) if transposed else (columns, rows)
    w = width(U)
    for start in range(0, N, w):
        panel = start * K
        for k in range(K):
            for n in range(min(w, N - start)):
                P[panel + k * w + n] = U[(start + n) * columns + k] if transposed else U[k * columns + start + n]
            for n in range(min(w, N - start), w):
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
def _panel(A, a, row, M, K, P, p, C, c, column, add):
    """All rows of one panel."""
    m = 0
    while m + 8 <= M:
        tile8(A, a + m * row, row, 1, P, p, K, C, c + m * column, column, add)
        m += 8
    if m + 4 <= M:
        _tile4(A, a + m * row, row, 1, P, p, K, C, c + m * column, column, add)
        m += 4
    if m + 2 <= M:
        _tile2(A, a + m * row, row, 1, P, p, K, C, c + m * column, column, add)
        m += 2
    if m < M:
        _tile1(A, a + m * row, row, 1, P, p, K, C, c + m * column, column, add)


@njit(**PLAIN)
def multiply(A, a, row, M, K, P, C, c, N, add, edge, alone=False):
    """C (M, N) = A (M, K)·P, or C += A·P if ``add``.

    A and C are flat arrays in which the matrices begin at a and c; rows of A are ``row`` apart, those of C N.
    ``edge`` has room for M · width numbers. ``alone``: if A has only one row, it is so in all calls.
    """
    column = N
    w = width(P)
    whole = N // w
    rest = N - whole * w
    if M == 1 and alone and K >= 4:  # it would wait for every sum
        most = K // 4 * 4
        for panel in range(whole):
            _alone(A, a, row, 1, P, panel * w * K, most, C, c + panel * w, column, add)
        if 2 * rest > w:
            _alone(A, a, row, 1, P, whole * w * K, most, edge, 0, w, False)
        elif rest:
            _alone_narrow(A, a, row, 1, P, whole * w * K, most, edge, 0, w, False)
        for panel in range(whole if most < K else 0):
            _tile1(A, a + most, row, 1, P, (panel * K + most) * w, K - most, C, c + panel * w, column, True)
        if rest and most < K:
            _tile1(A, a + most, row, 1, P, (whole * K + most) * w, K - most, edge, 0, w, True)
    elif M == 1:  # no calls: a lone row would wait for them
        for panel in range(whole):
            _tile1(A, a, row, 1, P, panel * w * K, K, C, c + panel * w, column, add)
        if rest:
            _tile1(A, a, row, 1, P, whole * w * K, K, edge, 0, w, False)
    else:
        for panel in range(whole):
            _panel(A, a, row, M, K, P, panel * w * K, C, c + panel * w, column, add)
        if rest:
            _panel(A, a, row, M, K, P, whole * w * K, edge, 0, w, False)
    if rest:
        for m in range(M):
            start = c + m * column + whole * w
            for n in range(rest):
                C[start + n] = edge[m * w + n] + (C[start + n] if add else C.dtype.type(0))
