"""The optimisers, as one kernel of all networks, on packed weights; torch's arithmetic.

For every group of hyperparameters a mask is parallel to the weights: 0 for numbers that the group does not train (or
that are padding), 1/n for a weight that is stored n times. A row of `Hyper` holds the group's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from longlag.engines.cpu.cache.compile import machine_code
from longlag.engines.cpu.codegen.pointers import INLINE, load, pointer, row, store
from longlag.engines.cpu.realtime import hyper as to
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.simd.functions import maximum, root, where_positive
from longlag.engines.cpu.simd.product import LANES
from longlag.engines.cpu.simd.vector import total


@njit(**INLINE)
def add_copies(table, G):
    """Give every copy of a weight the sum of the gradients of all its copies."""
    places, n = pointer(table[at.copies], np.int64), table[at.copies_each]
    for k in range(table[at.copies_count]):
        value = G[places[k * n]]
        for i in range(1, n):
            value += G[places[k * n + i]]
        for i in range(n):
            G[places[k * n + i]] = value


def over_dirty(piece: Any) -> Any:
    """``over(table, k, value)``: value = piece(table, start, count, k, value) for the stretches of the packed weights
    that may have gradients, where inputs are symbols."""

    @njit(**INLINE)
    def over(table, k, value):
        for g in range(table[at.network_groups]):
            z = row(table, at.END + g * at.WORDS)
            D, inputs, lanes = z[at.D], z[at.inputs], z[at.lanes]
            symbols = pointer(table[at.dirty], np.int64)
            symbols = symbols if z[at.traced] != 0 else row(symbols, 1 + 2 * table[at.I])
            few = inputs > 0 and 4 * symbols[0] < inputs  # else all symbols are one stretch with the other sources
            for c in range(z[at.columns]):
                start, whole = z[at.W] + c * D * lanes, D * lanes
                if few:
                    for i in range(symbols[0]):
                        value = piece(table, start + symbols[1 + i] * lanes, lanes, k, value)
                    start, whole = start + inputs * lanes, (D - inputs) * lanes
                value = piece(table, start, whole, k, value)
            value = piece(table, z[at.P], z[at.params], k, value)
        return value

    return over


@njit(**INLINE)
def forget(table):
    """No symbol has gradients."""
    if table[at.symbol_words] > 1:
        I = table[at.I]
        for symbols in (pointer(table[at.dirty], np.int64), row(pointer(table[at.dirty], np.int64), 1 + 2 * I)):
            for i in range(symbols[0]):
                symbols[1 + I + symbols[1 + i]] = 0
            symbols[0] = 0


def update_for(number: Any) -> Any:
    """``update(table)``: use the sum of the gradients, and clear it."""
    lanes = LANES[number]

    @njit(**INLINE)
    def norm_of(table, G):
        """The norm of the gradients of all trained weights. [CLIP 5 ν]"""
        masks, N = pointer(table[at.masks], number), table[at.N]
        squares = load(G, 0) * number(0) if N == 0 else where_positive(load(masks, 0), load(G, 0)) * number(0)
        for i in range(0, N, lanes):
            m = load(masks, i)
            for k in range(1, table[at.groups]):
                m = m + load(masks, k * N + i)
            g = where_positive(m, load(G, i))
            squares = squares + m * g * g
        return root(total(squares))

    @njit(**INLINE)
    def sgd(h, W, G, mask, buffer, scale, N):
        lr, decay, momentum, damp = (
            number(h[to.lr]),
            number(h[to.decay]),
            number(h[to.momentum]),
            number(1 - h[to.dampening]),
        )
        first, nesterov = h[to.steps] == 0, h[to.nesterov] != 0
        for i in range(0, N, lanes):
            m = load(mask, i)
            g = where_positive(m, load(G, i)) * scale + where_positive(m, load(W, i)) * decay
            if h[to.momentum] != 0:
                b = g if first else load(buffer, i) * momentum + g * damp
                store(buffer, i, b)
                g = g + b * momentum if nesterov else b
            store(W, i, load(W, i) - g * lr)

    @njit(**INLINE)
    def adam(h, W, G, mask, moments, scale, N):
        steps, b1, b2 = h[to.steps] + 1, h[to.beta1], h[to.beta2]
        rate, root2 = number(h[to.lr] / (1 - b1**steps)), number(root(1 - b2**steps))
        coupled = number(0 if h[to.decoupled] != 0 else h[to.decay])
        shrink = number(1 - h[to.lr] * h[to.decay] if h[to.decoupled] != 0 else 1)
        eps, new1, keep2, new2 = number(h[to.eps]), number(1 - b1), number(b2), number(1 - b2)
        v, top = row(moments, N), row(moments, 2 * N)
        for i in range(0, N, lanes):
            m, old = load(mask, i), load(W, i)
            g = where_positive(m, load(G, i)) * scale + where_positive(m, old) * coupled
            mean = load(moments, i)
            mean = mean + (g - mean) * new1
            square = load(v, i) * keep2 + g * g * new2
            store(moments, i, mean)
            store(v, i, square)
            if h[to.amsgrad] != 0:
                square = maximum(load(top, i), square)
                store(top, i, square)
            w = old * shrink - mean / (root(square) / root2 + eps) * rate
            # weights of other groups, and frozen ones, stay
            store(W, i, where_positive(m, w) + (old - where_positive(m, old)))

    @njit(**INLINE)
    def rmsprop(h, W, G, mask, moments, scale, N):
        lr, decay, alpha, rest = number(h[to.lr]), number(h[to.decay]), number(h[to.alpha]), number(1 - h[to.alpha])
        eps, momentum = number(h[to.eps]), number(h[to.momentum])
        means, buffer = row(moments, N), row(moments, 2 * N)
        for i in range(0, N, lanes):
            m = load(mask, i)
            g = where_positive(m, load(G, i)) * scale + where_positive(m, load(W, i)) * decay
            square = load(moments, i) * alpha + g * g * rest
            store(moments, i, square)
            if h[to.centered] != 0:
                mean = load(means, i)
                mean = mean + (g - mean) * rest
                store(means, i, mean)
                square = square - mean * mean
            change = g / (root(square) + eps)
            if h[to.momentum] != 0:
                change = load(buffer, i) * momentum + change
                store(buffer, i, change)
            store(W, i, load(W, i) - change * lr)

    @njit(**INLINE)
    def add_squares(table, start, count, k, norm):
        G = row(pointer(table[at.gradient], number), start)
        mask = row(pointer(table[at.masks], number), k * table[at.N] + start)
        whole, found = count // lanes * lanes, 0.0
        if whole > 0:
            squares = load(mask, 0) * number(0)  # gradients of lanes without units may be NaN
            for i in range(0, whole, lanes):
                m, g = load(mask, i), load(G, i)
                squares = squares + where_positive(m, m * g * g)
            found = total(squares)
        for i in range(whole, count):
            found += mask[i] * G[i] * G[i] if mask[i] > 0 else 0.0
        return norm + found  # a sum of its own: sums of several stretches are formed at once

    @njit(**INLINE)
    def descend(table, start, count, k, rate):
        W, G = row(pointer(table[at.weights], number), start), row(pointer(table[at.gradient], number), start)
        mask = row(pointer(table[at.masks], number), k * table[at.N] + start)
        whole = count // lanes * lanes
        for i in range(0, whole, lanes):
            store(W, i, load(W, i) - where_positive(load(mask, i), load(G, i) * number(rate)))
        for i in range(whole, count):
            W[i] -= number(rate) * G[i] if mask[i] > 0 else number(0)
        return rate

    @njit(**INLINE)
    def clear(table, start, count, k, nothing):
        G = row(pointer(table[at.gradient], number), start)
        whole = count // lanes * lanes
        for i in range(0, whole, lanes):
            store(G, i, number(0))
        for i in range(whole, count):
            G[i] = number(0)
        return nothing

    clear_dirty = over_dirty(clear)
    squares_of_dirty, descend_dirty = over_dirty(add_squares), over_dirty(descend)

    @njit(**INLINE)
    def sparse(table):
        """Whether only weights with gradients change: symbols, and gradient descent without momentum or decay."""
        plain = table[at.symbol_words] > 1
        for k in range(table[at.groups]):
            h = row(pointer(table[at.hyper], np.float64), k * to.COUNT)
            plain = plain and h[to.kind] == to.SGD and h[to.momentum] == 0 and h[to.decay] == 0
        return plain

    def update(address):
        table = pointer(address, np.int64)
        W, G, N = pointer(table[at.weights], number), pointer(table[at.gradient], number), table[at.N]
        add_copies(table, G)
        few = sparse(table)
        if few:
            squares = 0.0
            for k in range(table[at.groups]):
                squares = squares_of_dirty(table, k, squares)
            norm = root(squares)
        else:
            norm = norm_of(table, G)
        numbers = pointer(table[at.numbers], np.float64)
        numbers[at.NORM] = norm
        table[at.pending] = 0
        if norm - norm != 0:
            table[at.skipped] += 1  # [CLIP 5 skip]
            table[at.skipped_in_a_row] += 1
            if table[at.skipped_in_a_row] == at.SKIPS:
                table[at.warn] = 1
        else:
            clip = numbers[at.CLIP]
            scale = clip / norm if clip > 0 and norm > clip else 1.0  # [CLIP 5 dθ]
            for k in range(table[at.groups]):
                h = row(pointer(table[at.hyper], np.float64), k * to.COUNT)
                mask, moments = (
                    row(pointer(table[at.masks], number), k * N),
                    row(pointer(table[at.moments], number), 3 * k * N),
                )
                signed = number(-scale if h[to.maximize] != 0 else scale)
                if few:
                    descend_dirty(table, k, h[to.lr] * signed)
                elif h[to.kind] == to.ADAM:
                    adam(h, W, G, mask, moments, signed, N)
                elif h[to.kind] == to.RMSPROP:
                    rmsprop(h, W, G, mask, moments, signed, N)
                else:
                    sgd(h, W, G, mask, moments, signed, N)
                h[to.steps] += 1
            table[at.updates] += 1
            table[at.skipped_in_a_row] = 0
        if few:
            clear_dirty(table, 0, 0.0)
        else:
            for i in range(N):
                G[i] = number(0)
        forget(table)

    return update


def transfer_for(number: Any) -> Any:
    """``transfer(jobs, count, out)``: between tensors and packed memory, by pairs (place, element)."""

    def transfer(jobs, count, out):
        words = pointer(jobs, np.int64)
        for k in range(count):
            tensor, packed = pointer(words[4 * k], number), pointer(words[4 * k + 1], number)
            pairs, n = pointer(words[4 * k + 2], np.int64), words[4 * k + 3]
            if out != 0:
                for i in range(n):
                    tensor[pairs[2 * i + 1]] = packed[pairs[2 * i]]
            else:
                for i in range(n):
                    packed[pairs[2 * i]] = tensor[pairs[2 * i + 1]]

    return transfer


KERNELS = {"update": (update_for, 1), "transfer": (transfer_for, 3)}


def build(name: str, dtype: str) -> tuple[str, bytes]:
    """The readable source and the machine code of a kernel of this module."""
    maker, arguments = KERNELS[name]
    code = machine_code(maker(getattr(np, dtype)), types.void(*[types.intp] * arguments))
    return f"# see longlag.engines.cpu.realtime.update, {name}\n", code
