"""From next-token probabilities to sequences: one choice at a time, or a beam of hypotheses. [SEQ2SEQ 4]

A model is a function ``step(tokens (N,), state) -> (log_p (N, V), state)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
Step = Callable[[Tensor, S], tuple[Tensor, S]]
Choose = Callable[[Tensor], Tensor]  # log_p (N, V) -> tokens (N,)


class Decoded(NamedTuple):
    """Sequences found: the length includes the end token; a sequence without an end token was cut off."""

    tokens: Tensor  # (B, T), −1 beyond the length; (B, k, T) from a beam, best first
    lengths: Tensor  # (B,) or (B, k); 0 where a beam found fewer than k
    scores: Tensor  # (B,) or (B, k): Σ log p, of a beam divided by the length penalty


def penalty(length: int, exponent: float) -> float:
    """((5 + |y|)/6)^λ (Wu et al. 2016).

    >>> penalty(1, 0.7), penalty(7, 1.0)
    (1.0, 2.0)
    """
    return ((5 + length) / 6) ** exponent  # [SEQ2SEQ 4 length]


def follow(step: Step[S], state: S, start: Tensor, end: int, max_length: int, choose: Choose) -> Decoded:
    """One sequence per row of ``start`` (B,); ``choose`` picks the next tokens (B,) from log_p (B, V)."""
    token, finished, tokens = start, torch.zeros_like(start, dtype=torch.bool), []
    lengths, score = torch.zeros_like(start), torch.zeros_like(start, dtype=torch.float32)
    for _ in range(max_length):
        log_p, state = step(token, state)
        token = choose(log_p)
        score = score + log_p.gather(1, token.unsqueeze(1)).squeeze(1).masked_fill(finished, 0)
        tokens.append(token.masked_fill(finished, -1))
        lengths = lengths + ~finished
        finished = finished | (token == end)
        if bool(finished.all()):
            break
    return Decoded(torch.stack(tokens, 1), lengths, score)


def greedy(log_p: Tensor) -> Tensor:
    """The most probable token."""
    return log_p.argmax(-1)


def sampler(temperature: float, generator: torch.Generator | None) -> Choose:
    """Draws from p^(1/temperature), normalised."""
    return lambda log_p: torch.multinomial(torch.softmax(log_p / temperature, -1), 1, generator=generator).squeeze(1)


class _Pool(NamedTuple):
    """Hypotheses of every sequence, best first; a score of −∞ marks an empty slot."""

    scores: Tensor  # (B, k)
    lengths: Tensor  # (B, k)
    tokens: Tensor  # (B, k, max_length)

    def take(self, index: Tensor) -> _Pool:
        wide = index.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1])
        return _Pool(self.scores.gather(1, index), self.lengths.gather(1, index), self.tokens.gather(1, wide))

    def join(self, other: _Pool) -> _Pool:
        return _Pool(*(torch.cat(pair, 1) for pair in zip(self, other)))

    @property
    def filled(self) -> Tensor:
        return self.scores > -math.inf


def beam(
    step: Step[S],
    reorder: Callable[[S, Tensor], S],
    state: S,
    start: Tensor,
    end: int,
    width: int,
    max_length: int,
    length_penalty: float,
) -> Decoded:
    """Beam search: the k best unfinished hypotheses continue; a finished one among the k best candidates is stored.

    A sequence is done when k are stored. ``state`` holds k = ``width`` equal copies per row of ``start`` (B,);
    ``reorder(state, index (B·k,))`` picks rows of it. k = 1 is greedy search.
    """
    B, k = len(start), width
    first_row = torch.arange(B, device=start.device).unsqueeze(1) * k
    nothing = torch.full((B, k), -math.inf, device=start.device)
    stored = _Pool(nothing, start.new_zeros(B, k), start.new_full((B, k, max_length), -1))
    live = stored._replace(scores=nothing.index_fill(1, start.new_zeros(1), 0))  # of the k equal copies only one counts
    token, divisor = start.repeat_interleave(k), 1.0
    for t in range(max_length):
        log_p, state = step(token, state)
        grown, parent = _grow(live, log_p.unflatten(0, (B, k)), t)
        ends = grown.tokens[:, :, t] == end
        divisor = penalty(t + 1, length_penalty)
        stored = _store(stored, grown._replace(scores=grown.scores / divisor), ends)
        going = grown.scores.masked_fill(ends, -math.inf)
        kept = going.sort(stable=True, dim=1, descending=True).indices[:, :k]
        live = grown._replace(scores=going).take(kept)
        token, state = live.tokens[:, :, t].flatten(), reorder(state, (first_row + parent.gather(1, kept)).flatten())
        if bool(stored.filled.all()):
            break
    return _ranked(stored, live._replace(scores=live.scores / divisor))


def _grow(live: _Pool, log_p: Tensor, t: int) -> tuple[_Pool, Tensor]:
    """The 2k best continuations of k hypotheses, and the hypothesis of each: at most k end, so k can continue."""
    k, V = log_p.shape[1:]
    total = (live.scores.unsqueeze(-1) + log_p).flatten(1)
    scores, index = total.topk(min(2 * k, k * V), 1)
    tokens = live.take(index // V).tokens
    tokens[:, :, t] = index % V
    return _Pool(scores, torch.full_like(index, t + 1), tokens), index // V


def _store(stored: _Pool, grown: _Pool, ends: Tensor) -> _Pool:
    """The k best finished hypotheses so far; a full pool accepts no more, whatever the rest of the batch."""
    k = stored.scores.shape[1]
    among_best = torch.arange(ends.shape[1], device=ends.device) < k
    closed = stored.filled.all(1, keepdim=True)
    both = stored.join(grown._replace(scores=grown.scores.masked_fill(~(ends & among_best) | closed, -math.inf)))
    return both.take(both.scores.topk(k, 1).indices)


def _ranked(stored: _Pool, live: _Pool) -> Decoded:
    """The k best: finished hypotheses first, then those cut off."""
    both = stored.join(live)
    place = torch.cat([torch.zeros_like(stored.lengths), torch.ones_like(live.lengths)], 1)
    place = place.masked_fill(both.scores == -math.inf, 2)
    best = both.take(place.sort(stable=True, dim=1).indices[:, : stored.scores.shape[1]])
    empty = best.scores == -math.inf
    longest = int(best.lengths.masked_fill(empty, 0).max()) if best.lengths.numel() else 0
    tokens = best.tokens.masked_fill(empty.unsqueeze(-1), -1)[..., :longest]
    return Decoded(tokens, best.lengths.masked_fill(empty, 0), best.scores)
