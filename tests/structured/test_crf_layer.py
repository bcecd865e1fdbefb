"""CRF as a layer: layouts, precisions, devices, operators, messages; and which tags a scheme lets follow which."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from structured.oracle import log_partition, paths, problem

from longlag.structured import CRF, Constraints, _crf_ops, constraints_from

ENGINES = ("reference", "cpu")
INF = math.inf


# ------------------------------------------------------------------------------------------------------ schemes
def written(scheme: str, spans: list[tuple[int, int, str]], T: int) -> tuple[str, ...]:
    """Spans (start, stop, type) as tags."""
    last, single = {"BIO": ("I", "B"), "BIOES": ("E", "S"), "BILOU": ("L", "U")}[scheme]
    tags = ["O"] * T
    for start, stop, kind in spans:
        letters = [single] if stop - start == 1 else ["B", *"I" * (stop - start - 2), last]
        tags[start:stop] = [f"{letter}-{kind}" for letter in letters]
    return tuple(tags)


def all_spans(start: int, T: int, kinds: tuple[str, ...]):
    """Every set of spans in start..T that do not overlap."""
    yield []
    for first in range(start, T):
        for stop in range(first + 1, T + 1):
            for kind in kinds:
                for rest in all_spans(stop, T, kinds):
                    yield [(first, stop, kind), *rest]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scheme", ["BIO", "BIOES", "BILOU"])
def test_only_tags_that_write_spans_are_possible(scheme, engine):
    kinds, T = ("x", "y-z"), 4
    labels = ["O", *(f"{letter}-{kind}" for kind in kinds for letter in set("BIOESLU") & {*scheme} - {"O"})]
    crf, _, _ = problem(1, 1, len(labels), seed=6, engine=engine)
    crf = CRF(len(labels), constraints=CRF.constraints_from(labels, scheme), engine=engine, dtype=torch.float64)
    emissions = torch.randn(1, T, len(labels), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sentences = {written(scheme, spans, T) for spans in all_spans(0, T, kinds)}
    possible = paths(crf, emissions[0], torch.ones(T, dtype=torch.bool))
    assert {tuple(labels[tag] for tag in path.tags) for path in possible} == sentences
    emissions.requires_grad_()
    log_Z = crf.log_partition(emissions)
    assert log_Z.item() == pytest.approx(log_partition(possible), rel=1e-12)
    log_Z.backward()
    for name, allowed in (("transitions", crf.allowed), ("start_transitions", crf.allowed_starts)):
        gradient = getattr(crf, name).grad
        assert allowed is not None
        assert bool((gradient[~allowed] == 0).all())
        assert bool((gradient[allowed] > 0).all())
    best = possible[: len(sentences)]
    assert crf.decode(emissions) == [list(best[0].tags)]
    everything = crf.decode(emissions, k=len(sentences) + 5)[0]
    assert [tuple(path) for path in everything] == [path.tags for path in best]
    drawn = crf.sample(emissions, n=200, generator=torch.Generator().manual_seed(1))[0].tolist()
    assert {tuple(labels[tag] for tag in path) for path in drawn} <= sentences


def test_labels_are_checked():
    with pytest.raises(ValueError, match="constraints_from: scheme must be one of 'BIO', 'BIOES', 'BILOU', got 'IOB'"):
        constraints_from(["O"], "IOB")
    with pytest.raises(ValueError, match=r"labels of BIO must be O, B-type, I-type, got 'E-PER'"):
        constraints_from(["O", "E-PER"])
    for label in ("PER", "B", "B-", "", "-PER"):
        with pytest.raises(ValueError, match="constraints_from: labels of BIOES must be O"):
            constraints_from(["O", label], "BIOES")
    for labels in ([], ["O", "O"], "BIO"):
        with pytest.raises(ValueError, match="constraints_from: labels must be different names, at least one, got"):
            constraints_from(labels)


# ------------------------------------------------------------------------------------- layouts and precisions
@pytest.mark.parametrize("engine", ENGINES)
def test_time_first_is_the_same_turned_around(engine):
    crf, emissions, mask = problem(3, 5, 4, seed=4, engine=engine)
    turned = CRF(4, batch_first=False, engine=engine, dtype=torch.float64)
    turned.load_state_dict(crf.state_dict())
    x, m = emissions.transpose(0, 1), mask.T
    tags = torch.randint(4, (3, 5))
    assert torch.equal(turned(x, tags.T, m, "none"), crf(emissions, tags, mask, "none"))
    assert turned.decode(x, m) == crf.decode(emissions, mask)
    assert turned.decode(x, m, k=3) == crf.decode(emissions, mask, k=3)
    assert torch.equal(turned.viterbi(x, m)[0], crf.viterbi(emissions, mask)[0].T)
    assert torch.equal(turned.k_best(x, m, 2)[0], crf.k_best(emissions, mask, 2)[0].permute(2, 0, 1))
    with torch.no_grad():
        assert torch.equal(turned.marginals(x, m), crf.marginals(emissions, mask).transpose(0, 1))
    pairs = crf.pair_marginals(emissions, mask).transpose(0, 1)
    torch.testing.assert_close(turned.pair_marginals(x, m), pairs, rtol=0, atol=0)
    draws = [
        c.sample(e, s, 2, torch.Generator().manual_seed(0)) for c, e, s in ((turned, x, m), (crf, emissions, mask))
    ]
    assert torch.equal(draws[0], draws[1].permute(2, 0, 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half_weights", [False, True])
def test_half_precision_is_computed_in_float32(engine, dtype, half_weights):
    crf, emissions, mask = problem(4, 50, 6, seed=7, engine=engine)
    crf, emissions = crf.to(dtype if half_weights else torch.float32), (20 * emissions).to(dtype)
    wide = CRF(6, engine=engine)
    wide.load_state_dict(crf.state_dict())
    tags = torch.randint(6, mask.shape)
    got = crf(emissions.requires_grad_(), tags, mask, "none")
    assert got.dtype == torch.float32
    assert torch.equal(got, wide(emissions.float(), tags, mask, "none"))
    assert crf.decode(emissions, mask) == wide.decode(emissions.float(), mask)
    got.sum().backward()
    assert emissions.grad is not None
    assert emissions.grad.dtype == dtype
    assert bool(emissions.grad.isfinite().all())


def test_float32_on_both_engines():
    crf, emissions, mask = problem(5, 70, 9, seed=11, engine="cpu")
    tags = torch.randint(9, mask.shape)
    exact = crf(emissions, tags, mask, "none")
    crf, emissions = crf.float(), emissions.float()
    for engine in ENGINES:
        crf.engine = engine
        torch.testing.assert_close(crf(emissions, tags, mask, "none").double(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_reductions_and_masks_of_bytes(engine):
    crf, emissions, mask = problem(4, 6, 3, seed=13, engine=engine)
    tags = torch.randint(3, mask.shape)
    each = crf(emissions, tags, mask, "none")
    assert torch.equal(crf(emissions, tags, mask), each.sum())
    assert torch.equal(crf(emissions, tags, mask.byte(), "mean"), each.mean())
    assert torch.equal(crf(emissions, tags, mask, "token_mean"), each.sum() / mask.sum())
    assert torch.equal(crf(emissions, tags), crf(emissions, tags, torch.ones_like(mask)))


def test_names_and_layout_of_the_weights():
    crf = CRF(3, constraints=constraints_from(["O", "B-x", "I-x"]))
    shapes = {name: tuple(value.shape) for name, value in crf.state_dict().items()}
    assert shapes == {"start_transitions": (3,), "end_transitions": (3,), "transitions": (3, 3)}
    crf = CRF(2, dtype=torch.float64)
    for parameter in crf.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        crf.transitions[0, 1] = 5.0  # from 0 to 1
    emissions, tags = torch.zeros(1, 2, 2, dtype=torch.float64), torch.tensor([[0, 1]])
    assert crf.score(emissions, tags).item() == 5.0
    assert crf.score(emissions, tags.flip(1)).item() == 0.0


# -------------------------------------------------------------------------------------- operators and devices
@pytest.mark.parametrize("constrained", [False, True])
def test_operators_keep_the_rules_of_torch(constrained):
    crf, emissions, mask = problem(3, 5, 4, seed=30, engine="cpu", constrained=constrained)
    c = crf._enter(emissions.requires_grad_(), mask)
    chain = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in c)
    torch.library.opcheck(_crf_ops.log_partition, chain)
    torch.library.opcheck(_crf_ops.viterbi, tuple(x.detach() for x in chain))
    torch.library.opcheck(_crf_ops.gradient, (torch.ones(3, dtype=torch.float64), *(x.detach() for x in chain)))


@pytest.mark.parametrize("engine", ENGINES)
def test_compiles_into_one_graph(engine):
    crf, emissions, mask = problem(2, 3, 4, seed=14, engine=engine)
    tags = torch.randint(4, mask.shape)
    compiled = torch.compile(crf, fullgraph=True, backend="aot_eager")
    emissions.requires_grad_()
    got, want = (f(emissions, tags, mask) for f in (compiled, crf))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    dx, dx_want = (torch.autograd.grad(f, emissions)[0] for f in (got, want))
    torch.testing.assert_close(dx, dx_want, rtol=1e-12, atol=1e-15)


def test_no_step_waits_for_the_device():
    """A meta tensor has no values: whoever looks at one, as ``.item()`` and a Python ``if`` do, fails."""
    labels = ["O", "B-x", "I-x"]
    crf = CRF(3, constraints=constraints_from(labels), device="meta")
    emissions, tags = torch.empty(4, 6, 3, device="meta"), torch.empty(4, 6, device="meta", dtype=torch.long)
    mask = torch.empty(4, 6, device="meta", dtype=torch.bool)
    assert crf(emissions, tags, mask).shape == ()
    assert crf.marginals(emissions, mask).shape == (4, 6, 3)
    assert crf.pair_marginals(emissions, mask).shape == (4, 6, 3, 3)
    assert crf.viterbi(emissions, mask)[0].shape == (4, 6)
    assert crf.k_best(emissions, mask, 5)[0].shape == (4, 5, 6)
    assert crf.sample(emissions, mask, 2).shape == (4, 2, 6)


def test_engines_are_chosen_aloud():
    crf = CRF(3)
    assert crf.engine_for(torch.zeros(1, 1, 3)) == "cpu: compiled kernels for float32 and float64 on the CPU"
    assert crf.engine_for(torch.zeros(1, 1, 3, device="meta")) == "reference: the emissions are on meta"
    assert CRF(3, engine="reference").engine_for(torch.zeros(1, 1, 3)) == "reference: asked for by name"
    there = CRF(3, engine="cpu", device="meta")
    with pytest.raises(ValueError, match="engine 'cpu' cannot serve this call: the emissions are on meta; engine='ref"):
        there.log_partition(torch.zeros(1, 1, 3, device="meta"))
    with pytest.raises(ValueError, match="CRF: engine must be one of 'auto', 'reference', 'cpu', got 'gpu'"):
        CRF(3, engine="gpu")


# ------------------------------------------------------------------------------------------------------ messages
X, Y, M = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
WRONG = [
    ((X.long(), Y), TypeError, "CRF: emissions must be a floating-point tensor, got torch.int64"),
    (([1.0], Y), TypeError, "CRF: emissions must be a floating-point tensor, got list"),
    ((X[0], Y), ValueError, "CRF: emissions must be (B, T, K) with K = 4 and T at least 1, got shape (3, 4)"),
    ((X[..., :3], Y), ValueError, "CRF: emissions must be (B, T, K) with K = 4 and T at least 1, got shape (2, 3, 3)"),
    ((X[:, :0], Y), ValueError, "CRF: emissions must be (B, T, K) with K = 4 and T at least 1, got shape (2, 0, 4)"),
    ((X.to("meta"), Y), ValueError, "CRF: emissions must be on cpu like the weights, got meta"),
    ((X, Y.int()), ValueError, "CRF: tags must be a int64 tensor of shape (2, 3), got torch.int32 of shape (2, 3)"),
    ((X, Y.T), ValueError, "CRF: tags must be a int64 tensor of shape (2, 3), got torch.int64 of shape (3, 2)"),
    ((X, [0]), ValueError, "CRF: tags must be a int64 tensor of shape (2, 3), got list"),
    ((X, Y + 4), ValueError, "CRF: tags must lie in 0..3, got 4"),
    ((X, Y - 1), ValueError, "CRF: tags must lie in 0..3, got -1"),
    ((X, Y.to("meta")), ValueError, "CRF: tags must be on cpu like the emissions, got meta"),
    ((X, Y, M.T), ValueError, "CRF: mask must be a bool or uint8 tensor of shape (2, 3), got torch.bool of"),
    ((X, Y, M.float()), ValueError, "CRF: mask must be a bool or uint8 tensor of shape (2, 3), got torch.float32"),
    ((X, Y, M, "max"), ValueError, "CRF: reduction must be one of 'none', 'sum', 'mean', 'token_mean', got 'max'"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), WRONG)
def test_bad_input_is_named(arguments, error, text):
    with pytest.raises(error) as caught:
        CRF(4)(*arguments)
    assert text in str(caught.value)


def test_bad_construction_is_named():
    for wrong in (0, -1, 2.0, True, None):
        with pytest.raises(ValueError, match=f"CRF: num_tags must be a positive int, got {wrong}"):
            CRF(wrong)  # pyright: ignore[reportArgumentType]
    allowed = constraints_from(["O", "B-x", "I-x"])
    with pytest.raises(ValueError, match=r"constraints.transitions must be a bool tensor of shape \(4, 4\), got"):
        CRF(4, constraints=allowed)
    with pytest.raises(ValueError, match=r"constraints.ends must be a bool tensor of shape \(3,\), got torch.float32"):
        CRF(3, constraints=Constraints(allowed.transitions, allowed.starts, allowed.ends.float()))


@pytest.mark.parametrize("engine", ENGINES)
def test_impossible_requests_are_named(engine):
    crf = CRF(3, constraints=constraints_from(["O", "B-x", "I-x"]), engine=engine)
    emissions = torch.zeros(2, 3, 3)
    with pytest.raises(ValueError, match="CRF: tags of sequence 1 must be possible, but constraints"):
        crf(emissions, torch.tensor([[1, 2, 0], [0, 2, 0]]))
    assert crf.score(emissions, torch.tensor([[1, 2, 0], [0, 2, 0]]))[1] == -INF
    emissions[1, 0, :2] = -INF
    for k in (None, 2):
        with pytest.raises(ValueError, match="sequence 1 must have at least one possible path, but the con"):
            crf.decode(emissions, k=k)
    emissions[0, 1, 1] = math.nan
    for k in (None, 2):
        with pytest.raises(ValueError, match="sequence 0 must have at least one possible path, but its emissions are"):
            crf.decode(emissions, k=k)
    assert crf.log_partition(emissions)[0].isnan()
    for name in ("k_best", "sample"):
        with pytest.raises(ValueError, match=r"CRF: [kn] must be a positive int, got 0"):
            getattr(crf, name)(emissions, None, 0)


def test_shows_what_it_is():
    assert repr(CRF(3)) == "CRF(3, batch_first=True)"
    assert repr(CRF(3, constraints=constraints_from(["O", "B-x", "I-x"]))) == "CRF(3, batch_first=True, constrained)"


def test_every_pair_of_tags_is_asked_about():
    """BIO with one type, all nine pairs by hand."""
    c = constraints_from(["O", "B-x", "I-x"])
    allowed = {("O", "O"), ("O", "B"), ("B", "O"), ("B", "B"), ("B", "I"), ("I", "O"), ("I", "B"), ("I", "I")}
    for (i, a), (j, b) in itertools.product(enumerate("OBI"), repeat=2):
        assert bool(c.transitions[i, j]) == ((a, b) in allowed)
