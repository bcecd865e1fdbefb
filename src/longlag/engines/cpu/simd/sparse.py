"""Products with a matrix that is mostly zeros: only the entries that are not zero are stored and read.

The packed matrix is, for every column n of the result, the entries that enter the column: their rows and values, in the
order of the rows (layout: see `job`). A matrix with more entries than expected is read as stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.compile import PLAIN, address, flat
from longlag.engines.cpu.simd.job import ARGUMENTS, CAPACITY, COUNT, ENTRIES, MATRIX, STARTS, THREADS
from longlag.engines.cpu.simd.product import multiply_by_columns, multiply_by_rows

BY_ROWS, BY_COLUMNS = -1, -2  # in place of the number of entries


@njit(**PLAIN)
def pack_entries(head, U, rows, columns, transposed):
    """Store the entries of U (rows, columns), flat, that are not zero; see `product.pack_into`."""
    N = rows if transposed else columns
    head[MATRIX] = address(U, 0)
    for n in range(STARTS, STARTS + N + 1):
        head[n] = 0
    for i in range(rows):
        for k in range(columns):
            if U[i * columns + k] != 0:
                head[STARTS + 1 + (i if transposed else k)] += 1
    for n in range(N):
        head[STARTS + 1 + n] += head[STARTS + n]
    count = head[STARTS + N]
    if count > head[CAPACITY]:
        head[COUNT] = BY_ROWS if transposed else BY_COLUMNS
        return
    head[COUNT] = count
    head[ENTRIES] = address(head, STARTS + N + 1 + head[CAPACITY] // 2 + 1)
    values, at = flat(head[ENTRIES], U.dtype), flat(address(head, STARTS + N + 1), np.uint32)
    for i in range(rows):
        for k in range(columns):
            value = U[i * columns + k]
            if value != 0:
                n = i if transposed else k
                to = head[STARTS + n]
                values[to], at[to] = value, np.uint32(k if transposed else i)
                head[STARTS + n] += 1
    for n in range(N, 0, -1):
        head[STARTS + n] = head[STARTS + n - 1]
    head[STARTS] = 0


@njit(**PLAIN)
def columns_of(head, A, distance, M, C, N, first, last, add):
    """Columns first:last of C (M, N) (+)= A·P, each summed in one fixed order."""
    values, at = flat(head[ENTRIES], A.dtype), flat(address(head, STARTS + N + 1), np.uint32)
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)  # unsigned: no negative indices
    for m in range(M):
        row = np.uint64(m * distance)
        for n in range(first, last):
            k, end = np.uint64(head[STARTS + n]), np.uint64(head[STARTS + n + 1])
            a = b = c = d = A.dtype.type(0)
            while k + four <= end:  # four sums: one would wait for every addition
                a += values[k] * A[row + at[k]]
                b += values[k + one] * A[row + at[k + one]]
                c += values[k + two] * A[row + at[k + two]]
                d += values[k + three] * A[row + at[k + three]]
                k += four
            while k < end:
                a += values[k] * A[row + at[k]]
                k += one
            to = np.uint64(m * N + n)
            total = (a + b) + (c + d)
            C[to] = C[to] + total if add else total


@njit(**PLAIN)
def product(head, A, distance, M, K, C, N, add, edge):
    """C (M, N) (+)= A·P."""
    if head[COUNT] >= 0:
        columns_of(head, A, distance, M, C, N, 0, N, add)
    elif head[COUNT] == BY_ROWS:
        multiply_by_rows(A, 0, distance, M, K, flat(head[MATRIX], A.dtype), C, 0, N, add, edge)
    else:
        multiply_by_columns(A, 0, distance, M, K, flat(head[MATRIX], A.dtype), C, 0, N, add, edge)


@njit(**PLAIN)
def part_of_product(job, P, part):
    """One part of the columns, for `shared`; a matrix with too many entries is left to the first part."""
    A, K, C, N = job[ARGUMENTS], job[ARGUMENTS + 1], job[ARGUMENTS + 2], job[ARGUMENTS + 3]
    head, add, edge, threads = (
        flat(address(P, 0), np.int64),
        job[ARGUMENTS + 4] & 1 != 0,
        job[ARGUMENTS + 5],
        job[THREADS],
    )
    rows, result = flat(A, P.dtype), flat(C, P.dtype)
    if head[COUNT] >= 0:
        columns_of(head, rows, K, 1, result, N, N * part // threads, N * (part + 1) // threads, add)
    elif part == 0:
        product(head, rows, K, 1, K, result, N, add, flat(edge, P.dtype))


def multiply_sparse(number: Any) -> Any:
    def kernel(A, distance, M, K, P, C, N, options, edge):
        """C (+)= A·P, P packed by `pack_sparse`; arguments as in `product_kernels`."""
        rows, result = flat(A, number), flat(C, number)
        product(flat(P, np.int64), rows, distance, M, K, result, N, options & 1 != 0, flat(edge, number))

    return kernel


def pack_sparse(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        """Pack the entries of U; the runtime has written the capacity."""
        pack_entries(flat(P, np.int64), flat(U, number), rows, columns, transposed != 0)

    return kernel
