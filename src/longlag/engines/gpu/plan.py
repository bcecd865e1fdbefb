"""Which kind of loop a call gets, and the shape of its programs: a readable rule, no search, without B and T."""

from __future__ import annotations

from typing import NamedTuple

from longlag.cells import Cell
from longlag.engines.gpu.equations import equations

SHARED = 227 * 1024  # bytes of shared memory that a program may have on Hopper; 99 KiB on small GPUs
SLICE = 16  # sequences of a program with a matrix product: the smallest tile of tensor cores
WIDEST = 8192  # units over which one program normalises a row


class Plan(NamedTuple):
    """A kind of loop and the tile of a program: BM sequences (or BT steps of one), ``units`` units in BH places."""

    kind: str
    BM: int
    BH: int
    warps: int
    units: int


def power_of_two(n: int) -> int:
    """The next power of two, n itself if it is one."""
    return 1 << max(0, n - 1).bit_length()


def plan(cell: Cell, H: int, itemsize: int, norm: bool, heads: int = 1, shared: int = SHARED) -> Plan:
    """The kind of loop for H units; a norm of a local cell is computed before the loop and does not matter here.

    U is resident if its bytes and half as many for staging fit the shared memory. A float32 matrix takes twice its
    size: its products are three products of tf32 parts. Elman: up to 128 units in float32, 256 in bfloat16; LSTM: 64
    and 128. With heads these are the units of one head; a norm is over all units, which have to be in one program.
    """
    row = power_of_two(H)
    if not cell.dense:
        if equations(cell).linear is not None:
            BH = min(row, 32)
            return Plan("scan", 32, BH, 4, BH)
        BH = min(row, 64)
        return Plan("local", 1, BH, max(1, BH // 32), BH)
    units = H if norm else H // heads
    row = max(power_of_two(units), 16)
    bytes_of_U = len(cell.recurrent_gates) * row * row * itemsize * (2 if itemsize == 4 else 1)
    if 3 * bytes_of_U <= 2 * shared:
        return Plan("resident", SLICE, row, 4 if row <= 32 else 8, units if units < H else row)
    row = max(power_of_two(H), 16)
    BH = row if norm else min(row, 256)
    return Plan("stepwise", 1, BH, min(16, max(1, BH // 64)), BH)
