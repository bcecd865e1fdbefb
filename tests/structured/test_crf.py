"""CRF against brute force over all tag sequences, on both engines."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from structured.oracle import expected, log_partition, paths, problem, spread

from longlag.structured import CRF, Constraints

ENGINES = ("reference", "cpu")
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}

problems = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "T": st.integers(1, 5),
        "K": st.integers(1, 4),
        "seed": st.integers(0, 10**6),
        "holes": st.booleans(),
        "constrained": st.booleans(),
        "engine": st.sampled_from(ENGINES),
    }
)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@settings(max_examples=60)
@given(problems)
def test_partition_and_marginals_are_those_of_all_paths(p):
    crf, emissions, mask = problem(**p)
    every = [paths(crf, x, m) for x, m in zip(emissions, mask)]
    torch.testing.assert_close(crf.log_partition(emissions, mask), tensor([log_partition(e) for e in every]), **CLOSE)
    counts = [expected(e, m, p["K"]) for e, m in zip(every, mask)]
    with torch.no_grad():
        torch.testing.assert_close(crf.marginals(emissions, mask), torch.stack([c.tags for c in counts]), **CLOSE)
        torch.testing.assert_close(crf.pair_marginals(emissions, mask), torch.stack([c.pairs for c in counts]), **CLOSE)


@settings(max_examples=60)
@given(problems, st.integers(1, 9))
def test_best_paths_are_the_best_of_all_paths(p, k):
    crf, emissions, mask = problem(**p)
    best, best_score = crf.viterbi(emissions, mask)
    several, several_scores = crf.k_best(emissions, mask, k)
    for n, (x, m) in enumerate(zip(emissions, mask)):
        every = paths(crf, x, m)[:k]
        none = [-1] * p["T"]
        want = [spread(path.tags, m) for path in every] + [none] * (k - len(every))
        want_scores = tensor([path.score for path in every] + [-math.inf] * (k - len(every)))
        assert best[n].tolist() == want[0]
        assert several[n].tolist() == want
        torch.testing.assert_close(best_score[n], want_scores[0], **CLOSE)
        torch.testing.assert_close(several_scores[n], want_scores, **CLOSE)
    if bool((best_score > -math.inf).all()):
        listed = [[list(path.tags) for path in paths(crf, x, m)[:k]] for x, m in zip(emissions, mask)]
        assert crf.decode(emissions, mask) == [some[0] for some in listed]
        assert crf.decode(emissions, mask, k=k) == listed


@settings(max_examples=60)
@given(problems)
def test_likelihood_and_its_gradient_are_those_of_all_paths(p):
    crf, emissions, mask = problem(**p)
    every = [paths(crf, x, m) for x, m in zip(emissions, mask)]
    if not all(every):
        return
    gold = [e[len(e) // 2] for e in every]
    tags = torch.tensor([spread(path.tags, m) for path, m in zip(gold, mask)])
    weight = torch.linspace(0.5, 2.0, p["B"], dtype=torch.float64)
    emissions.requires_grad_()
    log_likelihood = crf(emissions, tags, mask, reduction="none")
    want = tensor([path.score - log_partition(e) for path, e in zip(gold, every)])
    torch.testing.assert_close(log_likelihood, want, **CLOSE)
    torch.testing.assert_close(crf.score(emissions, tags, mask), tensor([path.score for path in gold]), **CLOSE)
    (log_likelihood * weight).sum().backward()
    observed = [expected([path], m, p["K"]) for path, m in zip(gold, mask)]
    counts = [expected(e, m, p["K"]) for e, m in zip(every, mask)]
    difference = [
        [w * (o - c) for w, o, c in zip(weight, parts, others)]
        for parts, others in (
            ([getattr(o, name) for o in observed], [getattr(c, name) for c in counts])
            for name in ("tags", "pairs", "first", "last")
        )
    ]
    torch.testing.assert_close(emissions.grad, torch.stack(difference[0]), **CLOSE)
    torch.testing.assert_close(crf.transitions.grad, torch.stack(difference[1]).sum((0, 1)), **CLOSE)
    torch.testing.assert_close(crf.start_transitions.grad, torch.stack(difference[2]).sum(0), **CLOSE)
    torch.testing.assert_close(crf.end_transitions.grad, torch.stack(difference[3]).sum(0), **CLOSE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [50.0, 500.0, 1e4])
def test_far_apart_scores_lose_nothing(engine, scale):
    for seed in range(8):
        crf, emissions, mask = problem(3, 4, 3, seed=seed, engine=engine, constrained=seed % 2 == 1, scale=scale)
        with torch.no_grad():
            crf.transitions[0, 1] = -1e4 if seed > 3 else 0.0
        every = [paths(crf, x, m) for x, m in zip(emissions, mask)]
        log_Z = crf.log_partition(emissions.requires_grad_(), mask)
        torch.testing.assert_close(log_Z, tensor([log_partition(e) for e in every]), **CLOSE)
        weight = tensor([0.5, 1.0, 2.0])
        torch.where(log_Z > -math.inf, weight * log_Z, 0).sum().backward()
        counts = [expected(e, m, 3) for e, m in zip(every, mask)]
        # of a log-probability of size s, float64 keeps s·2⁻⁵²: so does its exponential
        near = {"rtol": 1e-9, "atol": 1e-15 * scale}
        want = [torch.stack([getattr(c, name) for c in counts]) for name in ("tags", "pairs", "first", "last")]
        torch.testing.assert_close(emissions.grad, weight[:, None, None] * want[0], **near)
        torch.testing.assert_close(crf.transitions.grad, torch.einsum("b,btjk->jk", weight, want[1]), **near)
        torch.testing.assert_close(crf.start_transitions.grad, weight @ want[2], **near)
        torch.testing.assert_close(crf.end_transitions.grad, weight @ want[3], **near)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behind", [30.0, 100.0, 200.0, 400.0, 2000.0])
def test_a_path_through_the_worst_tag_survives(engine, behind):
    """Tag 1 is far behind at every step, farther at each, and the only one that may end."""
    apart = Constraints(torch.eye(2).bool(), torch.tensor([True, True]), torch.tensor([False, True]))
    crf = CRF(2, constraints=apart, engine=engine, dtype=torch.float64)
    emissions = torch.zeros(1, 12, 2, dtype=torch.float64)
    emissions[..., 1] = -behind
    log_Z = crf.log_partition(emissions.requires_grad_())
    want = crf.start_transitions[1] + 11 * crf.transitions[1, 1] + crf.end_transitions[1] - 12 * behind
    torch.testing.assert_close(log_Z, want.detach().unsqueeze(0), **CLOSE)
    log_Z.sum().backward()
    torch.testing.assert_close(emissions.grad, tensor([[[0.0, 1.0]] * 12]), **CLOSE)
    torch.testing.assert_close(crf.transitions.grad, tensor([[0.0, 0.0], [0.0, 11.0]]), **CLOSE)
    assert crf.decode(emissions) == [[1] * 12]


@pytest.mark.parametrize("engine", ENGINES)
def test_emissions_of_minus_infinity_forbid_without_nan(engine):
    crf, emissions, mask = problem(2, 4, 3, seed=3, engine=engine, holes=False)
    emissions[0, 1, :2] = -math.inf
    emissions[1, 2] = -math.inf  # no path at all
    emissions.requires_grad_()
    every = [paths(crf, x, m) for x, m in zip(emissions, mask)]
    log_Z = crf.log_partition(emissions)
    torch.testing.assert_close(log_Z, tensor([log_partition(e) for e in every]), **CLOSE)
    log_Z[0].backward()
    assert emissions.grad is not None
    torch.testing.assert_close(emissions.grad[0], expected(every[0], mask[0], 3).tags, **CLOSE)
    assert bool((emissions.grad[1] == 0).all())
    assert bool((crf.marginals(emissions.detach())[1] == 0).all())
    assert crf.viterbi(emissions)[0][1].tolist() == [-1] * 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("constrained", [False, True])
def test_gradcheck(engine, constrained):
    crf, emissions, mask = problem(3, 4, 3, seed=12, engine=engine, constrained=constrained)
    tags = crf.viterbi(emissions, mask)[0]
    emissions.requires_grad_()

    def likelihood(x, a_s, a_e, A):
        weights = {"start_transitions": a_s, "end_transitions": a_e, "transitions": A}
        return torch.func.functional_call(crf, weights, (x, tags, mask, "none"))

    inputs = (emissions, crf.start_transitions, crf.end_transitions, crf.transitions)
    assert torch.autograd.gradcheck(likelihood, inputs)
    if engine == "reference":
        assert torch.autograd.gradgradcheck(likelihood, inputs)


def test_marginals_have_a_gradient_on_the_reference_engine_alone():
    crf, emissions, mask = problem(2, 4, 3, seed=5, engine="auto")
    emissions.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: crf.marginals(x, mask), emissions)
    crf.engine = "cpu"
    with pytest.raises(NotImplementedError, match="CRF: engine 'cpu' has no second derivatives, use engine='refer"):
        crf.marginals(emissions, mask).sum().backward()
    (dx,) = torch.autograd.grad(crf.log_partition(emissions, mask).sum(), emissions, create_graph=True)
    with pytest.raises(NotImplementedError, match="CRF: engine 'cpu' has no second derivatives"):
        dx.square().sum().backward()


@pytest.mark.parametrize("constrained", [False, True])
def test_draws_have_the_probabilities_of_the_paths(constrained):
    crf, emissions, _ = problem(2, 4, 3, seed=2, engine="auto", constrained=constrained)
    mask, n = torch.tensor([[True, True, False, True], [False, True, True, True]]), 20_000
    draws = crf.sample(emissions, mask, n, torch.Generator().manual_seed(1))
    for x, m, some in zip(emissions, mask, draws):
        every = paths(crf, x, m)
        assert len(every) > 1
        log_Z = log_partition(every)
        seen = [int((some == torch.tensor(spread(path.tags, m))).all(1).sum()) for path in every]
        assert sum(seen) == n  # nothing impossible
        assert chisquare(seen, [n * math.exp(path.score - log_Z) for path in every]).pvalue > 1e-3


def test_draws_repeat_with_the_generator_and_are_nothing_where_nothing_is_possible():
    crf, emissions, mask = problem(2, 5, 3, seed=9, engine="auto", holes=False)
    one, two = (crf.sample(emissions, mask, 7, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, two)
    emissions[0, 2] = -math.inf
    mask[1] = False
    assert bool((crf.sample(emissions, mask, 3) == -1).all())


@pytest.mark.parametrize("engine", ENGINES)
def test_ties_go_to_the_lowest_tag(engine):
    crf = CRF(4, engine=engine, dtype=torch.float64)
    torch.nn.init.zeros_(crf.transitions)
    torch.nn.init.zeros_(crf.start_transitions)
    torch.nn.init.zeros_(crf.end_transitions)
    assert crf.decode(torch.zeros(2, 3, 4, dtype=torch.float64)) == [[0, 0, 0]] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_identities(engine):
    crf, emissions, mask = problem(3, 6, 4, seed=21, engine=engine)
    shift = torch.randn(3, 6, 1, dtype=torch.float64)
    moved = (crf.log_partition(emissions + shift, mask) - crf.log_partition(emissions, mask)).detach()
    torch.testing.assert_close(moved, (shift.squeeze(-1) * mask).sum(1), **CLOSE)
    for parameter in crf.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        apart = torch.softmax(emissions, -1) * mask.unsqueeze(-1)
        torch.testing.assert_close(crf.marginals(emissions, mask), apart, **CLOSE)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_odd_size_equals_each_sequence_alone_without_its_holes(engine):
    crf, emissions, mask = problem(7, 33, 11, seed=2, engine=engine)
    emissions[~mask] = math.nan
    tags = torch.where(mask, torch.randint(11, mask.shape, generator=torch.Generator().manual_seed(3)), -1)
    emissions.requires_grad_()
    together = crf(emissions, tags, mask, reduction="none")
    (dx,) = torch.autograd.grad(together.sum(), emissions)
    assert bool((dx[~mask] == 0).all())
    for n in range(7):
        x = emissions[n : n + 1, mask[n]].detach().requires_grad_()
        alone = crf(x, tags[n : n + 1, mask[n]])
        torch.testing.assert_close(together[n], alone, **CLOSE)
        torch.testing.assert_close(dx[n, mask[n]], torch.autograd.grad(alone, x)[0][0], **CLOSE)
        assert crf.decode(x) == crf.decode(emissions[n : n + 1], mask[n : n + 1])


@pytest.mark.parametrize("engine", ENGINES)
def test_no_active_step_is_the_empty_sequence(engine):
    crf, emissions, _ = problem(2, 3, 2, seed=1, engine=engine)
    mask = torch.tensor([[False] * 3, [True] * 3])
    tags = torch.zeros(2, 3, dtype=torch.long)
    assert crf(emissions, tags, mask, reduction="none")[0].item() == 0.0
    assert crf.log_partition(emissions, mask)[0].item() == 0.0
    assert crf.decode(emissions, mask)[0] == []
    assert crf.decode(emissions, mask, k=2)[0] == [[]]
    assert crf.log_partition(emissions[:0], mask[:0]).shape == (0,)
    assert crf.decode(emissions[:0]) == []
