"""Spiking neurons: a step forwards, a surrogate derivative backwards (see `spike`)."""

from longlag.cells import cell, detach, spike


@cell(gates="a", states="v", fixed={"tau": 2.0, "threshold": 1.0})
def lif(a, v, tau, threshold):
    """Leaky integrate-and-fire neuron with a reset to zero, as in spikingjelly. Take the cell for spiking networks.

    u = v(t−1) + (a − v(t−1))/tau
    y(t) = spike(u − threshold)
    v(t) = u·(1 − y(t))
    """
    u = v + (a - v) / tau
    s = spike(u - threshold)
    return s, u * (1 - s)


@cell(gates="a", states="v", params={"beta": 0.9}, fixed={"threshold": 1.0})
def snn_leaky(a, v, beta, threshold):
    """Leaky neuron with a reset by subtraction one step later, as in snnTorch (Eshraghian et al. 2023).

    v(t) = beta·v(t−1) + a − threshold·detach(spike(v(t−1) − threshold))
    y(t) = spike(v(t) − threshold)
    """
    v = beta * v + a - threshold * detach(spike(v - threshold))
    return spike(v - threshold), v


@cell(gates="a", states="q v", params={"alpha": 0.8, "beta": 0.9}, fixed={"threshold": 1.0})
def snn_synaptic(a, q, v, alpha, beta, threshold):
    """Neuron with a synaptic current q and a membrane potential v, as in snnTorch. Take the cell for smoother spikes.

    q(t) = alpha·q(t−1) + a
    w = beta·v(t−1) + q(t)
    v(t) = w − threshold·detach(spike(v(t−1) − threshold))
    y(t) = spike(v(t) − threshold)
    """
    q = alpha * q + a
    v = beta * v + q - threshold * detach(spike(v - threshold))
    return spike(v - threshold), q, v


@cell(gates="a", states="v b", params={"alpha": 0.9, "rho": 0.98, "beta": 1.7}, fixed={"threshold": 1.0})
def adaptive_lif(a, y, v, b, alpha, rho, beta, threshold):
    """Adaptive neuron (Bellec et al. 2018, LSNN): every spike raises its threshold for a while.

    Take the cell for spiking networks that must remember.

    b(t) = rho·b(t−1) + (1 − rho)·y(t−1)
    v(t) = alpha·v(t−1) + (1 − alpha)·a − (threshold + beta·b(t))·y(t−1)
    y(t) = spike((v(t) − threshold − beta·b(t))/threshold, "triangle")
    """
    b = rho * b + (1 - rho) * y
    v = alpha * v + (1 - alpha) * a - (threshold + beta * b) * y
    return spike((v - threshold - beta * b) / threshold, "triangle"), v, b
