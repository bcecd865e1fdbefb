"""Text of the CPU kernels that is the same for every cell; `generate` fills in the rest.

Names and shapes are explained there. Numbers in ``stage & …`` are the stages of `generate`.
"""

HEAD = '''"""CPU kernels of the cell {name} in {dtype}{norm}, written by longlag from its equations. Safe to delete."""

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.compile import PLAIN, address, call, flat, real, row
from longlag.engines.cpu.simd.functions import exp, relu, root, sigmoid, step, tanh
from longlag.engines.cpu.simd.product import LANES, broadcast, cube, load, square, store, total

number = np.{dtype}
lanes = LANES[number]
'''

NORMALISE = '''
@njit(**PLAIN)
def normalise(a, gamma, beta, eps, r, out):
    """out = γ r + β, r = (a − μ)/√(v + ε); returns 1/√(v + ε)."""
    size = len(a)
    whole = size // lanes * lanes
    sums = broadcast(number(0))
    for unit in range(0, whole, lanes):
        sums = sums + load(a, unit)
    mean = total(sums)
    for unit in range(whole, size):
        mean += a[unit]
    mean /= number(size)
    sums = broadcast(number(0))
    for unit in range(0, whole, lanes):
        sums = sums + square(load(a, unit) - mean)
    variance = total(sums)
    for unit in range(whole, size):
        variance += square(a[unit] - mean)
    scale = number(1) / root(variance / number(size) + eps)
    for unit in range(0, whole, lanes):
        value = (load(a, unit) - mean) * scale
        store(r, unit, value)
        store(out, unit, load(gamma, unit) * value + load(beta, unit))
    for unit in range(whole, size):
        r[unit] = (a[unit] - mean) * scale
        out[unit] = gamma[unit] * r[unit] + beta[unit]
    return scale


@njit(**PLAIN)
def normalise_back(d, gamma, r, scale, dGamma, dBeta):
    """d, the gradient at γ r + β, becomes the gradient at a: (q − mean(q) − r·mean(q r))/√(v + ε), q = γ d."""
    size = len(d)
    whole = size // lanes * lanes
    sums = sums_along = broadcast(number(0))
    for unit in range(0, whole, lanes):
        value, direction = load(d, unit), load(r, unit)
        store(dGamma, unit, load(dGamma, unit) + value * direction)
        store(dBeta, unit, load(dBeta, unit) + value)
        value = value * load(gamma, unit)
        store(d, unit, value)
        sums = sums + value
        sums_along = sums_along + value * direction
    mean, along = total(sums), total(sums_along)
    for unit in range(whole, size):
        dGamma[unit] += d[unit] * r[unit]
        dBeta[unit] += d[unit]
        d[unit] *= gamma[unit]
        mean += d[unit]
        along += d[unit] * r[unit]
    mean /= number(size)
    along /= number(size)
    for unit in range(0, whole, lanes):
        store(d, unit, (load(d, unit) - mean - load(r, unit) * along) * scale)
    for unit in range(whole, size):
        d[unit] = (d[unit] - mean - r[unit] * along) * scale
'''

SPAN = """\
low = max(0, t - chunk + 1) if reverse != 0 else t
high = t + 1 if reverse != 0 else min(T, t + chunk)
pieces, rows = (1, (high - low) * B) if M == B else (high - low, M)
"""

NET = """\
if n % chunk == 0:  # net inputs of the steps to come: many rows make a better product
{span}
    base = low if save != 0 else 0
    for s in range(pieces):
        at = ((base + s) * B + first) * Gx * H
        for m in range(rows):
            for j in range(Gx * H):
                a[at + m * Gx * H + j] = bias[j]
        start = address(x, ((low + s) * B + first) * I)
        call(multiply, (start, I, rows, I, PW, address(a, at), Gx * H, 1, edge))
t_a = t if save != 0 else t - low
t_r = t if save != 0 else 0
"""

RECURRENT = """\
if source_given:  # what U reads is not simply the step before
    for b in range(first, last):
        fresh = n == 0 or (reverse != 0 and lengths_given and t == lengths[b] - 1)
        blank = (reset_given and reset[t * B + b] != 0) or (lengths_given and t >= lengths[b])
        y_before = zero if blank else (row(y_0, b * y_0_apart, H) if fresh else row(out, (back * B + b) * H, H))
        for j in range(H):
            source[(t * B + b) * H + j] = y_before[j] * mask[b * H + j] if mask_given else y_before[j]
heard = source if source_given else out
at = (t if source_given else back) * B + first
start = address(y_0, first * y_0_apart) if n == 0 and not source_given else address(heard, at * H)
apart = y_0_apart if n == 0 and not source_given else H
into = address({rec}, ({t} * B + first) * {G} * H)
call(multiply, (start, apart, M, H, PU, into, {G} * H, {add} | alone, edge))
"""

BACK_THROUGH_U = """\
start = address({d}, (t * B + first) * {G} * H)
if not mask_given:
    call(multiply, (start, {G} * H, M, {G} * H, PU, address(d_y, first * H), H, 1 | alone, edge))
else:
    call(multiply, (start, {G} * H, M, {G} * H, PU, address(through, 0), H, 0, edge))
    for b in range(first, last):
        for j in range(H):
            d_y[b * H + j] += through[(b - first) * H + j] * mask[b * H + j]
"""

BACK_THROUGH_W = """\
if dx_given and n % chunk == 0:
{span}
    for s in range(pieces):
        at = (low + s) * B + first
        call(multiply, (address(dA, at * Gx * H), Gx * H, rows, Gx * H, PW, address(dx, at * I), I, 0, edge))
"""
SUM_OF_W = """\
until = tiles_W if stage & 2 else last  # alone, or one of several pieces
words = (address(dA, 0), Gx * H, K, address(x, 0), K, 0, I, dW, db, {db_too})
call(outer_W, words + (outer_scratch, 0 if stage & 2 else first, until, piece))
"""

SUM_OF_U = """\
until = tiles_U if stage & 2 else last
errors, count, early, split, late = address({d}, 0), K, address(y_0, 0), B, address(out, 0)
if source_given:
    early, split, late = address(source, 0), K, 0
elif y_0_apart == 0:  # the first step read zeros
    count, split = K - B, K - B
    errors = errors if reverse != 0 else address({d}, B * Gy * H)
    early = address(out, B * H if reverse != 0 else 0)
elif reverse != 0:
    early, split, late = address(out, B * H), K - B, early
words = (errors, Gy * H, count, early, split, late, H, dU, {db_too}, 0)
call(outer_U, words + (outer_scratch, 0 if stage & 2 else first, until, piece))
"""

FIRST_STEP = """\
if db_too != 0 and y_0_apart == 0 and not source_given:  # the sums for U went without it
    sums, at = flat(db_too, number), (T - 1) * B if reverse != 0 else 0
    for j in range(0 if stage & 2 else first * 8, min(until * 8, Gy * H)):
        for b in range(B):
            sums[j] += dRec[(at + b) * Gy * H + j]
"""
