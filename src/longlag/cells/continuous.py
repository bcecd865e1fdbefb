"""Units in continuous time: for irregular samples, and for models of neural circuits."""

from longlag.cells import cell, relu, sigmoid, sqrt, tanh


@cell(gates="a b s r", inputs="dt")
def cfc(a, b, s, r, dt):
    """Closed-form continuous-time unit (Hasani et al. 2022) without backbone; dt: time since the last observation.

    Take the cell for irregularly sampled series.

    y(t) = tanh(a)·(1 − σ(s·dt + r)) + tanh(b)·σ(s·dt + r)
    """
    gate = sigmoid(s * dt + r)
    return tanh(a) * (1 - gate) + tanh(b) * gate


@cell(gates="a", states="v", fixed={"tau": 5.0, "dt": 1.0, "sigma": 0.0}, noise="xi")
def ctrnn(a, v, xi, tau, dt, sigma):
    """Continuous-time RNN of neuroscience (Song et al. 2016): potential v, rate y, time constant tau, noise ξ.

    Take the cell to model cortical circuits: ``recurrent_signs`` gives Dale's law, ``recurrent_mask`` the connections.

    alpha = dt/tau
    v(t) = (1 − alpha)·v(t−1) + alpha·a + sigma·sqrt(2·alpha)·xi
    y(t) = relu(v(t))
    """
    alpha = dt / tau
    v = (1 - alpha) * v + alpha * a + sigma * sqrt(2 * alpha) * xi
    return relu(v), v
