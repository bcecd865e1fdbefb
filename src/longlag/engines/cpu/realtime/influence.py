"""The influence of every parameter on a layer's state, advanced in blocks of steps: exact, and cheaper than every step.

s (S,): the state of a sample, part by part, the output first; E = ∂s/∂θ; J(t) = ∂s(t)/∂s(t−1); D(t) the direct
influence of θ in step t. E(t) = J(t) E(t−1) + D(t) costs O(S² w) at every step. Here E is that of the beginning of a
block of n steps, which are kept (Schmidhuber 1992, Neural Computation 4:243). For errors e(t) = J(t+1)ᵀ e(t+1) + dy(t)
    dθ = e(0)ᵀ E(0) + Σ_τ e(τ)ᵀ D(τ)                              where the gradient is needed: O(S w)
    E(n) = Ψ(0) E(0) + Σ_τ Ψ(τ) D(τ),   Ψ(n) = 1, Ψ(τ−1) = Ψ(τ) J(τ)          at the end of a block: O(S² w)
J and D come from the partials of the cell's equations: for parts q, r and gates g,
    J_qy = Σ_g diag(∂q/∂net_g) U_g + diag(∂q/∂y), the first term being A in the code;   J_qr = diag(∂q/∂r)
    D of row j of g: ∂q_j/∂net_g · source, which begins in unit j alone. E is stored row by row of θ: (S, width).
The sources are [x(t), 1, y(t−1)]; a gate without a row in W or U reads a part of them, a param only the 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from longlag.engines.cpu.cache.compile import PLAIN, flat, machine_code
from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime import blocks as at
from longlag.engines.cpu.realtime.products import products_for
from longlag.engines.cpu.simd.product import load, store
from longlag.engines.cpu.simd.tiles import transpose


def advance(number: Any) -> Any:
    """``kernel(words, sample, weights, _)``: the step whose partials and sources lie in its place joins the block."""
    itemsize, word = number().itemsize, np.int64
    lanes, zero = VECTOR_BYTES // itemsize, number(0)

    def kernel(words, sample, weights, shared):
        """A = Σ_g diag(∂q/∂net_g) U_g, with the U of the step."""
        w, n = flat(words, word), flat(sample, word)
        H, P, V, Hp, steps = w[at.units], w[at.parts], w[at.entries], w[at.unit_row], n[at.STEPS]
        D = flat(sample + (w[at.partials] + steps * P * (V + P) * Hp) * itemsize, number)
        A = flat(sample + (w[at.folded] + steps * P * Hp * Hp) * itemsize, number)
        square = flat(shared + w[at.square] * itemsize, number)
        W = flat(weights + w[at.first_weight] * itemsize, number)
        for q in range(P):
            for tile in range(w[at.tiles]):
                for l in range(0, H, lanes):
                    for k in range(min(lanes, H - l)):
                        total = load(D, (q * (V + P)) * Hp + tile * lanes) * zero
                        for v in range(V):
                            if w[at.ENTRIES + at.ENTRY * v + at.reads_y] != 0:
                                slope = load(D, (q * (V + P) + v) * Hp + tile * lanes)
                                row = (v * w[at.tiles] + tile) * w[at.sources] + w[at.inputs] + l + k
                                total = total + slope * load(W, row * lanes)
                        store(square, k * lanes, total)
                    transpose(square, 0, lanes, A, (q * Hp + tile * lanes) * Hp + l, Hp)
        n[at.STEPS] = steps + 1

    return kernel


def collect(number: Any) -> Any:
    """``kernel(words, sample, gradient, shared)``: dθ of the block's errors, which are then used up."""
    itemsize, word = number().itemsize, np.int64
    lanes, zero = VECTOR_BYTES // itemsize, number(0)
    product, single = products_for(number)

    @njit(**PLAIN)
    def go_back(w, n, sample, shared):
        """From e(n) to e(0), which lies in ``carried``; errors of net inputs and params into ``through``."""
        H, P, V, Hp = w[at.units], w[at.parts], w[at.entries], w[at.unit_row]
        R, size = V + P, P * Hp
        D, A = flat(sample + w[at.partials] * itemsize, number), flat(sample + w[at.folded] * itemsize, number)
        errors = flat(sample + w[at.errors] * itemsize, number)
        through, e = flat(shared + w[at.through] * itemsize, number), flat(shared + w[at.carried] * itemsize, number)
        for k in range(size):
            e[k] = zero
        for step in range(n[at.SCORED] - 1, -1, -1):
            d = step * P * R * Hp
            for j in range(Hp):
                e[j] += errors[step * Hp + j]
                errors[step * Hp + j] = zero
            for v in range(V):
                to = (step * V + v) * Hp
                for j in range(Hp):
                    through[to + j] = e[j] * D[d + v * Hp + j]
                for q in range(1, P):
                    for j in range(Hp):
                        through[to + j] += e[q * Hp + j] * D[d + (q * R + v) * Hp + j]
            for q in range(P):
                single(e, q * Hp, 1, H, A, (step * P + q) * Hp * Hp, Hp, e, size, Hp, q > 0)
            for r in range(P):
                for q in range(P):
                    for j in range(Hp):
                        before = e[size + r * Hp + j] if q > 0 or r == 0 else zero
                        e[size + r * Hp + j] = before + e[q * Hp + j] * D[d + (q * R + V + r) * Hp + j]
            for k in range(size):
                e[k] = e[size + k]

    @njit(**PLAIN)
    def add(w, v, tile, rows, square, G):
        """Add rows of gradients, one per unit, to the packed ones, one vector of units per source."""
        entry, I = at.ENTRIES + at.ENTRY * v, w[at.inputs]
        wide, param = w[entry + at.width], w[entry + at.is_param] != 0
        last = I + 1 + (w[at.units] if w[entry + at.reads_y] != 0 else 0) - w[entry + at.first]
        for block in range(0, wide, lanes):
            transpose(rows, block, wide, square, 0, lanes)
            for k in range(min(lanes, last - block)):
                s = w[entry + at.first] + block + k
                if param:
                    place = w[at.first_param] + (w[entry + at.position] * w[at.tiles] + tile) * lanes
                    store(G, place, load(G, place) + load(square, k * lanes))
                else:
                    of_gate = w[at.first_weight] + (w[entry + at.position] * w[at.tiles] + tile) * w[at.sources] * lanes
                    to, count = (s if s < I else s - 1), 1
                    if s == I:
                        to, count = I + w[at.units], w[at.ones]
                    for one in range(count):
                        place = of_gate + (to + one) * lanes
                        store(G, place, load(G, place) + load(square, k * lanes))

    def kernel(words, sample, gradient, shared):
        w, n, G = flat(words, word), flat(sample, word), flat(gradient, number)
        steps = n[at.SCORED]
        if steps == 0:
            return
        go_back(w, n, sample, shared)
        H, V, Hp, S = w[at.units], w[at.entries], w[at.unit_row], w[at.parts] * w[at.units]
        source, E = flat(sample + w[at.read] * itemsize, number), flat(sample + w[at.E] * itemsize, number)
        through, e = flat(shared + w[at.through] * itemsize, number), flat(shared + w[at.carried] * itemsize, number)
        rows, square = flat(shared + w[at.rows] * itemsize, number), flat(shared + w[at.square] * itemsize, number)
        for q in range(1, w[at.parts]):  # e without gaps between the parts
            for j in range(H):
                e[q * H + j] = e[q * Hp + j]
        for v in range(V):
            entry = at.ENTRIES + at.ENTRY * v
            wide, a = w[entry + at.width], v * Hp
            for tile in range(w[at.tiles]):
                j, high = tile * lanes, min(lanes, H - tile * lanes)
                for k in range(high * wide, lanes * wide):
                    rows[k] = zero
                product(
                    through, a + j, 1, V * Hp, high, steps,
                    source, w[entry + at.first], w[at.source_row], rows, 0, wide, wide, False,
                )  # fmt: skip
                if n[at.CARRIED] != 0:
                    for k in range(high):
                        of = w[entry + at.first_E] + (j + k) * S * wide
                        single(e, 0, 1, S, E, of, wide, rows, k * wide, wide, True)
                add(w, v, tile, rows, square, G)
        n[at.SCORED] = 0

    return kernel


def flush(number: Any) -> Any:
    """``kernel(words, sample, _, shared)``: the end of a block; its errors were collected."""
    itemsize, word = number().itemsize, np.int64
    zero, unit = number(0), number(1)
    product, _ = products_for(number)

    @njit(**PLAIN)
    def go_back(w, n, sample, shared):
        """Ψ(n) to Ψ(0), each transposed: row (q, j) is the effect of part q of unit j on the state at the end."""
        H, P, V, Hp, Sp = w[at.units], w[at.parts], w[at.entries], w[at.unit_row], w[at.state_row]
        S, R, size = P * H, V + P, P * H * Sp
        D, A = flat(sample + w[at.partials] * itemsize, number), flat(sample + w[at.folded] * itemsize, number)
        psi = flat(shared + w[at.psi] * itemsize, number)
        for k in range(size):
            psi[n[at.STEPS] * size + k] = zero
        for k in range(S):
            psi[n[at.STEPS] * size + k * Sp + k] = unit
        for step in range(n[at.STEPS] - 1, -1, -1):
            d, to, of = step * P * R * Hp, step * size, (step + 1) * size
            for q in range(P):
                a = (step * P + q) * Hp * Hp
                product(A, a, 1, Hp, H, H, psi, of + q * H * Sp, Sp, psi, to, Sp, Sp, q > 0)
            for r in range(P):
                for l in range(H):
                    row = to + (r * H + l) * Sp
                    for q in range(P):
                        slope, past = D[d + (q * R + V + r) * Hp + l], of + (q * H + l) * Sp
                        if q == 0 and r > 0:
                            for i in range(Sp):
                                psi[row + i] = slope * psi[past + i]
                        else:
                            for i in range(Sp):
                                psi[row + i] += slope * psi[past + i]

    @njit(**PLAIN)
    def direct(w, n, sample, shared, v, j):
        """Ψ(τ) of the unit times ∂q_j/∂net for every step τ: what its source is multiplied by."""
        H, P, Hp, Sp = w[at.units], w[at.parts], w[at.unit_row], w[at.state_row]
        R, size = w[at.entries] + P, P * H * Sp
        D, psi = flat(sample + w[at.partials] * itemsize, number), flat(shared + w[at.psi] * itemsize, number)
        left = flat(shared + w[at.left] * itemsize, number)
        for step in range(n[at.STEPS]):
            for q in range(P):
                slope, of = D[(step * P * R + q * R + v) * Hp + j], (step + 1) * size + (q * H + j) * Sp
                if q == 0:
                    for i in range(Sp):
                        left[step * Sp + i] = slope * psi[of + i]
                else:
                    for i in range(Sp):
                        left[step * Sp + i] += slope * psi[of + i]

    def kernel(words, sample, _, shared):
        w, n = flat(words, word), flat(sample, word)
        steps, n[at.SCORED] = n[at.STEPS], 0
        if steps > 0:
            go_back(w, n, sample, shared)
            H, Sp, row, S = w[at.units], w[at.state_row], w[at.source_row], w[at.parts] * w[at.units]
            source, E = flat(sample + w[at.read] * itemsize, number), flat(sample + w[at.E] * itemsize, number)
            psi, left = flat(shared + w[at.psi] * itemsize, number), flat(shared + w[at.left] * itemsize, number)
            strip = flat(shared + w[at.strip] * itemsize, number)
            for v in range(w[at.entries]):
                entry = at.ENTRIES + at.ENTRY * v
                wide, first = w[entry + at.width], w[entry + at.first]
                for j in range(H):
                    direct(w, n, sample, shared, v, j)
                    of = w[entry + at.first_E] + j * S * wide
                    if n[at.CARRIED] == 0:
                        product(left, 0, 1, Sp, S, steps, source, first, row, E, of, wide, wide, False)
                    else:
                        product(psi, 0, 1, Sp, S, S, E, of, wide, strip, 0, wide, wide, False)
                        product(left, 0, 1, Sp, S, steps, source, first, row, strip, 0, wide, wide, True)
                        for k in range(S * wide):
                            E[of + k] = strip[k]
            n[at.CARRIED] = 1
        n[at.STEPS] = 0

    return kernel


def build(name: str, dtype: str) -> tuple[str, bytes]:
    """The readable source and the machine code of ``advance``, ``collect`` or ``flush``."""
    maker = {"advance": advance, "collect": collect, "flush": flush}[name]
    code = machine_code(maker(getattr(np, dtype)), types.void(*[types.intp] * 4))
    return f"# see longlag.engines.cpu.realtime.influence, {name}\n", code
