"""Units from differential equations that keep their gradients in range, discretised with a step dt."""

from longlag.cells import cell, sigmoid, tanh


@cell(gates="a", fixed={"gamma": 0.01, "eps": 0.1})
def antisymmetric(a, y, gamma, eps):
    """Antisymmetric RNN (Chang et al. 2019), for U = M − Mᵀ (``recurrent="antisymmetric"``).

    Take the cell where gradients must neither vanish nor explode by construction.

    y(t) = y(t−1) + ε·tanh(a − γ·y(t−1))
    """
    return y + eps * tanh(a - gamma * y)


@cell(gates="a b:z", states="z", fixed={"dt": 0.05, "gamma": 1.0, "eps": 1.0})
def co_rnn(a, b, y, z, dt, gamma, eps):
    """coRNN (Rusch and Mishra 2021): coupled oscillators with velocity z, b = 𝒲 z(t−1).

    Take the cell for long lags; tune dt, γ and ε.

    z(t) = z(t−1) + dt·(tanh(a + b) − γ·y(t−1) − ε·z(t−1))
    y(t) = y(t−1) + dt·z(t)
    """
    z = z + dt * (tanh(a + b) - gamma * y - eps * z)
    return y + dt * z, z


@cell(gates=["d", "e", "c", "n:x+(1-dt*sigmoid(d))*z+dt*sigmoid(d)*tanh(c)"], states="z", fixed={"dt": 1.0})
def lem(d, e, c, n, y, z, dt):
    """Long expressive memory (Rusch et al. 2022): two time scales learned per unit; the matrix of n reads z(t).

    Take the cell where fast and slow changes mix.

    z(t) = (1 − dt·σ(d))·z(t−1) + dt·σ(d)·tanh(c)
    y(t) = (1 − dt·σ(e))·y(t−1) + dt·σ(e)·tanh(n)
    """
    z = (1 - dt * sigmoid(d)) * z + dt * sigmoid(d) * tanh(c)
    return (1 - dt * sigmoid(e)) * y + dt * sigmoid(e) * tanh(n), z
