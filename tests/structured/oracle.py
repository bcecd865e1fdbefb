"""The CRF by brute force: every tag sequence of the active steps, one after the other, in plain Python."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longlag.structured import CRF, Constraints


@dataclass(frozen=True)
class Path:
    """Tags of the active steps and their score."""

    tags: tuple[int, ...]
    score: float


def scores(crf: CRF) -> tuple[list[float], list[float], list[list[float]]]:
    """a_s, a_e and A[from][to] with −∞ where forbidden."""
    K = crf.num_tags
    a_s, a_e, A = (p.tolist() for p in (crf.start_transitions, crf.end_transitions, crf.transitions))
    if crf.allowed is not None and crf.allowed_starts is not None and crf.allowed_ends is not None:
        for j in range(K):
            a_s[j] = a_s[j] if crf.allowed_starts[j] else -math.inf
            a_e[j] = a_e[j] if crf.allowed_ends[j] else -math.inf
            for k in range(K):
                A[j][k] = A[j][k] if crf.allowed[j, k] else -math.inf
    return a_s, a_e, A


def paths(crf: CRF, emissions: Tensor, mask: Tensor) -> list[Path]:
    """All possible paths of one sequence (T, K), best first; equal scores in the order of their tags."""
    a_s, a_e, A = scores(crf)
    B = emissions[mask].tolist()
    if not B:
        return [Path((), 0.0)]
    found = []
    for y in itertools.product(range(crf.num_tags), repeat=len(B)):
        score = a_s[y[0]] + a_e[y[-1]] + math.fsum(B[t][y[t]] for t in range(len(B)) if B[t][y[t]] > -math.inf)
        if any(B[t][y[t]] == -math.inf for t in range(len(B))):
            score = -math.inf
        for j, k in itertools.pairwise(y):
            score += A[j][k]
        if score > -math.inf:
            found.append(Path(y, score))
    return sorted(found, key=lambda path: (-path.score, path.tags))


def log_partition(all_paths: list[Path]) -> float:
    """log Σ_y exp score(y)."""
    if not all_paths:
        return -math.inf
    top = all_paths[0].score
    return top + math.log(math.fsum(math.exp(path.score - top) for path in all_paths))


@dataclass(frozen=True)
class Expected:
    """Expected counts of one sequence: P(y_t = k), P(y_s = j, y_t = k), first and last tags."""

    tags: Tensor  # (T, K)
    pairs: Tensor  # (T, K, K)
    first: Tensor  # (K,)
    last: Tensor  # (K,)


def expected(all_paths: list[Path], mask: Tensor, K: int) -> Expected:
    """Counts of every path weighted by its probability."""
    active, log_Z, T = mask.nonzero().flatten().tolist(), log_partition(all_paths), len(mask)
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((T, K), (T, K, K), (K,), (K,))]
    tags, pairs, first, last = zeros
    for path in all_paths:
        p = math.exp(path.score - log_Z)
        for place, tag in zip(active, path.tags):
            tags[place, tag] += p
        for place, j, k in zip(active[1:], path.tags, path.tags[1:]):
            pairs[place, j, k] += p
        if path.tags:
            first[path.tags[0]] += p
            last[path.tags[-1]] += p
    return Expected(tags, pairs, first, last)


def spread(tags: tuple[int, ...], mask: Tensor) -> list[int]:
    """Tags at their places in time, −1 at masked steps."""
    rest = iter(tags)
    return [next(rest) if on else -1 for on in mask.tolist()]


def problem(
    B: int, T: int, K: int, *, seed: int, engine: str, holes: bool = True, constrained: bool = False, scale: float = 1.0
) -> tuple[CRF, Tensor, Tensor]:
    """A CRF with random float64 scores, emissions (B, T, K) and a mask (B, T) with holes anywhere."""
    g = torch.Generator().manual_seed(seed)
    allowed = None
    if constrained:
        draw = [torch.rand(shape, generator=g) < 0.7 for shape in ((K, K), (K,), (K,))]
        allowed = Constraints(*draw)
    crf = CRF(K, constraints=allowed, engine=engine, dtype=torch.float64)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    emissions = scale * torch.randn(B, T, K, generator=g, dtype=torch.float64)
    mask = torch.rand(B, T, generator=g) < 0.7 if holes else torch.ones(B, T, dtype=torch.bool)
    return crf, emissions, mask
