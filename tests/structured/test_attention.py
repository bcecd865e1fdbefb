"""Attention against its equations, written out one key at a time, and against the backward pass of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import randn, same

from longlag.structured import Attention

KINDS = {"additive": (3, 4, 6), "dot": (4, 4, None), "scaled_dot": (4, 4, None), "general": (3, 4, None)}
kinds = pytest.mark.parametrize("kind", KINDS)
MASK = torch.tensor([[True, False, True, True, False], [False, False, True, False, False]])


def made(kind: str) -> Attention:
    query, key, size = KINDS[kind]
    attention = Attention(kind, query, key, size, dtype=torch.float64)
    with torch.no_grad():
        for i, parameter in enumerate(attention.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=i + 10))
    return attention


def inputs(kind: str, B: int = 2, S: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, _ = KINDS[kind]
    return randn(B, query, seed=1), randn(B, S, key, seed=2)


def energy(attention: Attention, q: torch.Tensor, h: torch.Tensor) -> float:
    """e_j of one query and one key, from the definition."""
    if attention.kind == "additive":
        u = [
            math.tanh(sum((W * h).tolist()) + sum((U * q).tolist()))
            for W, U in zip(attention.weight_key, attention.weight_query)
        ]
        return sum(v * x for v, x in zip(attention.weight_score.tolist(), u))
    if attention.kind == "general":
        return sum(sum((q[i] * attention.weight[i] * h).tolist()) for i in range(len(q)))
    return sum((q * h).tolist()) / (math.sqrt(len(h)) if attention.kind == "scaled_dot" else 1)


@kinds
def test_weights_and_context_are_those_of_the_definition(kind):
    attention, (query, keys) = made(kind), inputs(kind)
    context, weights = attention(query, keys, MASK)
    for b in range(2):
        e = [math.exp(energy(attention, query[b], keys[b, j])) if MASK[b, j] else 0.0 for j in range(5)]
        alpha = torch.tensor(e, dtype=torch.float64) / sum(e)
        same(weights[b], alpha)
        same(context[b], sum(a * h for a, h in zip(alpha, keys[b])))


@kinds
@pytest.mark.parametrize("masked", [False, True])
def test_the_backward_pass_is_that_of_the_paper(kind, masked):
    """dα_j = h_j·dC; de = α(dα − α·dα); dh_j = α_j dC + the score's part. [ATT 5]"""
    attention, (query, keys) = made(kind), inputs(kind)
    query, keys = query.requires_grad_(), keys.requires_grad_()
    context, weights = attention(query, keys, MASK if masked else None)
    dC = randn(*context.shape, seed=3)
    context.backward(dC)
    want_q, want_h, parameters = torch.zeros_like(query), torch.zeros_like(keys), {}
    for b in range(2):
        q, h, alpha = query[b].detach(), keys[b].detach(), weights[b].detach()
        d_alpha = h @ dC[b]
        de = alpha * (d_alpha - alpha @ d_alpha)
        want_h[b] = torch.outer(alpha, dC[b])
        if kind == "additive":
            W, U, v = attention.weight_key.detach(), attention.weight_query.detach(), attention.weight_score.detach()
            u = torch.tanh(h @ W.T + U @ q)
            rho = de[:, None] * v * (1 - u**2)
            want_q[b], want_h[b] = U.T @ rho.sum(0), want_h[b] + rho @ W
            found = {"weight_key": rho.T @ h, "weight_query": torch.outer(rho.sum(0), q), "weight_score": de @ u}
        elif kind == "general":
            G = attention.weight.detach()
            want_q[b], want_h[b] = (h @ G.T).T @ de, want_h[b] + torch.outer(de, G.T @ q)
            found = {"weight": torch.outer(q, de @ h)}
        else:
            root = 2.0 if kind == "scaled_dot" else 1.0
            want_q[b], want_h[b], found = de @ h / root, want_h[b] + torch.outer(de, q) / root, {}
        parameters = {name: value + parameters.get(name, 0) for name, value in found.items()}
    same(query.grad, want_q)
    same(keys.grad, want_h)
    same({name: p.grad for name, p in attention.named_parameters()}, parameters)


@kinds
def test_gradcheck(kind):
    attention, (query, keys) = made(kind), inputs(kind)
    assert torch.autograd.gradcheck(lambda q, h: attention(q, h, MASK), (query.requires_grad_(), keys.requires_grad_()))


@kinds
def test_many_queries_are_each_one_alone(kind):
    attention, (_, keys) = made(kind), inputs(kind)
    queries = randn(2, 3, KINDS[kind][0], seed=8)
    context, weights = attention(queries, keys, MASK)
    memory = attention.prepare(keys, MASK)
    for n in range(3):
        same((context[:, n], weights[:, n]), attention(queries[:, n], keys, MASK))
        same((context[:, n], weights[:, n]), attention.attend(queries[:, n], memory))


@kinds
def test_what_is_masked_is_not_read(kind):
    attention, (query, keys) = made(kind), inputs(kind)
    poisoned = torch.where(MASK.unsqueeze(-1), keys, math.nan).requires_grad_()
    got, want = attention(query, poisoned, MASK), attention(query, keys, MASK)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    got[0].sum().backward()
    assert poisoned.grad is not None
    assert bool((poisoned.grad[~MASK] == 0).all())
    nothing = attention(query, keys, torch.zeros_like(MASK))
    assert not nothing[0].any()
    assert not nothing[1].any()


@kinds
def test_theory(kind):
    attention, (query, keys) = made(kind), inputs(kind)
    order = torch.tensor([3, 0, 4, 1, 2])
    context, weights = attention(query, keys)
    same(attention(query, keys[:, order]), (context, weights[:, order]))
    for parameter in attention.parameters():
        torch.nn.init.zeros_(parameter)
    if kind in ("additive", "general"):  # equal scores: the mean
        same(attention(query, keys)[0], keys.mean(1))
    else:
        same(attention(0 * query, keys)[0], keys.mean(1))
        looked = attention(1e6 * keys[:, 2], keys[:, 2:3].expand(-1, 5, -1) * torch.tensor([0, 0, 0, 1.0, 0])[:, None])
        same(looked[0], keys[:, 2])  # one huge score: that key


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="Attention: kind must be one of 'additive', 'dot', 'scaled_dot', 'general'"):
        Attention("cosine", 3, 3)
    with pytest.raises(ValueError, match="Attention: 'dot' needs query_size = key_size, got 3 and 4"):
        Attention("dot", 3, 4)
    with pytest.raises(ValueError, match="Attention: size belongs to kind 'additive', got size=5 with 'general'"):
        Attention("general", 3, 4, 5)
    with pytest.raises(ValueError, match="Attention: size must be a positive int, got 0"):
        Attention("additive", 3, 4, 0)
    with pytest.raises(ValueError, match="Attention: key_size must be a positive int, got -4"):
        Attention("general", 3, -4)
    attention, (query, keys) = made("additive"), inputs("additive")
    for wrong, text in (
        ((query, keys[0]), r"keys must be \(B, S, key_size\) with key_size = 4, got shape \(5, 4\)"),
        ((query[:, :2], keys), r"query must be \(B, query_size\) or \(B, n, query_size\) with query_size = 3, got"),
        ((query[0], keys), r"query must be \(B, query_size\) or"),
        ((query[:1], keys), "query and keys must share B, got 1 and 2"),
        (
            (query, keys, MASK.float()),
            r"mask must be a bool tensor of shape \(2, 5\), got torch.float32",
        ),
        ((query, keys, MASK.T), r"mask must be a bool tensor of shape \(2, 5\), got torch.bool of shape \(5, 2\)"),
        ((query, keys, [True]), r"mask must be a bool tensor of shape \(2, 5\), got list"),
    ):
        with pytest.raises(ValueError, match=f"Attention: {text}"):
            attention(*wrong)
    with pytest.raises(TypeError, match="Attention: keys must be a tensor, got list"):
        attention(query, [1.0])


def test_shows_what_it_is():
    assert repr(Attention("additive", 3, 4)) == "Attention('additive', 3, 4, size=4)"
    assert repr(Attention("dot", 4, 4)) == "Attention('dot', 4, 4)"
