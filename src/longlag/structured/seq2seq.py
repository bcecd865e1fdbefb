"""`Seq2Seq`: an encoder and a decoder. [SEQ2SEQ 4]"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longlag.layers import Layer, State, validation
from longlag.structured import _tokens, search
from longlag.structured._states import check_pair, query
from longlag.structured._tokens import Lengths
from longlag.structured.attention import Attention, Memory
from longlag.structured.search import Decoded

FEEDBACK = ("argmax", "sample", "soft")
REDUCTIONS = ("none", "sum", "mean", "token_mean")


class Written(NamedTuple):
    """Results of the decoder for given targets."""

    logits: Tensor  # (T, B, V), (B, T, V) if batch_first; 0 beyond the target's length
    weights: Tensor | None  # (T, B, S), (B, T, S) if batch_first: attention weights; 0 beyond the lengths


class _Source(NamedTuple):
    context: Tensor  # C (B, D), of the encoder
    memory: Memory | None

    def repeat(self, k: int) -> _Source:
        """Every sequence repeated k times."""
        return _Source(self.context.repeat_interleave(k, 0), self.memory and self.memory.repeat(k))


class Seq2Seq(nn.Module):
    """Encoder-decoder network over any of the layers, with or without attention.

    H = encoder(x_1..x_S); C = its last outputs (both ends of a bidirectional encoder), or their mean, or at each step
    C_t = attention(s_{t−1}, H); s_0 = tanh(W_init C + b_init); s_t = decoder([E y_{t−1}; C_t], s_{t−1});
    z_t = V_s s_t + V_c C_t + c_out; p_t = softmax z_t [SEQ2SEQ 4].

    Args:
        encoder: a layer, which reads embedded tokens if ``source_tokens`` is given, else vectors.
        decoder: a layer that runs forwards; its ``input_size`` is the width of the embedding plus that of C.
        target_tokens: V, the size of the target vocabulary.
        source_tokens: the size of the source vocabulary.
        attention: an `Attention` from the first part of the decoder's state (its top layer) to the encoder's outputs.
        start, end: the tokens y_0 (BOS) and the one that ends every target (EOS).
        context: C for s_0, and for every step without attention: ``"last"`` or ``"mean"``.
        feedback: the decoder's own choice, fed back in place of the target: ``"argmax"``, ``"sample"`` (both without
            gradient) or ``"soft"``, the mean embedding under p_t.

    Layout (``batch_first``), device and dtype are the encoder's.

    >>> import torch, longlag as ll
    >>> encoder, decoder = ll.LSTM(8, 16, bidirectional=True), ll.LSTM(6 + 32, 12)
    >>> look = ll.Attention("additive", 12, 32)
    >>> model = ll.Seq2Seq(encoder, decoder, 5, source_tokens=20, attention=look, start=0, end=1)
    >>> source, target = torch.randint(20, (9, 2)), torch.tensor([[3, 4], [2, 1], [1, -1]])
    >>> loss = model.loss(source, target, source_lengths=[9, 4], target_lengths=[3, 2], teacher=0.5)
    >>> found = model.beam(source, source_lengths=[9, 4], width=3, length_penalty=0.6, max_length=10)
    >>> found.tokens.shape[1:]  # (T, B, k)
    torch.Size([2, 3])

    Source: Sutskever, Vinyals and Le 2014; Bahdanau, Cho and Bengio 2015; Bengio et al. 2015 (scheduled sampling).
    """

    def __init__(
        self,
        encoder: Layer,
        decoder: Layer,
        target_tokens: int,
        *,
        source_tokens: int | None = None,
        attention: Attention | None = None,
        start: int,
        end: int,
        feedback: str = "argmax",
        context: str = "last",
    ) -> None:
        super().__init__()
        check_pair("Seq2Seq", encoder, decoder)
        self.encoder, self.decoder, self.attention = encoder, decoder, attention
        self.batch_first = encoder.batch_first
        self.target_tokens = V = validation.positive("Seq2Seq", "target_tokens", target_tokens, least=2)
        for name, token in (("start", start), ("end", end)):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < V:
                raise ValueError(f"Seq2Seq: {name} must be a token in 0..{V - 1}, got {token!r}")
        self.start, self.end = start, end
        self.feedback = validation.one_of("Seq2Seq", "feedback", feedback, FEEDBACK)
        self.context = validation.one_of("Seq2Seq", "context", context, ("last", "mean"))
        factory: dict[str, Any] = {"device": encoder.device, "dtype": encoder.dtype}
        with torch.no_grad():
            D = encoder(torch.zeros(1, 1, encoder.input_size, **factory))[0].shape[-1]
            written, state = decoder.step(torch.zeros(1, decoder.input_size, **factory))
        if decoder.input_size <= D:
            raise ValueError(
                f"Seq2Seq: decoder must have input_size above {D}, the encoder's width, got {decoder.input_size}"
            )
        spec = decoder.state_spec
        if not spec.size:
            raise ValueError("Seq2Seq: decoder must have a state, got a layer without feedback")
        if attention is not None:
            sizes, wanted = (attention.query_size, attention.key_size), (query(decoder, state).shape[-1], D)
            if sizes != wanted:
                raise ValueError(f"Seq2Seq: attention must have query_size, key_size = {wanted}, got {sizes}")
        self.read = None
        if source_tokens is not None:
            tokens = validation.positive("Seq2Seq", "source_tokens", source_tokens)
            self.read = nn.Embedding(tokens, encoder.input_size, **factory)
        self.embedding = nn.Embedding(V, decoder.input_size - D, **factory)  # E
        self.initial = nn.Linear(D, spec.size, **factory)  # W_init, b_init
        self.output = nn.Linear(written.shape[-1] + D, V, **factory)  # [V_s, V_c], c_out

    def forward(
        self,
        source: Tensor,
        targets: Tensor,
        *,
        source_lengths: Lengths = None,
        target_lengths: Lengths = None,
        teacher: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Written:
        """Logits of the targets y_1..y_T.

        Args:
            source: tokens (S, B) or vectors (S, B, n); (B, S, …) if ``batch_first``.
            targets: tokens (T, B), (B, T) if ``batch_first``, the last one ``end``; not read beyond the lengths.
            source_lengths, target_lengths: (B,) ints.
            teacher: ε, the probability, drawn for every token, that step t+1 reads y_t and not the network's own
                choice: 1 is teacher forcing, 0 free running; see `longlag.layers.schedules`.
        """
        if not isinstance(teacher, int | float) or not 0 <= teacher <= 1:
            raise ValueError(f"Seq2Seq: teacher must be a number in [0, 1], got {teacher!r}")
        y, valid, _ = self._tokens("targets", targets, self.target_tokens, target_lengths)  # (T, B)
        known = self._encode(source, source_lengths)
        if len(known.context) != y.shape[1]:
            raise ValueError(f"Seq2Seq: targets must be {len(known.context)} sequences like source, got {y.shape[1]}")
        forced = self.embedding(torch.cat([self._start(y.shape[1]).unsqueeze(0), y[:-1]]))  # E y_{t−1}
        if self.attention is None and teacher == 1:
            logits, weights = self._all_at_once(known, forced), None
        else:
            epsilon = torch.full(y.shape, float(teacher), device=y.device)
            tau = None if teacher == 1 else torch.bernoulli(epsilon, generator=generator).bool()
            logits, weights = self._one_by_one(known, forced, tau, generator)
        logits = logits.masked_fill(~valid.unsqueeze(-1), 0)
        weights = None if weights is None else self._leave(weights.masked_fill(~valid.unsqueeze(-1), 0))
        return Written(self._leave(logits), weights)

    def loss(self, source: Tensor, targets: Tensor, *, reduction: str = "token_mean", **options: Any) -> Tensor:
        """−Σ_t log p_t[y_t]: ``"none"`` (B,), ``"sum"``, ``"mean"`` over sequences or ``"token_mean"`` over tokens.

        The other arguments are those of `forward`.
        """
        validation.one_of("Seq2Seq", "reduction", reduction, REDUCTIONS)
        logits = self._leave(self(source, targets, **options).logits)  # (T, B, V)
        y, valid, _ = self._tokens("targets", targets, self.target_tokens, options.get("target_lengths"))
        each = cross_entropy(logits.movedim(-1, 1), y, reduction="none").masked_fill(~valid, 0)
        if reduction == "none":
            return each.sum(0)
        return each.sum() / {"sum": 1, "mean": y.shape[1], "token_mean": valid.sum()}[reduction]

    @torch.no_grad()
    def greedy(self, source: Tensor, *, source_lengths: Lengths = None, max_length: int = 100) -> Decoded:
        """The most probable token at each step: tokens (T, B), (B, T) if ``batch_first``."""
        return self._follow(source, source_lengths, max_length, search.greedy)

    @torch.no_grad()
    def sample(
        self,
        source: Tensor,
        *,
        source_lengths: Lengths = None,
        temperature: float = 1.0,
        max_length: int = 100,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Tokens drawn from p^(1/temperature), normalised; scores are Σ log p."""
        if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
            raise ValueError(f"Seq2Seq: temperature must be a positive number, got {temperature!r}")
        return self._follow(source, source_lengths, max_length, search.sampler(temperature, generator))

    @torch.no_grad()
    def beam(
        self,
        source: Tensor,
        *,
        source_lengths: Lengths = None,
        width: int = 4,
        length_penalty: float = 0.0,
        max_length: int = 100,
    ) -> Decoded:
        """The ``width`` best hypotheses found, ranked by Σ log p / ((5 + |y|)/6)^length_penalty.

        Tokens are (T, B, k), (B, k, T) if ``batch_first``; see `search.beam`.
        """
        validation.positive("Seq2Seq", "width", width)
        if not isinstance(length_penalty, int | float) or not 0 <= length_penalty < float("inf"):
            raise ValueError(f"Seq2Seq: length_penalty must be a number of at least 0, got {length_penalty!r}")
        validation.positive("Seq2Seq", "max_length", max_length)
        known = self._encode(source, source_lengths)
        start, known = self._start(len(known.context)), known.repeat(width)

        state, stepper = self._first_state(known), self._stepper(known)
        select = self.decoder.state_spec.select
        found = search.beam(stepper, select, state, start, self.end, width, max_length, length_penalty)
        return found if self.batch_first else found._replace(tokens=found.tokens.movedim(-1, 0))

    def _follow(self, source: Tensor, lengths: Lengths, max_length: int, choose: search.Choose) -> Decoded:
        validation.positive("Seq2Seq", "max_length", max_length)
        known = self._encode(source, lengths)
        start, state = self._start(len(known.context)), self._first_state(known)
        found = search.follow(self._stepper(known), state, start, self.end, max_length, choose)
        return found if self.batch_first else found._replace(tokens=found.tokens.T)

    def _stepper(self, known: _Source) -> search.Step[State]:
        """The decoder as the step function of `search`."""

        def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state, _ = self._step(known, self.embedding(tokens), state)
            return torch.log_softmax(logits, -1), state

        return step

    def _encode(self, source: Any, lengths: Lengths) -> _Source:
        if self.read is not None:
            entered = self._tokens("source", source, self.read.num_embeddings, lengths)
            source, lengths = self._leave(self.read(entered.y)), entered.lengths
        elif not isinstance(source, Tensor) or source.dim() != 3:
            got = f"shape {tuple(source.shape)}" if isinstance(source, Tensor) else type(source).__name__
            raise ValueError(f"Seq2Seq: source must be vectors of 3 dimensions, since source_tokens is None, got {got}")
        H = self._leave(self.encoder(source, lengths=lengths)[0])  # (S, B, D)
        S, B, D = H.shape
        steps, rows = torch.arange(S, device=H.device), torch.arange(B, device=H.device)
        lengths = None if lengths is None else torch.as_tensor(lengths, device=H.device)
        if self.context == "mean":
            C = H.sum(0) / (S if lengths is None else lengths.unsqueeze(1))  # outputs beyond a length are 0
        else:
            C = H[-1] if lengths is None else H[lengths - 1, rows]
        if self.context == "last" and self.encoder.bidirectional:
            C = torch.cat([C[:, : D // 2], H[0, :, D // 2 :]], -1)  # [SEQ2SEQ 4 C] [h¹_S; h²_1]
        if self.attention is None:
            return _Source(C, None)
        mask = None if lengths is None else steps < lengths.unsqueeze(1)
        return _Source(C, self.attention.prepare(H.transpose(0, 1), mask))

    def _first_state(self, known: _Source) -> State:
        spec = self.decoder.state_spec
        return spec.whole(spec.unflatten(torch.tanh(self.initial(known.context))))  # [SEQ2SEQ 4 s_0]

    def _step(self, known: _Source, previous: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        C, alpha = known.context, None
        if self.attention is not None and known.memory is not None:
            C, alpha = self.attention.attend(query(self.decoder, state), known.memory)  # [SEQ2SEQ 4 C_t]
        y, state = self.decoder.step(torch.cat([previous, C], -1), state)  # [SEQ2SEQ 4 s_t]
        return self.output(torch.cat([y, C], -1)), state, alpha  # [SEQ2SEQ 4 z_t]

    def _one_by_one(
        self, known: _Source, forced: Tensor, tau: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (T, B, V) and weights (T, B, S); forced (T, B, E): embedded targets of teacher forcing."""
        state, previous, logits, weights = self._first_state(known), forced[0], [], []
        for t in range(len(forced)):
            z, state, alpha = self._step(known, previous, state)
            logits.append(z)
            weights.append(alpha)
            if t + 1 < len(forced):
                previous = forced[t + 1]
                if tau is not None:
                    previous = torch.where(tau[t].unsqueeze(-1), previous, self._own(z, generator))  # [TF-MIX 4 fb]
        return torch.stack(logits), None if self.attention is None else torch.stack(weights)

    def _all_at_once(self, known: _Source, forced: Tensor) -> Tensor:
        """`_one_by_one` for steps that depend neither on earlier choices nor on attention."""
        C = known.context.expand(len(forced), -1, -1)
        y, _ = self.decoder(self._leave(torch.cat([forced, C], -1)), self._first_state(known))
        return self.output(torch.cat([self._leave(y), C], -1))

    def _own(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """The embedding of the network's own choice."""
        if self.feedback == "soft":
            return torch.softmax(z, -1) @ self.embedding.weight  # [TF-MIX 4 q]
        if self.feedback == "argmax":
            return self.embedding(z.argmax(-1))
        return self.embedding(torch.multinomial(torch.softmax(z.detach(), -1), 1, generator=generator).squeeze(1))

    def _leave(self, x: Tensor) -> Tensor:
        """(T, B, …) to the caller's layout, or back."""
        return x.transpose(0, 1) if self.batch_first else x

    def _tokens(self, argument: str, value: Any, count: int, lengths: Lengths) -> _tokens.Tokens:
        device = self.output.weight.device
        return _tokens.enter("Seq2Seq", argument, value, count, lengths, device, self.batch_first)

    def _start(self, batch: int) -> Tensor:
        return torch.full((batch,), self.start, device=self.output.weight.device)
