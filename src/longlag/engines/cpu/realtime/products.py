"""Products of matrices with strides of their own, for the kernels of the rule "blocks"."""

from __future__ import annotations

import functools
from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import PLAIN
from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.simd.tiles import tile


@functools.cache
def products_for(number: Any) -> tuple[Any, Any]:
    """``product`` of many rows, ``single`` of one row; the columns N fill whole vectors."""
    lanes = VECTOR_BYTES // number().itemsize
    wide8, wide1, narrow8, narrow1 = tile(8, 3), tile(1, 3), tile(8, 1), tile(1, 1)
    wide_4, narrow_4 = tile(1, 3, sums_of=4), tile(1, 1, sums_of=4)

    @njit(**PLAIN)
    def product(A, a, row, deep, M, K, P, p, across, C, c, column, N, add):
        """C (M, N) (+)= A·P; element (m, k) of A is ``A[a + m·row + k·deep]``, of P ``P[p + k·across + n]``."""
        n = 0
        while n < N:
            wide = n + 3 * lanes <= N
            m = 0
            while m + 8 <= M:
                if wide:
                    wide8(A, a + m * row, row, deep, P, p + n, across, K, C, c + m * column + n, column, add)
                else:
                    narrow8(A, a + m * row, row, deep, P, p + n, across, K, C, c + m * column + n, column, add)
                m += 8
            while m < M:
                if wide:
                    wide1(A, a + m * row, row, deep, P, p + n, across, K, C, c + m * column + n, column, add)
                else:
                    narrow1(A, a + m * row, row, deep, P, p + n, across, K, C, c + m * column + n, column, add)
                m += 1
            n += 3 * lanes if wide else lanes

    @njit(**PLAIN)
    def single(A, a, deep, K, P, p, across, C, c, N, add):
        """C (N,) (+)= A·P for one row, with four sums at once."""
        n, most = 0, K // 4 * 4
        while n < N:
            if n + 3 * lanes <= N:
                wide_4(A, a, 0, deep, P, p + n, across, most, C, c + n, 0, add)
                if most < K:
                    wide1(A, a + most * deep, 0, deep, P, p + n + most * across, across, K - most, C, c + n, 0, True)
                n += 3 * lanes
            else:
                narrow_4(A, a, 0, deep, P, p + n, across, most, C, c + n, 0, add)
                if most < K:
                    narrow1(A, a + most * deep, 0, deep, P, p + n + most * across, across, K - most, C, c + n, 0, True)
                n += lanes

    return product, single
