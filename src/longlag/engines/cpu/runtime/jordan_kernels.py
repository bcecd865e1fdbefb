"""Jordan's network on the CPU engine: two products and a softmax in every step.

Shapes: x (T, B, n); a (T, B, m) net inputs; h (T, B, m); p (T, B, l) what is fed back; τ (T, B) and targets y
(T, B, l), or empty. P·: packed matrices.
"""

import numpy as np

from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.cache.compile import OPTIONS
from longlag.engines.cpu.simd.functions import exp, tanh
from longlag.engines.cpu.simd.product import multiply, width


@array_kernel(__file__, **OPTIONS)
def softmax(z, p):
    """p = softmax(z)."""
    top, total = z.max(), z.dtype.type(0)
    for k in range(len(z)):
        p[k] = exp(z[k] - top)
        total += p[k]
    for k in range(len(z)):
        p[k] /= total


@array_kernel(__file__, **OPTIONS)
def forward(x, PW, b, PU, PR, PV, c_out, fb_0, h_0, rest, targets, tau, lengths, reset, logits, fed_back, before, h, z):
    """Fills fed_back (T, B, l) and before (T, B, m), the fb and h that step t read, and h, z; returns last fb, h."""
    T, B, n = x.shape
    m, l = h.shape[2], z.shape[2]
    zero = x.dtype.type(0)
    edge = np.empty(B * width(x), x.dtype)
    fb, state, p = fb_0.copy(), h_0.copy(), np.empty(l, x.dtype)
    for t in range(T):
        fed_back[t] = fb
        before[t] = state
        for r in range(B):
            h[t, r] = b
            z[t, r] = c_out
            if reset.size > 0 and reset[t, r]:
                fed_back[t, r] = rest
                before[t, r] = zero
        step = h[t].reshape(-1)
        multiply(x[t].reshape(-1), 0, n, B, n, PW, step, 0, m, True, edge)
        multiply(fed_back[t].reshape(-1), 0, l, B, l, PU, step, 0, m, True, edge)  # [JORDAN 2 r]
        if PR.size > 0:
            multiply(before[t].reshape(-1), 0, m, B, m, PR, step, 0, m, True, edge)  # [PAT-IV]
        for k in range(B * m):
            step[k] = tanh(step[k])
        multiply(step, 0, m, B, m, PV, z[t].reshape(-1), 0, l, True, edge)
        for r in range(B):
            if lengths.size > 0 and t >= lengths[r]:
                z[t, r] = zero
                continue
            state[r] = h[t, r]
            softmax(z[t, r], p)
            for k in range(l):
                q = z[t, r, k] if logits else p[k]
                fb[r, k] = tau[t, r] * targets[t, r, k] + (1 - tau[t, r]) * q if tau.size > 0 else q
    return fb, state


@array_kernel(__file__, **OPTIONS)
def backward(PW, PU, PR, PV, tau, lengths, reset, logits, h, z, d_z_out, d_fb, d_h, d_r, d_z, d_x):
    """Fills d_r (T, B, m), d_z (T, B, l), d_x; d_fb (B, l) and d_h (B, m) become those of the initial state."""
    T, B, m = h.shape
    l, n = z.shape[2], d_x.shape[2]
    zero, one = h.dtype.type(0), h.dtype.type(1)
    edge = np.empty(B * width(h), h.dtype)
    p, d_step = np.empty(l, h.dtype), np.empty((B, m), h.dtype)
    for t in range(T - 1, -1, -1):
        for r in range(B):
            if lengths.size > 0 and t >= lengths[r]:
                d_z[t, r] = zero
                d_step[r] = zero
                continue
            share = one - tau[t, r] if tau.size > 0 else one
            softmax(z[t, r], p)
            along = zero
            for k in range(l):
                along += p[k] * d_fb[r, k]
            for k in range(l):  # through q = z, or p = softmax z
                through = d_fb[r, k] if logits else p[k] * (d_fb[r, k] - along)
                d_z[t, r, k] = d_z_out[t, r, k] + share * through
                d_fb[r, k] = zero
            for k in range(m):
                d_step[r, k] = d_h[r, k]
                d_h[r, k] = zero
        multiply(d_z[t].reshape(-1), 0, l, B, l, PV, d_step.reshape(-1), 0, m, True, edge)
        for r in range(B):
            for k in range(m):
                d_r[t, r, k] = (one - h[t, r, k] * h[t, r, k]) * d_step[r, k]
        step = d_r[t].reshape(-1)
        multiply(step, 0, m, B, m, PU, d_fb.reshape(-1), 0, l, True, edge)
        if PR.size > 0:
            multiply(step, 0, m, B, m, PR, d_h.reshape(-1), 0, m, True, edge)
        if d_x.size > 0:
            multiply(step, 0, m, B, m, PW, d_x[t].reshape(-1), 0, n, False, edge)
        for r in range(B):
            if reset.size > 0 and reset[t, r] and (lengths.size == 0 or t < lengths[r]):
                d_fb[r] = zero
                d_h[r] = zero
