"""Linear recurrent unit: a complex eigenvalue per unit, in polar form."""

from longlag.cells import cell, cos, exp, sin


@cell(gates="a b", states="p q", params={"nu": -2.0, "theta": 0.3, "phi": 0.0}, dense=False)
def lru(a, b, p, q, nu, theta, phi):
    """LRU (Orvieto et al. 2023): λ = e^(−e^ν + iθ), z(t) = λ z(t−1) + √(1 − |λ|²) (a + ib), z = p + iq.

    The output is the real part of e^(iφ) z. Take this cell for very long sequences: the cell is linear in the state.

    r = exp(−exp(nu))
    s = (1 − r**2)**0.5
    p(t) = r·(cos(theta)·p(t−1) − sin(theta)·q(t−1)) + s·a
    q(t) = r·(sin(theta)·p(t−1) + cos(theta)·q(t−1)) + s·b
    y(t) = cos(phi)·p(t) − sin(phi)·q(t)
    """
    r = exp(-exp(nu))
    s = (1 - r**2) ** 0.5
    p, q = r * (cos(theta) * p - sin(theta) * q) + s * a, r * (sin(theta) * p + cos(theta) * q) + s * b
    return cos(phi) * p - sin(phi) * q, p, q
