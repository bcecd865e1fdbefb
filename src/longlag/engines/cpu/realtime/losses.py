"""Losses of one sample's output: dL/dy, and L. m: weight of the sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, pointer, row
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.simd.functions import exp

LOSSES = ("squared_error", "cross_entropy")


def loss_for(number: Any) -> Any:
    """``loss(table, answer, error, k, m)``: the loss of an answer against row k of the targets; NaN for a bad class."""

    @njit(**INLINE)
    def squared_error(table, answer, error, k, m):
        O = table[at.O]
        if table[at.classes]:
            for o in range(O):
                error[o] = answer[o]
            error[pointer(table[at.targets], np.int64)[k]] -= number(1)
        else:
            wanted = row(pointer(table[at.targets], number), k * O)
            for o in range(O):
                error[o] = answer[o] - wanted[o]
        loss = squares(error, O)
        if m != number(1):
            for o in range(O):
                error[o] *= m
        return loss * 0.5 * m

    @njit(**INLINE)
    def squares(error, O):
        """Σ error², in four sums that are formed at once."""
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for o in range(0, O - 3, 4):
            a += error[o] * error[o]
            b += error[o + 1] * error[o + 1]
            c += error[o + 2] * error[o + 2]
            d += error[o + 3] * error[o + 3]
        for o in range(O // 4 * 4, O):
            a += error[o] * error[o]
        return (a + b) + (c + d)

    @njit(**INLINE)
    def cross_entropy(table, answer, error, k, m):
        O, total, top, loss = table[at.O], number(0), answer[0], 0.0
        wanted = row(pointer(table[at.targets], number), 0 if table[at.classes] else k * O)
        symbol = pointer(table[at.targets], np.int64)[k] if table[at.classes] else -1
        for o in range(O):
            top = answer[o] if answer[o] > top or answer[o] != answer[o] else top
        for o in range(O):
            error[o] = exp(answer[o] - top)
            total += error[o]
        norm = math.log(total)
        mass = number(0)
        for o in range(O):
            d = (number(1) if o == symbol else number(0)) if symbol >= 0 else wanted[o]
            loss -= d * (answer[o] - top - norm)
            mass += d
        for o in range(O):
            d = (number(1) if o == symbol else number(0)) if symbol >= 0 else wanted[o]
            error[o] = m * (mass * error[o] / total - d)
        return loss * m

    @njit(**INLINE)
    def loss(table, answer, error, k, m):
        if table[at.loss] == 0:
            return squared_error(table, answer, error, k, m)
        return cross_entropy(table, answer, error, k, m)

    return loss
