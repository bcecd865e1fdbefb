"""One row of LSTM-1997: hidden units and gates are logistic, cells read the gates of their block."""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen import words as at
from longlag.engines.cpu.codegen.pointers import INLINE
from longlag.engines.cpu.simd.functions import sigmoid


def units_for(unit: Any, gated: bool) -> Any:
    """``units(table, H, (a, s), (y, s_new))`` around the memory cell's equations; ``gated``: with output gates."""

    @njit(**INLINE)
    def units(table, H, given, computed):
        a, s = given
        y_new, s_new = computed
        blocks, size = table[at.blocks], table[at.cells_per_block]
        i = table[at.hidden_units]
        o = i + blocks
        cells = o + blocks if gated else o
        for unit_ in range(cells):
            y_new[unit_] = sigmoid(a[unit_])
        for block in range(blocks):
            for k in range(block * size, (block + 1) * size):
                if gated:
                    y_new[cells + k], s_new[k] = unit(a[i + block], a[cells + k], a[o + block], s[k])
                else:
                    y_new[cells + k], s_new[k] = unit(a[i + block], a[cells + k], s[k])

    return units


def units_back_for(unit_back: Any, gated: bool, number: Any) -> Any:
    """``units(table, H, (a, s, y_new, s_new, d_out, d_y, d_s), (d_a, d_s))``."""
    one = number(1)

    @njit(**INLINE)
    def units(table, H, given, computed):
        a, s, y_new, s_new, d_out, d_y, d_s = given
        d_a = computed[0]
        blocks, size = table[at.blocks], table[at.cells_per_block]
        i = table[at.hidden_units]
        o = i + blocks
        cells = o + blocks if gated else o
        for j in range(cells):
            d_a[j] = (d_out[j] + d_y[j]) * y_new[j] * (one - y_new[j])
        for block in range(blocks):
            for k in range(block * size, (block + 1) * size):
                d = d_out[cells + k] + d_y[cells + k]
                if gated:
                    net = a[i + block], a[cells + k], a[o + block], s[k]
                    d_i, d_a[cells + k], d_o, d_s[k] = unit_back(*net, y_new[cells + k], s_new[k], d, d_s[k])
                    d_a[o + block] += d_o
                else:
                    net = a[i + block], a[cells + k], s[k]
                    d_i, d_a[cells + k], d_s[k] = unit_back(*net, y_new[cells + k], s_new[k], d, d_s[k])
                d_a[i + block] += d_i

    return units
