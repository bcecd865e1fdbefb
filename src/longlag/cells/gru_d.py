"""GRU-D: gated units whose memory decays while nothing is observed."""

from longlag.cells import cell, exp, relu, sigmoid, tanh

DECAYED = "exp(-relu(w*delta+b))*y"  # the previous output after a gap of delta


@cell(
    gates=[f"r:x+{DECAYED}", f"z:x+{DECAYED}", f"n:x+{DECAYED}", f"m:{DECAYED}"],
    params={"w": 1.0, "b": 0.0},
    inputs="delta",
)
def gru_d(r, z, n, m, y, delta, w, b):
    """GRU-D (Che et al. 2018) in the form of pypots; delta: time since the last observation, m reads h only.

    Take the cell for series with missing values; give the mask as features of x. All matrices read h, with h(t) of:

    h = exp(−relu(w·delta + b))·y(t−1)
    y(t) = (1 − σ(z))·tanh(n + σ(r)·m) + σ(z)·h
    """
    h = exp(-relu(w * delta + b)) * y
    return (1 - sigmoid(z)) * tanh(n + sigmoid(r) * m) + sigmoid(z) * h


@cell(
    gates=[f"r:x+{DECAYED}", f"z:x+{DECAYED}", f"a:x+sigmoid(r)*{DECAYED}"],
    params={"w": 1.0, "b": 0.0},
    inputs="delta",
)
def gru_d_original(r, z, a, y, delta, w, b):
    """GRU-D as published (Che et al. 2018): the reset gate acts before the product, a = W x(t) + U (σ(r)·h) + b.

    Take the cell to reproduce the paper; elsewhere `gru_d`.

    h = exp(−relu(w·delta + b))·y(t−1)
    y(t) = (1 − σ(z))·h + σ(z)·tanh(a)
    """
    h = exp(-relu(w * delta + b)) * y
    return (1 - sigmoid(z)) * h + sigmoid(z) * tanh(a)
