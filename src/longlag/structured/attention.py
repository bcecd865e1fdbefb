"""Soft attention: weights over keys that sum to one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longlag.layers import validation

KINDS = ("additive", "dot", "scaled_dot", "general")


class Memory(NamedTuple):
    """Prepared keys for many queries."""

    keys: Tensor  # h (B, S, d), 0 where masked
    projected: Tensor  # W_a h_j, G h_j, h_j/√d or h_j
    mask: Tensor | None  # (B, S) bool

    def repeat(self, k: int) -> Memory:
        """Every sequence repeated k times."""
        mask = None if self.mask is None else self.mask.repeat_interleave(k, 0)
        return Memory(self.keys.repeat_interleave(k, 0), self.projected.repeat_interleave(k, 0), mask)


class Attention(nn.Module):
    """Soft attention of queries q over keys h_1..h_S (which are the values too).

    e_j = v·tanh(W_a h_j + U_a q) additive, q·h_j dot, q·h_j/√d scaled_dot, q·G h_j general;
    α = softmax(e) over the valid j; C = Σ_j α_j h_j [ATT 5].

    Args:
        kind: ``"additive"``, ``"dot"``, ``"scaled_dot"`` or ``"general"``.
        query_size, key_size: widths of q and h_j; equal for the dot products.
        size: width of the additive kind's tanh layer, ``key_size`` by default.

    >>> import torch, longlag as ll
    >>> attention = ll.Attention("additive", 4, 6, size=8)
    >>> query, keys = torch.randn(2, 4), torch.randn(2, 5, 6)
    >>> context, weights = attention(query, keys, torch.arange(5) < torch.tensor([[5], [3]]))
    >>> context.shape, bool((weights[1, 3:] == 0).all()), torch.allclose(weights.sum(1), torch.ones(2))
    (torch.Size([2, 6]), True, True)

    Source: Bahdanau, Cho and Bengio 2015 (additive); Luong, Pham and Manning 2015 (dot, general);
    Vaswani et al. 2017 (scaled).
    """

    weight_key: Tensor  # W_a (size, d)
    weight_query: Tensor  # U_a (size, query_size)
    weight_score: Tensor  # v_a (size,)
    weight: Tensor  # G (query_size, d)

    def __init__(
        self,
        kind: str,
        query_size: int,
        key_size: int,
        size: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kind = validation.one_of("Attention", "kind", kind, KINDS)
        self.query_size = validation.positive("Attention", "query_size", query_size)
        self.key_size = validation.positive("Attention", "key_size", key_size)
        if size is not None and kind != "additive":
            raise ValueError(f"Attention: size belongs to kind 'additive', got size={size} with {kind!r}")
        if kind in ("dot", "scaled_dot") and query_size != key_size:
            raise ValueError(f"Attention: {kind!r} needs query_size = key_size, got {query_size} and {key_size}")
        shapes: dict[str, tuple[int, ...]] = {}
        if kind == "additive":
            size = validation.positive("Attention", "size", key_size if size is None else size)
            shapes = {"weight_key": (size, key_size), "weight_query": (size, query_size), "weight_score": (size,)}
        elif kind == "general":
            shapes = {"weight": (query_size, key_size)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−1/√n, 1/√n), n the number of inputs."""
        for parameter in self.parameters():
            bound = parameter.shape[-1] ** -0.5
            parameter.uniform_(-bound, bound)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend to the keys once; for many queries over the same keys use `prepare` and `attend`.

        Args:
            query: (B, query_size), or (B, n, query_size) for n queries at a time.
            keys: (B, S, key_size).
            mask: (B, S) bool, True where a key is valid. If no key is valid, weights and context are 0.

        Returns:
            context (B, key_size) and weights (B, S); (B, n, …) for n queries.
        """
        return self.attend(query, self.prepare(keys, mask))

    def prepare(self, keys: Tensor, mask: Tensor | None = None) -> Memory:
        """Compute the terms that depend only on the keys, once for all queries."""
        self._check("keys", keys, "(B, S, key_size)", 3, self.key_size)
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != keys.shape[:2]:
                got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
                raise ValueError(f"Attention: mask must be a bool tensor of shape {tuple(keys.shape[:2])}, got {got}")
            keys = keys.masked_fill(~mask.unsqueeze(-1), 0)
        return Memory(keys, self._project(keys), mask)

    def attend(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """`forward` on prepared keys."""
        single = isinstance(query, Tensor) and query.dim() == 2
        query = query.unsqueeze(1) if single else query
        self._check("query", query, "(B, query_size) or (B, n, query_size)", 3, self.query_size)
        if len(query) != len(memory.keys):
            raise ValueError(f"Attention: query and keys must share B, got {len(query)} and {len(memory.keys)}")
        e = self._scores(query, memory.projected)  # (B, n, S)
        if memory.mask is None:
            alpha = torch.softmax(e, -1)  # [ATT 5 α]
        else:
            valid = memory.mask.unsqueeze(1)
            alpha = torch.softmax(e.masked_fill(~valid, torch.finfo(e.dtype).min), -1) * valid  # [ATT 5 α]
        context = alpha @ memory.keys  # [ATT 5 C]
        return (context.squeeze(1), alpha.squeeze(1)) if single else (context, alpha)

    def _project(self, h: Tensor) -> Tensor:
        if self.kind == "additive":
            return linear(h, self.weight_key)
        if self.kind == "general":
            return linear(h, self.weight)
        return h / self.key_size**0.5 if self.kind == "scaled_dot" else h

    def _scores(self, q: Tensor, projected: Tensor) -> Tensor:
        """e (B, n, S) of q (B, n, query_size)."""
        if self.kind == "additive":
            u = torch.tanh(projected.unsqueeze(1) + linear(q, self.weight_query).unsqueeze(2))  # (B, n, S, size)
            return u @ self.weight_score  # [ATT 5 additive]
        return q @ projected.transpose(1, 2)  # [ATT 5 dot] [ATT 5 scaled] [ATT 5 general]

    def _check(self, argument: str, value: Any, layout: str, dimensions: int, size: int) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"Attention: {argument} must be a tensor, got {type(value).__name__}")
        if value.dim() != dimensions or value.shape[-1] != size:
            name = layout.rpartition(" ")[2].rstrip(")")
            raise ValueError(
                f"Attention: {argument} must be {layout} with {name} = {size}, got shape {tuple(value.shape)}"
            )

    def extra_repr(self) -> str:
        size = f", size={len(self.weight_score)}" if self.kind == "additive" else ""
        return f"{self.kind!r}, {self.query_size}, {self.key_size}{size}"
