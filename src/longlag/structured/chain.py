"""The linear chain in plain torch: any device and dtype, differentiable twice, no loop over sequences. [CRF 2]

Letters: B sequences, T steps, K tags; α, β, δ as in the paper. A is [from, to], the transpose of the paper's; −∞ in a
score forbids. A masked step is skipped: its neighbours in time are adjacent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from longlag.engines import reference

Parts = tuple[Tensor, ...]


class Chain(NamedTuple):
    """The scores and the mask of a batch of sequences."""

    emissions: Tensor  # (B, T, K)
    mask: Tensor  # (B, T) bool
    a_s: Tensor  # (K,) scores of the first tag
    a_e: Tensor  # (K,) scores of the last tag
    A: Tensor  # (K, K) scores of a tag (column) after another (row)

    @property
    def over_time(self) -> tuple[Tensor, Tensor]:
        """Emissions (T, B, K) and mask (T, B, 1)."""
        return self.emissions.transpose(0, 1), self.mask.t().unsqueeze(-1)

    @property
    def steps(self) -> list[tuple[Tensor, Tensor]]:
        """Emissions (B, K) and mask (B, 1) of every step."""
        return list(zip(self.emissions.unbind(1), self.mask.unsqueeze(-1).unbind(1)))

    @property
    def nonempty(self) -> Tensor:
        """(B,): whether any step is active. A sequence without active steps has one path, the empty path of score 0."""
        return self.mask.any(1)


def lse(x: Tensor, dim: int) -> Tensor:
    """log Σ exp; −∞ with gradient 0 where every term is −∞ (``torch.logsumexp`` has gradient NaN there)."""
    dead = (x == -math.inf).all(dim, keepdim=True)
    return torch.logsumexp(x.masked_fill(dead, 0), dim).masked_fill(dead.squeeze(dim), -math.inf)


def highest(x: Tensor, dim: int) -> Tensor:
    """The maximum, in place of log Σ exp."""
    return x.amax(dim)


def forward_pass(chain: Chain, plus: Callable[[Tensor, int], Tensor]) -> Tensor:
    """α_t (T, B, K) with ``lse``, δ_t with ``highest``; a masked step repeats the value before it."""

    def step(now: Parts, before: Parts) -> tuple[Tensor, Parts]:
        (b, m), (alpha, started) = now, before
        arrive = plus(alpha.unsqueeze(-1) + chain.A, 1)  # (B, from, to) -> (B, to)
        new = b + torch.where(started, arrive, chain.a_s)  # [CRF 2 α] [CRF 2 δ]
        alpha = torch.where(m, new, alpha)
        return alpha, (alpha, started | m)

    nothing = torch.zeros_like(chain.emissions[:, 0]), torch.zeros_like(chain.mask[:, :1])
    return reference.scan(step, chain.over_time, nothing)[0]


def backward_pass(chain: Chain) -> list[Tensor]:
    """β_t (B, K) of every step; for a masked step, the message from its right neighbour to its left."""
    beta, betas = chain.a_e.expand_as(chain.emissions[:, 0]), []
    for b, m in reversed(chain.steps):
        betas.append(beta)
        beta = torch.where(m, lse(chain.A + (b + beta).unsqueeze(1), 2), beta)  # [CRF 2 β]
    return betas[::-1]


def log_partition(chain: Chain) -> Tensor:
    """log Z (B,); −∞ where no path is allowed."""
    alpha = forward_pass(chain, lse)[-1]
    return torch.where(chain.nonempty, lse(alpha + chain.a_e, 1), 0)  # [CRF 2 logZ]


def score(chain: Chain, tags: Tensor) -> Tensor:
    """a_s[y_1] + Σ_t A[y_{t−1}, y_t] + Σ_t B[t, y_t] + a_e[y_L] for tags (B, T); those of masked steps are not read."""
    t = torch.arange(tags.shape[1], device=tags.device)
    latest = torch.where(chain.mask, t, -1).cummax(1).values  # the last active step up to t
    previous = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)
    y = torch.where(chain.mask, tags, 0)
    y_previous, y_last = y.gather(1, previous.clamp(min=0)), y.gather(1, latest[:, -1].clamp(min=0).unsqueeze(1))
    arrive = torch.where(previous >= 0, pick(chain.A, y_previous * len(chain.A) + y), pick(chain.a_s, y))
    emitted = chain.emissions.gather(2, y.unsqueeze(-1)).squeeze(-1)
    along = torch.where(chain.mask, arrive + emitted, 0).sum(1)
    return along + torch.where(chain.nonempty, pick(chain.a_e, y_last).squeeze(1), 0)  # [CRF 2 score]


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values.flatten()[index], with the faster backward of ``gather``."""
    return values.flatten().gather(0, index.flatten()).view_as(index)


def marginals(chain: Chain) -> Tensor:
    """P(y_t = k) (B, T, K); 0 at masked steps, and everywhere if no path is allowed."""
    log_Z = log_partition(chain)
    log_Z = log_Z.masked_fill(log_Z == -math.inf, 0)
    both = forward_pass(chain, lse).transpose(0, 1) + torch.stack(backward_pass(chain), 1)
    inside = (both - log_Z[:, None, None]).masked_fill(~chain.mask.unsqueeze(-1), -math.inf)
    return inside.exp()  # [CRF 2 P(y_t=k)]


def pair_marginals(chain: Chain) -> Tensor:
    """P(tag of the last active step before t = j, y_t = k) (B, T, K, K); 0 where t is masked or first."""
    log_Z = log_partition(chain)
    log_Z = log_Z.masked_fill(log_Z == -math.inf, 0)
    alpha = forward_pass(chain, lse)[:-1].transpose(0, 1) if chain.mask.shape[1] > 1 else chain.emissions[:, :0]
    onwards = chain.emissions + torch.stack(backward_pass(chain), 1)
    inside = alpha.unsqueeze(-1) + chain.A + onwards[:, 1:].unsqueeze(2) - log_Z[:, None, None, None]
    pairs = chain.mask[:, 1:] & chain.mask.cummax(1).values[:, :-1]
    inside = inside.masked_fill(~pairs[:, :, None, None], -math.inf).exp()  # [CRF 2 P(y_t=k, y_t-1=j)]
    return torch.cat([torch.zeros_like(onwards[:, :1].unsqueeze(2) + chain.A), inside], 1)


def trace_back(chain: Chain, alphas: Tensor, n: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """n paths (B, n, T) from the end, each tag chosen by its scores (B, n, K) given the next tag; −1 if masked."""

    def step(now: Parts, before: Parts) -> tuple[Tensor, Parts]:
        (alpha, m), (tag, later) = now, before
        onwards = torch.where(later.unsqueeze(-1), chain.A.T[tag], chain.a_e)
        chosen = choose(alpha.unsqueeze(1) + onwards)
        return torch.where(m, chosen, -1), (torch.where(m, chosen, tag), later | m)

    nothing = chain.mask.new_zeros(chain.mask.shape[0], n, dtype=torch.long), torch.zeros_like(chain.mask[:, :1])
    return reference.scan(step, (alphas, chain.over_time[1]), nothing, reverse=True)[0].movedim(0, -1)


def viterbi(chain: Chain) -> tuple[Tensor, Tensor]:
    """Best paths (B, T) and their scores (B,); without a path all −1 and a score of −∞ (NaN if an emission is)."""
    deltas = forward_pass(chain, highest)
    scores = torch.where(chain.nonempty, (deltas[-1] + chain.a_e).amax(1), 0)
    paths = trace_back(chain, deltas, 1, lambda s: s.argmax(-1)).squeeze(1)  # [CRF 2 ψ]
    return paths.masked_fill(~(scores > -math.inf).unsqueeze(1), -1), scores


def sample(chain: Chain, n: int, generator: torch.Generator | None) -> Tensor:
    """n paths (B, n, T) drawn from p(y | x): forward in sums, backward in draws; all −1 if no path is allowed."""

    def draw(scores: Tensor) -> Tensor:  # argmax of scores with Gumbel noise ~ softmax(scores)
        return (scores - torch.empty_like(scores).exponential_(generator=generator).log()).argmax(-1)

    alphas = forward_pass(chain, lse)
    possible = lse(alphas[-1] + chain.a_e, 1) > -math.inf
    return trace_back(chain, alphas, n, draw).masked_fill(~possible[:, None, None], -1)


def k_best(chain: Chain, k: int) -> tuple[Tensor, Tensor]:
    """The k best paths (B, k, T), best first, and scores (B, k); all −1 and −∞ where there are fewer than k."""
    B, K = len(chain.mask), len(chain.A)
    stay = torch.arange(K * k, device=chain.A.device).expand(B, K * k)  # tag·k + rank names a partial path
    delta = chain.emissions.new_full((B, K, k), -math.inf)
    started, pointers = torch.zeros_like(chain.mask[:, :1]), []
    for b, m in chain.steps:
        arrive = (delta.unsqueeze(-1) + chain.A.unsqueeze(1)).flatten(1, 2)  # (B, from·k + rank, to)
        best, source = (x.transpose(1, 2) for x in arrive.topk(k, 1))  # (B, to, rank)
        first = torch.full_like(delta, -math.inf)
        first[..., 0] = chain.a_s
        new = b.unsqueeze(-1) + torch.where(started.unsqueeze(-1), best, first)
        delta = torch.where(m.unsqueeze(-1), new, delta)
        pointers.append(torch.where(m & started, source.flatten(1), stay))
        started = started | m
    scores, partial = (delta + chain.a_e.unsqueeze(-1)).flatten(1).topk(k, 1)
    path = []
    for pointer, (_, m) in zip(reversed(pointers), reversed(chain.steps)):
        path.append(torch.where(m, partial // k, -1))
        partial = pointer.gather(1, partial)
    empty = torch.where(torch.arange(k, device=scores.device) == 0, 0, -math.inf)
    scores = torch.where(chain.nonempty.unsqueeze(1), scores, empty)
    paths = torch.stack(path[::-1], -1)
    return paths.masked_fill(~(scores > -math.inf).unsqueeze(-1), -1), scores
