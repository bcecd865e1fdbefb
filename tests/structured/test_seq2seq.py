"""Seq2Seq: its equations step by step, teacher and own voice, padding, decoding, every layer on both sides."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers import LAYERS, ONE_WAY, randn, same
from torch import nn

import longlag as ll
from longlag.layers import schedules
from longlag.structured import Attention, Seq2Seq

D, V, START, END = 4, 5, 3, 1
F64: dict[str, Any] = {"dtype": torch.float64}


def model(encoder="lstm", decoder="gru", attention: str | None = "additive", *, vectors=False, **options) -> Seq2Seq:
    """A small float64 model of layers from the list; sizes of embedding and attention follow."""
    torch.manual_seed(1)
    layout = {"batch_first": options.pop("batch_first", False), "engine": "reference"}
    first = LAYERS[encoder](3, 4, **layout)
    width = first(torch.zeros(1, 1, 3, **F64))[0].shape[-1]
    second = LAYERS[decoder](2 + width, 4, seed=2, **layout)
    look = None
    if attention is not None:
        look = Attention(attention, query_width(second), width, **F64)
    source = {} if vectors else {"source_tokens": 7}
    made = Seq2Seq(first, second, V, **source, attention=look, start=START, end=END, **options)
    with torch.no_grad():
        for i, parameter in enumerate(made.output.parameters()):
            parameter.copy_(2 * randn(*parameter.shape, seed=i + 3))  # decided opinions
    return made


def query_width(layer) -> int:
    _, state = layer.step(torch.zeros(1, layer.input_size, **F64))
    first = state if isinstance(state, torch.Tensor) else state[0]
    return first.numel() // (1 if first.dim() == 2 else first.shape[0])


def batch(S=6, T=4, B=3):
    g = torch.Generator().manual_seed(4)
    source, targets = torch.randint(7, (S, B), generator=g), torch.randint(V, (T, B), generator=g)
    return source, targets, torch.tensor([S, 2, 4][:B]), torch.tensor([2, T, 1][:B])


def written_out(net: Seq2Seq, source, targets, own: bool = False):
    """Logits and weights of one sequence, one equation after the other. [SEQ2SEQ 4]"""
    assert net.read is not None
    H, _ = net.encoder(net.read(source).unsqueeze(1))
    H = H.squeeze(1)  # (S, D)
    half = H.shape[1] // 2
    C = torch.cat([H[-1, :half], H[0, half:]]) if net.encoder.bidirectional else H[-1]
    C = H.mean(0) if net.context == "mean" else C
    s_0 = torch.tanh(net.initial.weight @ C + net.initial.bias)
    state, c = s_0[:4].view(1, 1, 4), s_0[4:].view(1, 1, 4) if isinstance(net.decoder, ll.LSTM) else None
    heard, logits, looks = net.embedding.weight[START], [], []
    for y_t in targets:
        if net.attention is not None:
            C, alpha = net.attention(state[0], H.unsqueeze(0))
            C = C[0]
            looks.append(alpha[0])
        x_t = torch.cat([heard, C]).view(1, 1, -1)
        y, new = net.decoder(x_t, state if c is None else (state, c))
        state, c = (new, None) if c is None else new
        z = net.output.weight @ torch.cat([y[0, 0], C]) + net.output.bias
        logits.append(z)
        heard = net.embedding.weight[z.argmax() if own else y_t]
    return torch.stack(logits), torch.stack(looks) if looks else None


@pytest.mark.parametrize("attention", [None, "additive", "general"])
@pytest.mark.parametrize(("encoder", "decoder"), [("lstm", "gru"), ("gru", "lstm"), ("lstm_two_ways", "lstm")])
@pytest.mark.parametrize("teacher", [1.0, 0.0])
def test_a_padded_batch_is_each_sequence_by_the_equations(attention, encoder, decoder, teacher):
    net = model(encoder, decoder, attention)
    source, targets, S, T = batch()
    got = net(source, targets, source_lengths=S, target_lengths=T, teacher=teacher)
    for b in range(3):
        want, looks = written_out(net, source[: S[b], b], targets[: T[b], b], own=teacher == 0)
        same(got.logits[: T[b], b], want, "logits")
        assert not got.logits[T[b] :, b].any()
        if looks is None:
            assert got.weights is None
        else:
            assert got.weights is not None
            same(got.weights[: T[b], b, : S[b]], looks, "weights")
            assert not got.weights[: T[b], b, S[b] :].any()
            assert not got.weights[T[b] :, b].any()


@pytest.mark.parametrize("encoder", ["lstm", "lstm_two_ways"])
@pytest.mark.parametrize("attention", [None, "additive"])
def test_the_context_may_be_the_mean_of_the_outputs(encoder, attention):
    net = model(encoder, attention=attention, context="mean")
    source, targets, S, T = batch()
    got = net(source, targets, source_lengths=S, target_lengths=T)
    for b in range(3):
        same(got.logits[: T[b], b], written_out(net, source[: S[b], b], targets[: T[b], b])[0], "logits")
    with pytest.raises(ValueError, match=r"^Seq2Seq: context must be one of"):
        model(context="first")


@pytest.mark.parametrize("attention", [None, "dot"])
def test_loss_is_the_cross_entropy_of_the_valid_tokens(attention):
    net = model(attention=attention)
    source, targets, S, T = batch()
    logits, _ = net(source, targets, source_lengths=S, target_lengths=T)
    log_p = torch.log_softmax(logits, -1)
    each = torch.stack([-torch.stack([log_p[t, b, targets[t, b]] for t in range(int(T[b]))]).sum() for b in range(3)])
    lengths: dict[str, Any] = {"source_lengths": S, "target_lengths": T}
    same(net.loss(source, targets, reduction="none", **lengths), each)
    same(net.loss(source, targets, reduction="sum", **lengths), each.sum())
    same(net.loss(source, targets, reduction="mean", **lengths), each.mean())
    same(net.loss(source, targets, **lengths), each.sum() / T.sum())


@pytest.mark.parametrize("attention", [None, "additive"])
def test_padding_is_not_read(attention):
    net = model("lstm_two_ways", attention=attention)
    source, targets, S, T = batch()
    lengths: dict[str, Any] = {"source_lengths": S, "target_lengths": T}
    want = net.loss(source, targets, **lengths)
    wanted = torch.autograd.grad(want, list(net.parameters()))
    source, targets = source.clone(), targets.clone()
    for b in range(3):
        source[S[b] :, b], targets[T[b] :, b] = -100, -1
    got = net.loss(source, targets, **lengths)
    assert torch.equal(got, want)
    for ours, theirs in zip(torch.autograd.grad(got, list(net.parameters())), wanted):
        assert torch.equal(ours, theirs)


def test_gradient_reaches_everything():
    net = model("lstm_two_ways", "lstm", "additive")
    source, targets, S, T = batch()
    net.loss(source, targets, source_lengths=S, target_lengths=T).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


def test_gradcheck_through_encoder_attention_and_decoder():
    net = model("elman", "elman", "additive", vectors=True, feedback="soft")
    x, (_, targets, S, T) = randn(6, 3, 3).requires_grad_(), batch()
    options = {"source_lengths": S, "target_lengths": T, "teacher": 0.5}

    def loss(x):
        return net.loss(x, targets, generator=torch.Generator().manual_seed(0), **options)

    assert torch.autograd.gradcheck(loss, x)


# ------------------------------------------------------------------------------------------------ the two voices
@pytest.mark.parametrize("feedback", ["argmax", "sample", "soft"])
def test_every_token_has_its_own_coin(feedback):
    """Replay the coins and draws of the generator by hand. [TF-MIX 4]"""
    net = model("elman", "elman", None, feedback=feedback)
    source, targets, _, _ = batch(T=6)
    got, _ = net(source, targets, teacher=0.5, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(3)
    tau = torch.bernoulli(torch.full((6, 3), 0.5), generator=g)
    assert 0 < tau.sum() < 18
    assert any(len(set(column)) > 1 for column in tau.T.tolist())  # not one coin per sequence
    known = net._encode(source, None)
    state, heard = net._first_state(known), net.embedding.weight[START].expand(3, -1)
    for t in range(6):
        z, state, _ = net._step(known, heard, state)
        same(got[t], z)
        p = torch.softmax(z, -1)
        if feedback == "soft":
            own = p @ net.embedding.weight
        else:
            drawn = torch.multinomial(p, 1, generator=g).squeeze(1) if feedback == "sample" else p.argmax(-1)
            own = net.embedding(drawn)
        heard = tau[t, :, None] * net.embedding(targets[t]) + (1 - tau[t, :, None]) * own


@pytest.mark.parametrize("attention", [None, "additive"])
def test_the_ends_of_the_schedule(attention):
    """ε = 1 is teacher forcing bit for bit; ε = 0 does not hear the targets."""
    net = model(attention=attention)
    source, targets, _, _ = batch()
    schedule = schedules.linear(0.5)
    forced = [net(source, targets, teacher=e).logits for e in (1, schedule(0), 1.0)]
    assert torch.equal(forced[0], forced[1])
    assert torch.equal(forced[0], forced[2])
    other = (targets + 1) % V
    assert torch.equal(net(source, targets, teacher=schedule(2)).logits, net(source, other, teacher=0.0).logits)
    assert not torch.equal(net(source, targets).logits[1:], net(source, other).logits[1:])


def test_all_steps_at_once_are_the_steps_one_by_one():
    net = model("lstm_two_ways", "lstm_three_layers", None)
    source, targets, S, _ = batch()
    known = net._encode(source, S)
    forced = net.embedding(torch.cat([torch.full((1, 3), START), targets[:-1]]))
    one_by_one, weights = net._one_by_one(known, forced, None, None)
    assert weights is None
    same(net._all_at_once(known, forced), one_by_one)


def test_the_top_layer_of_the_decoder_asks():
    net = model("elman", "lstm_three_layers", "dot")
    source, targets, _, _ = batch()
    weights = net(source, targets).weights
    assert net.read is not None
    assert net.attention is not None
    assert weights is not None
    H, _ = net.encoder(net.read(source))
    s_0 = torch.tanh(net.initial(H[-1]))  # outputs of three layers, then their cells
    same(weights[0], net.attention(s_0[:, 8:12], H.transpose(0, 1))[1])


# ------------------------------------------------------------------------------------------------------ decoding
def alone(tokens, b):
    return [token for token in tokens.tolist() if token >= 0] if tokens.dim() == 1 else alone(tokens[:, b], b)


@pytest.mark.parametrize("attention", [None, "additive"])
@pytest.mark.parametrize("decoder", ["gru", "lstm_three_layers", "skip_several", "lstm97", "jordan_hidden"])
def test_decoding_a_padded_batch_is_decoding_each_alone(attention, decoder):
    net = model("lstm_two_ways", decoder, attention)
    source, _, S, _ = batch()
    for decode in (
        lambda x, n: net.greedy(x, source_lengths=n, max_length=7),
        lambda x, n: net.beam(x, source_lengths=n, width=3, length_penalty=0.8, max_length=7),
    ):
        together = decode(source, S)
        for b in range(3):
            one = decode(source[: S[b], b : b + 1], None)
            length = one.tokens.shape[0]
            assert torch.equal(together.tokens[:length, b], one.tokens[:, 0])
            assert bool((together.tokens[length:, b] == -1).all())
            assert torch.equal(together.lengths[b], one.lengths[0])
            same(together.scores[b], one.scores[0])


def test_scores_are_the_log_probabilities_of_what_was_written():
    net = model("lstm_two_ways", "lstm", "additive")
    source, _, S, _ = batch()
    for found in (
        net.greedy(source, source_lengths=S, max_length=9),
        net.sample(source, source_lengths=S, max_length=9, temperature=1.5, generator=torch.Generator().manual_seed(1)),
    ):
        each = net.loss(source, found.tokens, source_lengths=S, target_lengths=found.lengths, reduction="none")
        same(found.scores, -each.detach())
    found = net.beam(source, source_lengths=S, max_length=9, width=3, length_penalty=0.5)
    for k in range(3):
        each = net.loss(
            source, found.tokens[:, :, k], source_lengths=S, target_lengths=found.lengths[:, k], reduction="none"
        )
        same(found.scores[:, k], -each.detach() / ((5 + found.lengths[:, k].double()) / 6) ** 0.5)
    assert bool((found.scores.diff(dim=1) <= 0).all())


def test_a_beam_of_one_is_greedy_and_free_running():
    net = model("lstm_two_ways", "lstm", "additive")
    source, _, S, _ = batch()
    one, best = (
        net.greedy(source, source_lengths=S, max_length=8),
        net.beam(source, source_lengths=S, width=1, max_length=8),
    )
    assert torch.equal(one.tokens, best.tokens[..., 0])
    same(one.scores, best.scores[:, 0])
    free = net(source, torch.zeros_like(one.tokens), source_lengths=S, target_lengths=one.lengths, teacher=0.0)
    said = free.logits.argmax(-1)
    valid = torch.arange(len(said))[:, None] < one.lengths
    assert torch.equal(torch.where(valid, said, -1), one.tokens)


def test_a_cold_sample_is_greedy_and_a_seed_repeats():
    net = model()
    source, _, S, _ = batch()
    cold = net.sample(source, source_lengths=S, temperature=1e-4, max_length=8)
    assert torch.equal(cold.tokens, net.greedy(source, source_lengths=S, max_length=8).tokens)
    one, two = (net.sample(source, max_length=8, generator=torch.Generator().manual_seed(6)) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens)


def test_batch_first_is_the_same_turned_around():
    net, turned = (
        model("lstm_two_ways", "lstm", "additive"),
        model("lstm_two_ways", "lstm", "additive", batch_first=True),
    )
    turned.load_state_dict(net.state_dict())
    source, targets, S, T = batch()
    lengths: dict[str, Any] = {"source_lengths": S, "target_lengths": T}
    got, want = turned(source.T, targets.T, **lengths), net(source, targets, **lengths)
    assert got.weights is not None
    assert want.weights is not None
    same((got.logits.transpose(0, 1), got.weights.transpose(0, 1)), tuple(want))
    same(turned.loss(source.T, targets.T, **lengths), net.loss(source, targets, **lengths))
    assert torch.equal(turned.greedy(source.T, max_length=6).tokens.T, net.greedy(source, max_length=6).tokens)
    one, two = turned.beam(source.T, width=2, max_length=6), net.beam(source, width=2, max_length=6)
    assert torch.equal(one.tokens.permute(2, 0, 1), two.tokens)


# ---------------------------------------------------------------------------------------- any layer on both sides
WITHOUT_STATE = {"local_static", "local_network_static"}


@pytest.mark.parametrize("name", LAYERS)
def test_any_layer_reads(name):
    net = model(name, "elman", "additive")
    source, targets, S, T = batch()
    got = net(source, targets, source_lengths=S, target_lengths=T)
    for b in range(3):
        same(got.logits[: T[b], b : b + 1], net(source[: S[b], b : b + 1], targets[: T[b], b : b + 1]).logits)


@pytest.mark.parametrize("name", [name for name in ONE_WAY if name not in WITHOUT_STATE])
def test_any_layer_writes(name):
    net = model("elman", name, "additive")
    source, targets, S, T = batch()
    got = net(source, targets, source_lengths=S, target_lengths=T)
    for b in range(3):
        same(got.logits[: T[b], b : b + 1], net(source[: S[b], b : b + 1], targets[: T[b], b : b + 1]).logits)
    got.logits.sum().backward()
    assert net.initial.weight.grad is not None
    assert bool(net.initial.weight.grad.any())


def test_learns_to_reverse():
    torch.manual_seed(0)
    encoder = ll.GRU(8, 24, bidirectional=True, engine="reference")
    decoder = ll.GRU(8 + 48, 24, engine="reference")
    look = Attention("additive", 24, 48)
    net = Seq2Seq(encoder, decoder, 6, source_tokens=6, attention=look, start=0, end=1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        source = torch.randint(2, 6, (5, 64))
        targets = torch.cat([source.flip(0), torch.ones(1, 64, dtype=torch.long)])
        optimizer.zero_grad()
        net.loss(source, targets).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    source = torch.randint(2, 6, (5, 200))
    exact = (net.greedy(source, max_length=6).tokens[:5] == source.flip(0)).all(0)
    assert float(exact.float().mean()) > 0.9


# ------------------------------------------------------------------------------------------------------- messages
def test_bad_layers_are_named():
    GRU = partial(ll.GRU, engine="reference")
    good: dict[str, Any] = {"start": 0, "end": 1}
    gru = GRU(3, 4)
    for build, error, text in (
        (
            lambda: Seq2Seq(nn.GRU(3, 4), gru, 5, **good),  # pyright: ignore[reportArgumentType]
            TypeError,
            "encoder must be a longlag layer, got GRU",
        ),
        (
            lambda: Seq2Seq(gru, nn.GRU(3, 4), 5, **good),  # pyright: ignore[reportArgumentType]
            TypeError,
            "decoder must be a longlag layer, got GRU",
        ),
        (lambda: Seq2Seq(gru, GRU(6, 4, bidirectional=True), 5, **good), ValueError, "decoder must be able to step"),
        (lambda: Seq2Seq(gru, GRU(6, 4, recurrent_dropout=0.1), 5, **good), ValueError, "decoder must be able to"),
        (lambda: Seq2Seq(gru, GRU(6, 4, batch_first=True), 5, **good), ValueError, "must agree in batch_first"),
        (lambda: Seq2Seq(gru, GRU(6, 4, **F64), 5, **good), ValueError, "must agree in device and dtype"),
        (lambda: Seq2Seq(gru, GRU(4, 4), 5, **good), ValueError, "input_size above 4, the encoder's width, got 4"),
        (
            lambda: Seq2Seq(gru, ll.LocalFeedback(6, 4, feedback="static", engine="reference"), 5, **good),
            ValueError,
            "must have a state",
        ),
        (
            lambda: Seq2Seq(gru, GRU(6, 4), 1, **good),
            ValueError,
            "target_tokens must be an int of at least 2",
        ),
        (lambda: Seq2Seq(gru, GRU(6, 4), 5, start=5, end=1), ValueError, "start must be a token in 0..4, got 5"),
        (lambda: Seq2Seq(gru, GRU(6, 4), 5, start=0, end=-1), ValueError, "end must be a token in 0..4, got -1"),
        (
            lambda: Seq2Seq(gru, GRU(6, 4), 5, source_tokens=0, **good),
            ValueError,
            "source_tokens must be a",
        ),
        (
            lambda: Seq2Seq(gru, GRU(6, 4), 5, feedback="hard", **good),
            ValueError,
            "feedback must be one of",
        ),
        (
            lambda: Seq2Seq(gru, GRU(6, 4), 5, attention=Attention("dot", 3, 3), **good),
            ValueError,
            "attention must have query_size, key_size = (4, 4), got (3, 3)",
        ),
    ):
        with pytest.raises(error) as caught:
            build()
        assert str(caught.value).startswith("Seq2Seq: ")
        assert text in str(caught.value)


def test_bad_calls_are_named():
    net = model()
    source, targets, S, _ = batch()
    for call, text in (
        (
            lambda: net(source.float(), targets),
            "source must be int64 tokens (T, B), at least one, got torch.float32",
        ),
        (
            lambda: net(source[0], targets),
            "source must be int64 tokens (T, B), at least one, got torch.int64 of",
        ),
        (
            lambda: net(source[:0], targets),
            "source must be int64 tokens (T, B), at least one, got torch.int64",
        ),
        (lambda: net(source + 1, targets), "source must lie in 0..6, got 7"),
        (lambda: net(source, targets - 5), "targets must lie in 0..4, got -"),
        (lambda: net(source, targets[:, :2]), "targets must be 3 sequences like source, got 2"),
        (lambda: net(source, [1]), "targets must be int64 tokens (T, B), at least one, got list"),
        (lambda: net(source, targets, source_lengths=[6, 7, 1]), "source: lengths must lie in 1..6, got 7"),
        (lambda: net(source, targets, target_lengths=[4, 0, 1]), "targets: lengths must lie in 1..4, got 0"),
        (
            lambda: net(source, targets, source_lengths=S[:2]),
            "source: lengths must be ints of shape (3,), got",
        ),
        (lambda: net(source, targets, teacher=1.5), "teacher must be a number in [0, 1], got 1.5"),
        (
            lambda: net.loss(source, targets, reduction="max"),
            "reduction must be one of 'none', 'sum', 'mean'",
        ),
        (lambda: net.greedy(source, max_length=0), "max_length must be a positive int, got 0"),
        (lambda: net.beam(source, width=0), "width must be a positive int, got 0"),
        (lambda: net.beam(source, length_penalty=-1.0), "length_penalty must be a number of at least 0, got -1.0"),
        (lambda: net.sample(source, temperature=0), "temperature must be a positive number, got 0"),
        (
            lambda: model(vectors=True)(source, targets),
            "source must be vectors of 3 dimensions, since source_tokens",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith("Seq2Seq: ")
        assert text in str(caught.value)
