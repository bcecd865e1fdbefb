"""Units in continuous time: for irregular samples, and for models of neural circuits."""

from longlag.cells import cell, relu, sigmoid, tanh


@cell(gates="a b s r", inputs="dt")
def cfc(a, b, s, r, dt):
    """Closed-form continuous-time unit (Hasani et al. 2022) without backbone; dt: time since the last observation.

    Take the cell for irregularly sampled series.

    y(t) = tanh(a)·(1 − σ(s·dt + r)) + tanh(b)·σ(s·dt + r)
    """
    gate = sigmoid(s * dt + r)
    return tanh(a) * (1 - gate) + tanh(b) * gate


@cell(gates="a", states="v", params={"alpha": 0.2}, fixed={"sigma": 0.0}, noise="xi")
def ctrnn(a, v, xi, alpha, sigma):
    """Continuous-time RNN of neuroscience (Song et al. 2016): potential v, rate y, α = dt/τ, noise ξ.

    Take the cell to model cortical circuits: ``recurrent_signs`` gives Dale's law, ``recurrent_mask`` the connections.

    v(t) = (1 − α)·v(t−1) + α·(a + sigma·xi)
    y(t) = relu(v(t))
    """
    v = (1 - alpha) * v + alpha * (a + sigma * xi)
    return relu(v), v
