"""`CRF`: a linear-chain conditional random field as a layer."""

from __future__ import annotations

import math
from typing import Any, overload

import torch
from torch import Tensor, nn

from longlag import engines
from longlag.layers import validation
from longlag.structured import _crf_ops, chain
from longlag.structured.chain import Chain
from longlag.structured.schemes import Constraints, constraints_from

REDUCTIONS = ("none", "sum", "mean", "token_mean")


class CRF(nn.Module):
    """Linear-chain conditional random field; weights are interchangeable with ``pytorch-crf``.

    score(y) = a_s[y_1] + Σ_t A[y_{t−1}, y_t] + Σ_t B[t, y_t] + a_e[y_L]; p(y | x) = exp(score(y) − log Z) [CRF 2].

    ``start_transitions`` is a_s (K,), ``end_transitions`` a_e (K,), ``transitions`` A (K, K) as [from, to]. A mask may
    have gaps anywhere: a masked step is skipped, its neighbours are adjacent, its tags and emissions are not read. A
    sequence without active steps has one path, the empty path, of probability 1. Half precision is computed in
    float32. `k_best`, `sample` and `pair_marginals` are plain torch whatever the engine.

    Args:
        num_tags: K.
        constraints: allowed tags and transitions, e.g. from `CRF.constraints_from`; all others have probability 0.
        batch_first: emissions are (B, T, K), tags and masks (B, T); else (T, B, K) and (T, B). Results that are
            tensors are laid out likewise.
        engine: ``"cpu"`` compiled kernels, ``"reference"`` plain torch (any device, second derivatives), ``"auto"``.

    >>> import torch, longlag as ll
    >>> labels = ["O", "B-PER", "I-PER"]
    >>> crf = ll.CRF(3, constraints=ll.CRF.constraints_from(labels, "BIO"))
    >>> emissions, tags = torch.randn(2, 5, 3), torch.tensor([[0, 1, 2, 2, 0], [1, 2, 0, -1, -1]])
    >>> mask = tags >= 0
    >>> loss = -crf(emissions, tags, mask, reduction="mean")
    >>> [len(path) for path in crf.decode(emissions, mask)]
    [5, 3]
    >>> bool((crf.marginals(emissions, mask)[:, 0, 2] == 0).all())  # no sentence starts with I-PER
    True

    Source: Lafferty, McCallum and Pereira 2001.
    """

    allowed: Tensor | None
    allowed_starts: Tensor | None
    allowed_ends: Tensor | None
    constraints_from = staticmethod(constraints_from)

    def __init__(
        self,
        num_tags: int,
        *,
        constraints: Constraints | None = None,
        batch_first: bool = True,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_tags = K = validation.positive("CRF", "num_tags", num_tags)
        engines.check("CRF", engine)
        self.engine = engine
        self.batch_first = batch_first
        self.start_transitions = nn.Parameter(torch.empty(K, device=device, dtype=dtype))
        self.end_transitions = nn.Parameter(torch.empty(K, device=device, dtype=dtype))
        self.transitions = nn.Parameter(torch.empty(K, K, device=device, dtype=dtype))
        allowed = (None, None, None) if constraints is None else constraints
        shapes = {"allowed": (K, K), "allowed_starts": (K,), "allowed_ends": (K,)}
        for argument, (name, shape), value in zip(Constraints._fields, shapes.items(), allowed):
            if value is not None and (value.dtype != torch.bool or value.shape != shape):
                got = f"{value.dtype} of shape {tuple(value.shape)}"
                raise ValueError(f"CRF: constraints.{argument} must be a bool tensor of shape {shape}, got {got}")
            self.register_buffer(name, None if value is None else value.to(device), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−0.1, 0.1)."""
        for parameter in self.parameters():
            parameter.uniform_(-0.1, 0.1)

    # ---------------------------------------------------------------------------------------------- likelihood
    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None, reduction: str = "sum") -> Tensor:
        """log p(tags | emissions), the larger the better (≤ 0).

        Args:
            emissions: (B, T, K) scores of the tags, any floating-point type.
            tags: (B, T) int64; those of masked steps are not read.
            mask: (B, T) bool (or uint8), True where a step is active; None for all.
            reduction: ``"none"`` (B,), ``"sum"``, ``"mean"`` over sequences or ``"token_mean"`` over active steps.
        """
        validation.one_of("CRF", "reduction", reduction, REDUCTIONS)
        c = self._enter(emissions, mask)
        score = chain.score(c, self._enter_tags(tags, c))
        self._refuse_forbidden(score)
        log_likelihood = torch.where(score == -math.inf, score, score - self._log_partition(c))
        if reduction == "none":
            return log_likelihood
        if reduction == "mean":
            return log_likelihood.mean()
        total = log_likelihood.sum()
        return total if reduction == "sum" else total / c.mask.sum()

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None) -> Tensor:
        """score(tags) (B,), not normalised; −∞ for tags the constraints forbid."""
        c = self._enter(emissions, mask)
        return chain.score(c, self._enter_tags(tags, c))

    def log_partition(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """log Z (B,); −∞ where the constraints allow no tags at all."""
        return self._log_partition(self._enter(emissions, mask))

    def marginals(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """P(y_t = k | x) (B, T, K), 0 at masked steps; differentiable on the reference engine."""
        c = self._enter(emissions, mask)
        twice = torch.is_grad_enabled() and any(x.requires_grad for x in c)
        engine, _ = _crf_ops.choose(self.engine, c, twice=twice)
        return self._leave((_crf_ops if engine == "cpu" else chain).marginals(c))

    def pair_marginals(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """P(y_s = j, y_t = k | x) (B, T, K, K), s the last active step before t; 0 where t is masked or has no s."""
        return self._leave(chain.pair_marginals(self._enter(emissions, mask)))

    # ------------------------------------------------------------------------------------------------ decoding
    @overload
    def decode(self, emissions: Tensor, mask: Tensor | None = None, k: None = None) -> list[list[int]]: ...
    @overload
    def decode(self, emissions: Tensor, mask: Tensor | None = None, *, k: int) -> list[list[list[int]]]: ...
    def decode(self, emissions: Tensor, mask: Tensor | None = None, k: int | None = None) -> Any:
        """The best tags of the active steps of every sequence; with k, a list of the k best (or all there are)."""
        if k is None:
            paths, scores = self.viterbi(emissions, mask)
        else:
            paths, scores = self.k_best(emissions, mask, k)
        paths = paths if self.batch_first else paths.movedim(0, -1)
        best = scores if k is None else scores[:, 0]
        if not bool((best > -math.inf).all()):
            n = int((best > -math.inf).int().argmin())
            why = "its emissions are NaN" if math.isnan(best[n]) else "the constraints and emissions forbid them all"
            raise ValueError(f"CRF: sequence {n} must have at least one possible path, but {why}")
        if k is None:
            return [[tag for tag in path if tag >= 0] for path in paths.tolist()]
        kept = (scores > -math.inf).tolist()
        return [
            [[tag for tag in path if tag >= 0] for path, keep in zip(several, keeps) if keep]
            for several, keeps in zip(paths.tolist(), kept)
        ]

    @torch.no_grad()
    def viterbi(self, emissions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Best paths (B, T), −1 at masked steps, and their scores (B,); on ties the lowest tag, from the end."""
        c = self._enter(emissions, mask)
        engine, _ = _crf_ops.choose(self.engine, c)
        paths, scores = _crf_ops.viterbi(*c) if engine == "cpu" else chain.viterbi(c)
        return self._leave(paths), scores

    @torch.no_grad()
    def k_best(self, emissions: Tensor, mask: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor]:
        """The k best paths (B, k, T), best first, and scores (B, k); −1 and −∞ where there are fewer than k.

        Without ``batch_first`` paths are (T, B, k).
        """
        validation.positive("CRF", "k", k)
        paths, scores = chain.k_best(self._enter(emissions, mask), k)
        return paths if self.batch_first else paths.movedim(-1, 0), scores

    @torch.no_grad()
    def sample(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        n: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """n independent draws (B, n, T) from p(y | x), −1 at masked steps; (T, B, n) without ``batch_first``."""
        validation.positive("CRF", "n", n)
        paths = chain.sample(self._enter(emissions, mask), n, generator)
        return paths if self.batch_first else paths.movedim(-1, 0)

    def engine_for(self, emissions: Tensor) -> str:
        """The engine for the likelihood and `decode`, and the reason."""
        like = emissions.new_empty(0, dtype=torch.promote_types(emissions.dtype, torch.float32))  # half: in float32
        return ": ".join(engines.choose(self.engine, like, name="the emissions"))

    # ---------------------------------------------------------------------------------------------- validation
    def _log_partition(self, c: Chain) -> Tensor:
        engine, _ = _crf_ops.choose(self.engine, c)
        return _crf_ops.log_partition(*c) if engine == "cpu" else chain.log_partition(c)

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.batch_first else x.transpose(0, 1)

    def _enter(self, emissions: Any, mask: Any) -> Chain:
        """Validated input as (B, T, K), with scores of −∞ for forbidden tags and transitions."""
        K, A = self.num_tags, self.transitions
        if not isinstance(emissions, Tensor) or not emissions.is_floating_point():
            got = emissions.dtype if isinstance(emissions, Tensor) else type(emissions).__name__
            raise TypeError(f"CRF: emissions must be a floating-point tensor, got {got}")
        layout = "(B, T, K)" if self.batch_first else "(T, B, K)"
        if emissions.dim() != 3 or emissions.shape[-1] != K or emissions.shape[int(self.batch_first)] == 0:
            got = tuple(emissions.shape)
            raise ValueError(f"CRF: emissions must be {layout} with K = {K} and T at least 1, got shape {got}")
        if emissions.device != A.device:
            raise ValueError(f"CRF: emissions must be on {A.device} like the weights, got {emissions.device}")
        if mask is None:
            mask = torch.ones_like(emissions[..., 0], dtype=torch.bool)
        self._check("mask", mask, emissions, (torch.bool, torch.uint8))
        if not self.batch_first:
            emissions, mask = emissions.transpose(0, 1), mask.transpose(0, 1)
        dtype = torch.promote_types(torch.promote_types(emissions.dtype, A.dtype), torch.float32)
        scores = zip(
            (self.start_transitions, self.end_transitions, A), (self.allowed_starts, self.allowed_ends, self.allowed)
        )
        a_s, a_e, A = (
            a.to(dtype) if allowed is None else a.to(dtype).masked_fill(~allowed, -math.inf) for a, allowed in scores
        )
        return Chain(emissions.to(dtype), mask.bool(), a_s, a_e, A)

    def _enter_tags(self, tags: Any, c: Chain) -> Tensor:
        shape = c.mask.shape if self.batch_first else c.mask.T.shape
        self._check("tags", tags, c.emissions, (torch.long,), shape)
        tags = tags if self.batch_first else tags.transpose(0, 1)
        if _readable(tags):
            active = tags[c.mask]
            wrong = active[(active < 0) | (active >= self.num_tags)]
            if len(wrong):
                raise ValueError(f"CRF: tags must lie in 0..{self.num_tags - 1}, got {int(wrong[0])}")
        return tags

    def _check(
        self, argument: str, value: Any, emissions: Tensor, dtypes: tuple[torch.dtype, ...], shape: Any = None
    ) -> None:
        shape = tuple(emissions.shape[:2] if shape is None else shape)
        if not isinstance(value, Tensor) or value.dtype not in dtypes or value.shape != shape:
            got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            kind = " or ".join(str(x).removeprefix("torch.") for x in dtypes)
            raise ValueError(f"CRF: {argument} must be a {kind} tensor of shape {shape}, got {got}")
        if value.device != emissions.device:
            raise ValueError(f"CRF: {argument} must be on {emissions.device} like the emissions, got {value.device}")

    def _refuse_forbidden(self, score: Tensor) -> None:
        if _readable(score) and bool((score == -math.inf).any()):
            n = int((score == -math.inf).int().argmax())
            raise ValueError(f"CRF: tags of sequence {n} must be possible, but constraints or emissions forbid them")

    def extra_repr(self) -> str:
        constrained = ", constrained" if self.allowed is not None else ""
        return f"{self.num_tags}, batch_first={self.batch_first}{constrained}"


def _readable(x: Tensor) -> bool:
    """Whether values may be checked: other devices would synchronise, and a compiled graph would break."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
