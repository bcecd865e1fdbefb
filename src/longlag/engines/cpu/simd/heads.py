"""Products with a matrix of blocks: for every gate, U consists of blocks on the diagonal, one per head.

Blocks are packed like matrices, gate by gate. U is (G·H, H); D = H/heads units of a head. The number of heads comes in
the high bits of a kernel's options.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import PLAIN, flat, row
from longlag.engines.cpu.simd.job import HEADS
from longlag.engines.cpu.simd.product import multiply_part, pack_part, width


@njit(**PLAIN)
def size_of_block(P, D):
    """Numbers in a packed block."""
    w = width(P)
    return (D + w - 1) // w * w * D


def multiply_heads(number: Any) -> Any:
    def kernel(A, distance, M, K, P, C, N, options, edge):
        """C (+)= A·P, block by block; arguments as in `product_kernels`."""
        rows, packed, result, edge = flat(A, number), flat(P, number), flat(C, number), flat(edge, number)
        heads, add, single, H = options >> HEADS, options & 1 != 0, options & 2 != 0, min(K, N)
        D, forward, gates = H // heads, K <= N, max(K, N) // H
        size = size_of_block(packed, D)
        for gate in range(gates):
            more = add or (gate > 0 and not forward)  # backwards, all gates go to the same columns
            for head in range(heads):
                read, into = head * D, head * D
                if forward:
                    into += gate * H
                else:
                    read += gate * H
                block = row(packed, (gate * heads + head) * size, size)
                multiply_part(rows, read, distance, M, D, block, result, into, N, D, more, edge, single)

    return kernel


def pack_heads(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        """Pack the blocks of U (rows, columns); heads in the high bits of ``transposed``."""
        packed, matrix, heads = flat(P, number), flat(U, number), transposed >> HEADS
        D = columns // heads
        size = size_of_block(packed, D)
        for gate in range(rows // columns):
            for head in range(heads):
                start = (gate * columns + head * D) * columns + head * D
                into = row(packed, (gate * heads + head) * size, size)
                pack_part(into, row(matrix, start, 0), D, D, columns, transposed & 1 != 0)

    return kernel
