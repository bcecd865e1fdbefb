"""Register tiles of matrix products, written as LLVM vectors: LLVM would not keep the sums of a loop in registers.

Every sum over K is taken in an order that depends on K alone, so a row of a product has the same bits
independently of the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from longlag.engines import _private
from longlag.engines.cpu.cache.machine import VECTOR_BYTES, VECTORS
from longlag.engines.cpu.simd.functions import intrinsic, llvm_intrinsic, splat

INT = ir.IntType(64)


class _Code:
    """The code emitted by all tiles: pointers into flat arrays, vectors of one number type, a counted loop."""

    def __init__(self, context: Any, builder: Any, signature: Any, number: Any) -> None:
        self.context, self.builder, self.kinds = context, builder, signature.args
        self.lanes, self.align = VECTOR_BYTES * 8 // number.bitwidth, number.bitwidth // 8
        self.vector = ir.VectorType(context.get_data_type(number), self.lanes)

    def pointer(self, k: int, array: Any, start: Any) -> Any:
        """To ``array[start]``, the array being argument k."""
        data = _private.array_data(self.context, self.builder, self.kinds[k], array)
        return self.builder.gep(data, [start])

    def as_vector(self, pointer: Any, offset: int = 0) -> Any:
        place = self.builder.gep(pointer, [INT(offset)]) if offset else pointer
        return self.builder.bitcast(place, self.vector.as_pointer())

    def load(self, pointer: Any, offset: int = 0) -> Any:
        return self.builder.load(self.as_vector(pointer, offset), align=self.align)

    def store(self, value: Any, pointer: Any, offset: int = 0) -> None:
        self.builder.store(value, self.as_vector(pointer, offset), align=self.align)

    def load_some(self, pointer: Any, mask: Any) -> Any:
        """The lanes that ``mask`` selects, zeros elsewhere; memory of the other lanes is not touched."""
        zeros, place = ir.Constant(self.vector, None), self.as_vector(pointer)
        kind = ir.FunctionType(self.vector, [place.type, ir.IntType(32), mask.type, self.vector])
        suffix = f"v{self.lanes}{'f32' if self.align == 4 else 'f64'}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.load.{suffix}")
        return self.builder.call(function, [place, ir.IntType(32)(self.align), mask, zeros])

    def mask(self, count: Any) -> Any:
        """Lanes 0:count."""
        words = ir.VectorType(INT, self.lanes)
        lanes = ir.Constant(words, list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, splat(self.builder, count, words))

    def loop(self, count: Any, *starts: Any) -> tuple[Callable[..., None], list[Any]]:
        """Open ``for k in range(0, count, by)``: returns ``close(by, *following)`` and the values of this round."""
        builder, entry = self.builder, self.builder.block
        head, body, end = (builder.append_basic_block(name) for name in ("loop", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        k, *values = (builder.phi(value.type) for value in (INT(0), *starts))
        for phi, start in zip((k, *values), (INT(0), *starts)):
            phi.add_incoming(start, entry)
        builder.cbranch(builder.icmp_signed("<", k, count), body, end)
        builder.position_at_end(body)

        def close(by: int, *following: Any) -> None:
            for phi, value in zip((k, *values), (builder.add(k, INT(by)), *following)):
                phi.add_incoming(value, builder.block)
            builder.branch(head)
            builder.position_at_end(end)

        return close, values

    def write(self, sums: list[Any], places: list[Any], add: Any) -> None:
        """Store sums, or add them: at the end rather than the start, since sums in blocks lose less to rounding."""
        builder = self.builder
        with builder.if_else(add if add.type.width == 1 else builder.trunc(add, ir.IntType(1))) as (then, otherwise):
            with then:
                for place, value in zip(places, sums):
                    self.store(builder.fadd(self.load(place), value), place)
            with otherwise:
                for place, value in zip(places, sums):
                    self.store(value, place)

    def lanes_of(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """These lanes of a followed by b."""
        index = ir.IntType(32)
        mask = ir.Constant(ir.VectorType(index, len(lanes)), [index(lane) for lane in lanes])
        return self.builder.shuffle_vector(a, b, mask)


def _tile(code: _Code, rows: int, width: int, sums_of: int, arguments: Sequence[Any], mask: Any = None) -> None:
    """Emit a tile; see `tile`."""
    A, a, row, deep, P, p, across, K, C, c, column, add = arguments
    builder, C = code.builder, code.pointer(8, C, c)
    zeros = [ir.Constant(code.vector, None)] * (rows * width * sums_of)
    close, (left, right, *sums) = code.loop(K, code.pointer(0, A, a), code.pointer(4, P, p), *zeros)
    new: list[Any] = []
    for _ in range(sums_of):
        P_k = [code.load(right, v * code.lanes) if mask is None else code.load_some(right, mask) for v in range(width)]
        for r in range(rows):
            A_k = splat(builder, builder.load(builder.gep(left, [builder.mul(row, INT(r))])), code.vector)
            new += [llvm_intrinsic(builder, "fma", A_k, P_k[v], sums[len(new) + v]) for v in range(width)]
        left, right = builder.gep(left, [deep]), builder.gep(right, [across])
    close(sums_of, left, right, *new)
    each = rows * width
    total = sums[:each]
    for k in range(each, len(sums), each):
        total = [builder.fadd(x, y) for x, y in zip(total, sums[k : k + each])]
    starts = [builder.gep(C, [builder.mul(column, INT(r))]) for r in range(rows)]
    code.write(total, [builder.gep(q, [INT(v * code.lanes)]) for q in starts for v in range(width)], add)


def tile(rows: int, width: int = VECTORS, sums_of: int = 1) -> Any:
    """``(A, a, row, deep, P, p, across, K, C, c, column, add)``: rows × (width vectors) of C (+)= A·P, K deep.

    The tile begins at a, p and c in the flat arrays A, P and C. Rows of A, P and C are ``row``, ``across`` and
    ``column`` apart, columns of A ``deep``. A sum over K is split into ``sums_of`` independent accumulators (a
    divisor of K).
    """

    @intrinsic
    def kernel(typing, A, a, row, deep, P, p, across, K, C, c, column, add):
        signature = types.void(A, *[types.intp] * 3, P, *[types.intp] * 3, C, *[types.intp] * 2, types.boolean)

        def codegen(context, builder, signature, arguments):
            _tile(_Code(context, builder, signature, C.dtype), rows, width, sums_of, arguments)
            return context.get_dummy_value()

        return signature, codegen

    return kernel


def edge_tile(rows: int) -> Any:
    """`tile` of one vector, of which only the first ``count`` columns are read from P; ``count`` comes last."""

    @intrinsic
    def kernel(typing, A, a, row, deep, P, p, across, K, C, c, column, add, count):
        words = [types.intp] * 3
        signature = types.void(A, *words, P, *words, C, *words[:2], types.boolean, types.intp)

        def codegen(context, builder, signature, arguments):
            code = _Code(context, builder, signature, C.dtype)
            _tile(code, rows, 1, 1, arguments[:-1], code.mask(arguments[-1]))
            return context.get_dummy_value()

        return signature, codegen

    return kernel


@intrinsic
def dot_products(typing, A, a, U, u, row, count, K, C, c, add):
    """C[c + n] (+)= Σ_k A[a + k]·U[u + n·row + k] for one vector of n, of which the first ``count`` lanes are valid.

    Only ``count`` rows of U are read; the other lanes of C repeat the last.
    """
    number = C.dtype
    signature = types.void(A, types.intp, U, *[types.intp] * 4, C, types.intp, types.boolean)

    def codegen(context, builder, signature, arguments):
        A, a, U, u, row, count, K, C, c, add = arguments
        code = _Code(context, builder, signature, number)
        last = builder.sub(count, INT(1))
        A, U, C = code.pointer(0, A, a), code.pointer(2, U, u), code.pointer(7, C, c)
        rows = [builder.select(builder.icmp_signed("<", last, INT(n)), last, INT(n)) for n in range(code.lanes)]
        starts = [A, *(builder.gep(U, [builder.mul(row, n)]) for n in rows)]
        whole = builder.and_(K, INT(-code.lanes))
        close, values = code.loop(whole, *starts, *[ir.Constant(code.vector, None)] * code.lanes)
        ends, sums = values[: len(starts)], values[len(starts) :]
        A_k = code.load(ends[0])
        new = [llvm_intrinsic(builder, "fma", A_k, code.load(q), s) for q, s in zip(ends[1:], sums)]
        close(code.lanes, *(builder.gep(q, [INT(code.lanes)]) for q in ends), *new)
        rest = builder.sub(K, whole)  # columns that do not fill a vector
        before, more, end = builder.block, builder.append_basic_block("rest"), builder.append_basic_block("sum")
        builder.cbranch(builder.icmp_signed(">", rest, INT(0)), more, end)
        builder.position_at_end(more)
        mask = code.mask(rest)
        A_k = code.load_some(ends[0], mask)
        new = [llvm_intrinsic(builder, "fma", A_k, code.load_some(q, mask), s) for q, s in zip(ends[1:], sums)]
        builder.branch(end)
        builder.position_at_end(end)
        joined = [builder.phi(code.vector) for _ in sums]
        for phi, old, value in zip(joined, sums, new):
            phi.add_incoming(old, before)
            phi.add_incoming(value, more)
        even, odd = range(0, 2 * code.lanes, 2), range(1, 2 * code.lanes, 2)
        while len(joined) > 1:  # neighbouring lanes added, two vectors into one: in the end lane n is the sum over n
            pairs = zip(joined[::2], joined[1::2])
            joined = [builder.fadd(code.lanes_of(x, y, even), code.lanes_of(x, y, odd)) for x, y in pairs]
        code.write(joined, [C], add)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def transpose(typing, U, u, row, P, p, across):
    """P[p + k·across + n] = U[u + n·row + k] for n and k over one vector each."""
    signature = types.void(U, *[types.intp] * 2, P, *[types.intp] * 2)

    def codegen(context, builder, signature, arguments):
        U, u, row, P, p, across = arguments
        code = _Code(context, builder, signature, signature.args[0].dtype)
        U, P = code.pointer(0, U, u), code.pointer(3, P, p)
        rows = [code.load(builder.gep(U, [builder.mul(row, INT(n))])) for n in range(code.lanes)]
        half = code.lanes // 2
        zipped = [lane + b for lane in range(code.lanes) for b in (0, code.lanes)]  # lanes of a and b in turn
        halves = zipped[: code.lanes], zipped[code.lanes :]
        for _ in range(code.lanes.bit_length() - 1):  # zip rows that are half the matrix apart, log2 times
            pairs = zip(rows[:half], rows[half:])
            rows = [code.lanes_of(x, y, part) for x, y in pairs for part in halves]
        for k, value in enumerate(rows):
            code.store(value, builder.gep(P, [builder.mul(across, INT(k))]))
        return context.get_dummy_value()

    return signature, codegen
