"""Greedy, sampled and beam search against the same written with lists, and against all sequences there are."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from longlag.structured import search

END = 0


class Table:
    """A model that remembers everything: log p of the next token for every prefix, random but fixed."""

    def __init__(self, V: int, seed: int) -> None:
        self.V, self.seed, self.known = V, seed, {}

    def log_p(self, prefix: tuple[int, ...]) -> torch.Tensor:
        if prefix not in self.known:
            g = torch.Generator().manual_seed(self.seed + sum((1 + t) * 31**i for i, t in enumerate(prefix)) % 2**31)
            self.known[prefix] = torch.log_softmax(2 * torch.randn(self.V, generator=g, dtype=torch.float64), -1)
        return self.known[prefix]

    def score(self, sequence: tuple[int, ...]) -> float:
        return sum(float(self.log_p(sequence[:i])[token]) for i, token in enumerate(sequence))


class Several:
    """Tables as one batch; a state is a list of (table, prefix), its first token (the start) not counted."""

    def __init__(self, tables: list[Table], copies: int = 1) -> None:
        self.state = [(table, ()) for table in tables for _ in range(copies)]
        self.start = torch.full((len(tables),), 9)

    @staticmethod
    def step(tokens, state):
        state = [(table, (*prefix, int(token))) for (table, prefix), token in zip(state, tokens)]
        return torch.stack([table.log_p(prefix[1:]) for table, prefix in state]), state

    @staticmethod
    def reorder(state, index):
        return [state[int(i)] for i in index]


def run_beam(tables, width, max_length, length_penalty):
    batch = Several(tables, width)
    return search.beam(batch.step, batch.reorder, batch.state, batch.start, END, width, max_length, length_penalty)


def normal(score: float, length: int, length_penalty: float) -> float:
    return score / ((5 + length) / 6) ** length_penalty


def by_hand(table: Table, k: int, max_length: int, length_penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search with lists: (normalised score, sequence), best first."""
    live, stored = [(0.0, ())], []
    for _ in range(max_length):
        grown = [(s + float(table.log_p(y)[v]), (*y, v)) for s, y in live for v in range(table.V)]
        grown.sort(key=lambda pair: -pair[0])
        stored += [(normal(s, len(y), length_penalty), y) for s, y in grown[:k] if y[-1] == END]
        stored = sorted(stored, key=lambda pair: -pair[0])[:k]
        live = [pair for pair in grown if pair[1][-1] != END][:k]
        if len(stored) == k:
            break
    return (stored + [(normal(s, len(y), length_penalty), y) for s, y in live])[:k]


def listed(found: search.Decoded, b: int) -> list[tuple[float, tuple[int, ...]]]:
    rows = zip(found.scores[b].tolist(), found.lengths[b].tolist(), found.tokens[b].tolist())
    for _, length, tokens in zip(found.scores[b], found.lengths[b].tolist(), found.tokens[b].tolist()):
        assert all(token >= 0 for token in tokens[:length])
        assert all(token == -1 for token in tokens[length:])
    return [(score, tuple(tokens[:length])) for score, length, tokens in rows if length]


def agree(got, want):
    assert [y for _, y in got] == [y for _, y in want]
    assert [s for s, _ in got] == pytest.approx([s for s, _ in want], rel=1e-12)


@given(st.integers(2, 4), st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.0, 0.6, 1.0]), st.integers(0, 999))
def test_beam_is_beam_search_by_hand_for_each_sequence(V, k, max_length, length_penalty, seed):
    tables = [Table(V, seed + 1000 * b) for b in range(3)]
    found = run_beam(tables, k, max_length, length_penalty)
    for b, table in enumerate(tables):
        agree(listed(found, b), by_hand(table, k, max_length, length_penalty))


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
def test_a_wide_beam_finds_everything(length_penalty):
    table, V, T = Table(3, 5), 3, 4
    found = listed(run_beam([table], 100, T, length_penalty), 0)
    ended = [(*y, END) for n in range(T) for y in itertools.product(range(1, V), repeat=n)]
    cut_off = list(itertools.product(range(1, V), repeat=T))
    want = []
    for group in (ended, cut_off):
        scored = [(normal(table.score(y), len(y), length_penalty), y) for y in group]
        want += sorted(scored, key=lambda pair: -pair[0])
    agree(found, want)
    assert math.fsum(math.exp(table.score(y)) for _, y in found) == pytest.approx(1.0, rel=1e-12)


@given(st.integers(2, 5), st.integers(1, 7), st.integers(0, 999))
def test_a_beam_of_one_is_greedy(V, max_length, seed):
    tables = [Table(V, seed + 1000 * b) for b in range(4)]
    batch, found = Several(tables), run_beam(tables, 1, max_length, 0.6)
    one = search.follow(batch.step, batch.state, batch.start, END, max_length, search.greedy)
    assert torch.equal(found.tokens[:, 0], one.tokens)
    assert torch.equal(found.lengths[:, 0], one.lengths)
    for b, table in enumerate(tables):
        y = ()
        while len(y) < max_length and (not y or y[-1] != END):
            y = (*y, int(table.log_p(y).argmax()))
        assert one.tokens[b, : len(y)].tolist() == list(y)
        assert one.lengths[b] == len(y)
        assert float(one.scores[b]) == pytest.approx(table.score(y), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_probabilities_of_the_model(temperature):
    table, n = Table(3, 8), 20_000
    p = torch.softmax(table.log_p(()) / temperature, -1).tolist()
    batch = Several([table] * n)
    choose = search.sampler(temperature, torch.Generator().manual_seed(2))
    found = search.follow(batch.step, batch.state, batch.start, END, 1, choose)
    seen = [int((found.tokens[:, 0] == v).sum()) for v in range(3)]
    assert chisquare(seen, [n * x for x in p]).pvalue > 1e-3
    assert float(found.scores[0]) == table.score((int(found.tokens[0, 0]),))
