"""Units of the local-feedback network (Frasconi, Gori and Soda 1992): f(a) = tanh(a/2), feedback on the unit itself.

The papers' h is y here: a unit's output. From the previous step a unit reads only its own values.
"""

from longlag.cells import cell, tanh


@cell(gates="a", dense=False)
def static(a):
    """Static unit: no feedback.

    y(t) = tanh(a/2)
    """
    return tanh(a / 2)  # [LF-92 S]


@cell(gates="a", states="n", params={"u": 0.9}, dense=False)
def net_feedback(a, n, u):
    """Net-input feedback: the net input n leaks with gain u, a linear recurrence.

    n(t) = u·n(t−1) + a
    y(t) = tanh(n(t)/2)
    """
    n = u * n + a  # [LF-92 N]
    return tanh(n / 2), n


@cell(gates="a", params={"v": 1.0}, dense=False)
def activation_feedback(a, y, v):
    """Activation feedback: the output returns with gain v; two stable states when v > 2.

    y(t) = tanh((v·y(t−1) + a)/2)
    """
    return tanh((v * y + a) / 2)  # [LF-92 A]
