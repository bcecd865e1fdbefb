"""Layer normalisation of one gate's net inputs over the units of a layer, for the time loops."""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.cache.compile import PLAIN
from longlag.engines.cpu.codegen.pointers import load, store
from longlag.engines.cpu.simd.functions import root
from longlag.engines.cpu.simd.product import LANES, broadcast, square, total


def normalise_for(number: Any) -> Any:
    """``normalise(size, a, gamma, beta, eps, r, out)`` for numbers of this type."""
    lanes = LANES[number]

    @njit(**PLAIN)
    def normalise(size, a, gamma, beta, eps, r, out):
        """out = γ r + β, r = (a − μ)/√(v + ε); returns 1/√(v + ε)."""
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

    return normalise


def normalise_back_for(number: Any) -> Any:
    """``normalise_back(size, d, gamma, r, scale, dGamma, dBeta)`` for numbers of this type."""
    lanes = LANES[number]

    @njit(**PLAIN)
    def normalise_back(size, d, gamma, r, scale, dGamma, dBeta):
        """d, the gradient at γ r + β, becomes the gradient at a: (q − mean(q) − r·mean(q r))/√(v + ε), q = γ d."""
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

    return normalise_back
