"""The paper's dense competitors as compiled loops: logistic nets under RTRL or BPTT, on symbol sequences.

Letters: W (n, d + n) weights of the n units that feed back, sources [x, y(t−1)]; V ([d] + n, d_out) weights of the
outputs, sources by rows [x if direct, y(t)], no rows if the first units are the outputs; P ∂y_k/∂W_is, (n, n·(d + n)).
Loss ½ Σ (y − ŷ)², an error at every step; `errors` (sequences, 3) takes largest, mean and squared error of each.
"""

import numpy as np

from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.simd.functions import FLAGS, sigmoid

KERNEL = {**FLAGS, "nogil": True}


@array_kernel(__file__, **KERNEL)
def advance(W, symbol, y, new):
    """y(t) = σ(W [x(t), y(t−1)]), x one-hot. [RNN-97 1]"""
    n = W.shape[0]
    d = W.shape[1] - n
    for k in range(n):
        net = W[k, symbol]
        for l in range(n):
            net += W[k, d + l] * y[l]
        new[k] = sigmoid(net)


@array_kernel(__file__, **KERNEL)
def answer(V, symbol, y, out):
    """The outputs: σ(V [x(t), y(t)]), or the first units themselves."""
    if V.shape[0] == 0:
        out[:] = y[: out.size]
        return
    direct = V.shape[0] - y.size
    for o in range(out.size):
        out[o] = V[symbol, o] if direct else 0.0
    for l in range(y.size):
        for o in range(out.size):
            out[o] += V[direct + l, o] * y[l]
    for o in range(out.size):
        out[o] = sigmoid(out[o])


@array_kernel(__file__, **KERNEL)
def compare(V, dV, symbol, target, y, out, e, tally):
    """Errors e = ∂E/∂y at the units, gradient of V, and the tally of |y − ŷ|."""
    e[:] = 0
    direct = V.shape[0] - y.size
    for o in range(out.size):
        error = out[o] - (1.0 if o == target else 0.0)
        tally[0] = max(tally[0], abs(error))
        tally[1] += abs(error)
        tally[2] += error * error
        if V.shape[0] == 0:
            e[o] = error
        else:
            out[o] = error * out[o] * (1 - out[o])  # δ
    for l in range(y.size if V.shape[0] else 0):
        for o in range(out.size):
            e[l] += V[direct + l, o] * out[o]
            dV[direct + l, o] += out[o] * y[l]
    if direct > 0:
        for o in range(out.size):
            dV[symbol, o] += out[o]


@array_kernel(__file__, **KERNEL)
def influence(W, symbol, y, new, P, Q):
    """Q_k,is = σ′_k (Σ_l U_kl P_l,is + δ_ki x̃_s)."""
    n, sources = W.shape
    d = sources - n
    for k in range(n):
        q = Q[k]
        q[:] = 0
        for l in range(n):
            u, p = W[k, d + l], P[l]
            for i in range(q.size):
                q[i] += u * p[i]
        q[k * sources + symbol] += 1
        for l in range(n):
            q[k * sources + d + l] += y[l]
        slope = new[k] * (1 - new[k])
        for i in range(q.size):
            q[i] *= slope  # [RNN-97 1 RTRL]


@array_kernel(__file__, **KERNEL)
def descend(w, dw, lr):
    """w −= lr · dw, dw = 0."""
    for i in range(w.size):
        w.flat[i] -= lr * dw.flat[i]
        dw.flat[i] = 0


@array_kernel(__file__, **KERNEL)
def note(errors, k, tally, count):
    """Keep the tally of sequence k, which had `count` scored outputs, and start afresh."""
    errors[k, 0] = tally[0] if tally[1] == tally[1] else np.nan
    errors[k, 1] = tally[1] / count
    errors[k, 2] = tally[2]
    tally[:] = 0


@array_kernel(__file__, **KERNEL)
def rtrl(W, V, inputs, offsets, targets, lr, per_step, errors):
    """Learn in real time: exact gradient, no history. Updates after each step or each sequence."""
    n = W.shape[0]
    out, e, tally = np.zeros(V.shape[1]), np.zeros(n), np.zeros(3)
    y, new = np.zeros(n), np.zeros(n)
    P, Q = np.zeros((n, W.size)), np.zeros((n, W.size))
    dW, dV = np.zeros(W.shape), np.zeros(V.shape)
    flat = dW.reshape(-1)
    for k in range(offsets.size - 1):
        y[:] = 0
        P[:] = 0
        for t in range(offsets[k], offsets[k + 1]):
            advance(W, inputs[t], y, new)
            influence(W, inputs[t], y, new, P, Q)
            answer(V, inputs[t], new, out)
            compare(V, dV, inputs[t], targets[t], new, out, e, tally)
            for j in range(n):
                for i in range(flat.size):
                    flat[i] += e[j] * Q[j, i]
            if per_step or t == offsets[k + 1] - 1:
                descend(W, dW, lr)
                descend(V, dV, lr)
            y, new, P, Q = new, y, Q, P
        note(errors, k, tally, (offsets[k + 1] - offsets[k]) * V.shape[1])


@array_kernel(__file__, **KERNEL)
def bptt(W, V, inputs, offsets, targets, lr, errors):
    """Learn from each whole sequence."""
    n, sources = W.shape
    d = sources - n
    out, tally, carry = np.zeros(V.shape[1]), np.zeros(3), np.zeros(n)
    longest = np.max(offsets[1:] - offsets[:-1])
    y, e = np.zeros((longest + 1, n)), np.zeros((longest, n))
    dW, dV = np.zeros(W.shape), np.zeros(V.shape)
    for k in range(offsets.size - 1):
        first, steps = offsets[k], offsets[k + 1] - offsets[k]
        for t in range(steps):
            advance(W, inputs[first + t], y[t], y[t + 1])
            answer(V, inputs[first + t], y[t + 1], out)
            compare(V, dV, inputs[first + t], targets[first + t], y[t + 1], out, e[t], tally)
        carry[:] = 0
        for t in range(steps - 1, -1, -1):
            for i in range(n):
                e[t, i] = (e[t, i] + carry[i]) * y[t + 1, i] * (1 - y[t + 1, i])  # [RNN-97 1 BPTT]
            carry[:] = 0
            for i in range(n):
                dW[i, inputs[first + t]] += e[t, i]
                for l in range(n):
                    dW[i, d + l] += e[t, i] * y[t, l]
                    carry[l] += W[i, d + l] * e[t, i]
        descend(W, dW, lr)
        descend(V, dV, lr)
        note(errors, k, tally, steps * V.shape[1])


@array_kernel(__file__, **KERNEL)
def observe(W, V, inputs, offsets, kept):
    """Outputs of all steps into `kept` (N, d_out), without learning."""
    y, new = np.zeros(W.shape[0]), np.zeros(W.shape[0])
    for k in range(offsets.size - 1):
        y[:] = 0
        for t in range(offsets[k], offsets[k + 1]):
            advance(W, inputs[t], y, new)
            answer(V, inputs[t], new, kept[t])
            y, new = new, y
