"""CRF kernels for the CPU, in float64, compiled by Numba; `longlag.structured.chain` is the torch version. [CRF 2]

Letters, per sequence: B (T, K) emissions, m (T,) mask, a_s, a_e (K,), A (K, K) as [from, to]; L active steps, counted
by l; steps[l] is the time of active step l, and masked steps are skipped. α, β, δ as in the paper.

Sums run on probabilities, scaled to Σ_k α̂_l[k] = 1 at every step (Rabiner 1989): one matrix product and one
logarithm (of the scale c_l) per step. This is exact while no number comes near the end of the range. A sequence with a
smaller number (`LEAST`) is computed again with logarithms.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.array_kernels import array_kernel
from longlag.engines.cpu.simd.functions import FLAGS, INLINE, exp

KERNEL: dict[str, Any] = {**FLAGS, "nogil": True}
LEAST = 1e-100  # a product of three such factors does not underflow: a product of 0 has a factor of 0
FARTHEST = math.log(LEAST)


@njit(**INLINE)
def scaled(a, e):
    """e = exp(a − top), top = max a; returns top and whether every finite a is in range."""
    top, low = -np.inf, np.inf
    for k in range(a.shape[0]):
        top = a[k] if a[k] > top else top
        low = a[k] if a[k] < low and a[k] > -np.inf else low
    top = top if top > -np.inf else 0.0
    for k in range(a.shape[0]):
        e[k] = exp(a[k] - top)
    return top, low - top > FARTHEST


@njit(**INLINE)
def filtered(B, m, e_s, e_e, E, offset, alpha, scaled_B, c, steps):
    """α̂_l ∝ P(y_l | steps up to l), their scales c (the last one for a_e), L, log Z, and whether the result is exact.

    offset holds the maxima subtracted from a_s, a_e and A before exp gives e_s, e_e and E.
    """
    L, log_Z, exact = 0, 0.0, True
    for t in range(B.shape[0]):
        if not m[t]:
            continue
        now, weight = alpha[L], scaled_B[L]
        top, near = scaled(B[t], weight)
        if L == 0:
            now[:] = e_s
            log_Z += offset[0] + top
        else:
            now[:] = 0.0
            before = alpha[L - 1]
            for j in range(E.shape[0]):
                p, row = before[j], E[j]
                for k in range(E.shape[1]):
                    now[k] += p * row[k]  # [CRF 2 α]
            log_Z += offset[2] + top
        total = 0.0
        for k in range(E.shape[1]):
            now[k] *= weight[k]
            total += now[k]
        if total == 0.0:
            return L, -np.inf, exact and near
        scale, least = 1.0 / total, 1.0
        for k in range(E.shape[1]):
            now[k] *= scale
            least = now[k] if now[k] > 0.0 and now[k] < least else least
        exact = exact and near and least > LEAST
        log_Z += math.log(total)
        c[L], steps[L] = total, t
        L += 1
    if L == 0:
        return 0, 0.0, True
    total = 0.0
    for k in range(E.shape[1]):
        total += alpha[L - 1, k] * e_e[k]
    c[L] = total
    return L, log_Z + offset[1] + (math.log(total) if total > 0.0 else (-np.inf if total == 0.0 else total)), exact


@njit(**INLINE)
def smoothed(g, L, e_e, E_T, alpha, scaled_B, c, steps, dB, d_s, d_e, G):
    """Gradients of g·log Z: dB = g P(y_l), and G with E ⊙ G = Σ_l g P(y_{l−1}, y_l)."""
    K = e_e.shape[0]
    beta, v = e_e / c[L], np.empty(K)
    for l in range(L - 1, -1, -1):
        row = dB[steps[l]]
        for k in range(K):
            # an unreachable tag could have any β̂; without such tags no product exceeds 1/LEAST²
            beta[k] = beta[k] if alpha[l, k] > 0.0 else 0.0
            row[k] = g * (alpha[l, k] * beta[k])  # [CRF 2 P(y_t=k)]
        if l == L - 1:
            d_e += row
        if l == 0:
            d_s += row
            break
        for k in range(K):
            v[k] = beta[k] * scaled_B[l, k] / c[l]
            beta[k] = 0.0
        for j in range(K):
            p, to = g * alpha[l - 1, j], G[j]
            for k in range(K):
                to[k] += p * v[k]  # [CRF 2 P(y_t=k, y_t-1=j)], without the factor E
        for k in range(K):
            q, column = v[k], E_T[k]
            for j in range(K):
                beta[j] += column[j] * q  # [CRF 2 β]


@njit(**INLINE)
def log_sum_exp(terms, top, total, out):
    """out_k = lse_j terms[j, k]; −∞ where every term is."""
    top[:] = -np.inf
    for j in range(terms.shape[0]):
        for k in range(terms.shape[1]):
            top[k] = terms[j, k] if terms[j, k] > top[k] else top[k]
    for k in range(terms.shape[1]):
        top[k] = top[k] if top[k] > -np.inf else 0.0
    total[:] = 0.0
    for j in range(terms.shape[0]):
        for k in range(terms.shape[1]):
            total[k] += exp(terms[j, k] - top[k])
    for k in range(terms.shape[1]):
        out[k] = top[k] + (math.log(total[k]) if total[k] != 0.0 else -np.inf)


@njit(**INLINE)
def filtered_in_logs(B, m, a_s, a_e, A, alpha, steps):
    """α_l, L and log Z, computed in logarithms."""
    L, K = 0, A.shape[0]
    terms, top, total, last = np.empty((K, K)), np.empty(K), np.empty(K), np.empty(1)
    for t in range(B.shape[0]):
        if not m[t]:
            continue
        if L == 0:
            alpha[0] = a_s + B[t]
        else:
            for j in range(K):
                for k in range(K):
                    terms[j, k] = alpha[L - 1, j] + A[j, k]
            log_sum_exp(terms, top, total, alpha[L])
            alpha[L] += B[t]  # [CRF 2 α]
        steps[L] = t
        L += 1
    log_sum_exp((alpha[L - 1] + a_e).reshape(K, 1), top[:1], total[:1], last)
    return L, last[0]


@njit(**INLINE)
def smoothed_in_logs(g, L, log_Z, B, a_e, A_T, alpha, steps, dB, d_s, d_e, dA_T):
    """Gradients of g·log Z, computed in logarithms."""
    K = a_e.shape[0]
    terms, top, total, beta = np.empty((K, K)), np.empty(K), np.empty(K), a_e.copy()
    for l in range(L - 1, -1, -1):
        row = dB[steps[l]]
        for k in range(K):
            row[k] = g * exp(alpha[l, k] + beta[k] - log_Z)  # [CRF 2 P(y_t=k)]
        if l == L - 1:
            d_e += row
        if l == 0:
            d_s += row
            break
        before = alpha[l - 1]
        for k in range(K):
            onwards, term, to = B[steps[l], k] + beta[k], terms[k], dA_T[k]
            for j in range(K):
                term[j] = A_T[k, j] + onwards
                to[j] += g * exp(before[j] + term[j] - log_Z)  # [CRF 2 P(y_t=k, y_t-1=j)]
        log_sum_exp(terms, top, total, beta)  # [CRF 2 β]


@njit(**INLINE)
def exponentials(a_s, a_e, A):
    """e_s, e_e, E, the maximum subtracted from each, and whether the scaled pass may be tried."""
    K = A.shape[0]
    e_s, e_e, E, offset = np.empty(K), np.empty(K), np.empty(K * K), np.empty(3)
    offset[0], near_s = scaled(a_s, e_s)
    offset[1], near_e = scaled(a_e, e_e)
    offset[2], near = scaled(A.reshape(K * K), E)
    return e_s, e_e, E.reshape(K, K), offset, near_s and near_e and near


@array_kernel(__file__, **KERNEL)
def log_partition(emissions, mask, a_s, a_e, A):
    """log Z (N,) of emissions (N, T, K)."""
    N, T, K = emissions.shape
    e_s, e_e, E, offset, near = exponentials(a_s, a_e, A)
    alpha, scaled_B, c, steps = np.empty((T, K)), np.empty((T, K)), np.empty(T + 1), np.empty(T, np.int64)
    log_Z = np.empty(N)
    for n in range(N):
        B, m = emissions[n], mask[n]
        _, log_Z[n], exact = filtered(B, m, e_s, e_e, E, offset, alpha, scaled_B, c, steps)
        if not (exact and near) and m.any():
            _, log_Z[n] = filtered_in_logs(B, m, a_s, a_e, A, alpha, steps)
    return log_Z


@array_kernel(__file__, **KERNEL)
def gradient(g, emissions, mask, a_s, a_e, A):
    """Gradients of Σ_n g_n log Z_n by emissions, a_s, a_e and A; 0 for a sequence without a path."""
    N, T, K = emissions.shape
    e_s, e_e, E, offset, near = exponentials(a_s, a_e, A)
    A_T, E_T = A.T.copy(), E.T.copy()
    alpha, scaled_B, c, steps = np.empty((T, K)), np.empty((T, K)), np.empty(T + 1), np.empty(T, np.int64)
    dB, d_s, d_e, dA_T, G = np.zeros((N, T, K)), np.zeros(K), np.zeros(K), np.zeros((K, K)), np.zeros((K, K))
    for n in range(N):
        B, m = emissions[n], mask[n]
        L, log_Z, exact = filtered(B, m, e_s, e_e, E, offset, alpha, scaled_B, c, steps)
        if exact and near:
            if L > 0 and log_Z != -np.inf:
                smoothed(g[n], L, e_e, E_T, alpha, scaled_B, c, steps, dB[n], d_s, d_e, G)
        elif m.any():
            L, log_Z = filtered_in_logs(B, m, a_s, a_e, A, alpha, steps)
            if log_Z != -np.inf:
                smoothed_in_logs(g[n], L, log_Z, B, a_e, A_T, alpha, steps, dB[n], d_s, d_e, dA_T)
    return dB, d_s, d_e, dA_T.T + E * G


@njit(**INLINE)
def best(a, b):
    """argmax_k(a_k + b_k), the lowest on ties, and the maximum."""
    index, top = 0, -np.inf
    for k in range(a.shape[0]):
        if a[k] + b[k] > top:
            index, top = k, a[k] + b[k]
    return index, top


@array_kernel(__file__, **KERNEL)
def viterbi(emissions, mask, a_s, a_e, A):
    """Best paths (N, T), −1 at masked steps, and scores (N,); without a path all −1 and a score of −∞ (or NaN)."""
    N, T, K = emissions.shape
    delta, steps, A_T = np.empty((T, K)), np.empty(T, np.int64), A.T.copy()
    paths, scores = np.full((N, T), -1), np.zeros(N)
    for n in range(N):
        L, clean = 0, True
        for t in range(T):
            if not mask[n, t]:
                continue
            now, B = delta[L], emissions[n, t]
            if L == 0:
                now[:] = a_s
            else:
                now[:] = -np.inf
                for j in range(K):
                    d, row = delta[L - 1, j], A[j]
                    for k in range(K):
                        now[k] = d + row[k] if d + row[k] > now[k] else now[k]  # [CRF 2 δ]
            for k in range(K):
                clean = clean and B[k] == B[k]
                now[k] += B[k]
            steps[L] = t
            L += 1
        if L == 0:
            continue
        tag, scores[n] = best(delta[L - 1], a_e)
        if not clean:
            scores[n] = np.nan
        elif scores[n] > -np.inf:
            paths[n, steps[L - 1]] = tag
            for l in range(L - 2, -1, -1):
                tag, _ = best(delta[l], A_T[tag])  # [CRF 2 ψ], recomputed for the one tag on the path
                paths[n, steps[l]] = tag
    return paths, scores
