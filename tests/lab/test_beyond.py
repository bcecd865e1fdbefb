"""Claims beyond the tables: what each changes, what it is compared with, and how it is asked for."""

from dataclasses import replace

import numpy as np
import pytest

from longlag.lab import beyond, hs97
from longlag.lab.criteria import TrainingSetCriterion
from longlag.lab.learners import GuessingLearner
from longlag.lab.models import LayerModel
from longlag.lab.modern import modern
from longlag.lab.options import options
from longlag.lab.profiles import paper, select
from longlag.lab.trials import trial

CLAIMS = beyond.claims()


def test_every_claim_can_be_compared_and_says_where_it_stands():
    labels = {e.label for e in paper()}
    for e in CLAIMS:
        assert e.table is None
        assert e.claim is not None
        assert e.claim.where.startswith("Section ") or "does not say" in e.claim.says
        assert e.claim.says.endswith((".", ")"))
        assert e.claim.against in labels or e.claim.expects in ("fails", "succeeds")
        assert 10 <= e.trials <= 30


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("parity", ["parity T=500 by guessing", "parity T=500"]),
        ("delayed XOR", ["delayed XOR T=100", "delayed XOR T=10", "delayed XOR T=100 by guessing"]),
        ("guessing", ["parity T=500 by guessing", "3a T=100 N=3 by guessing", "3c T=100 N=3 by guessing",
                      "delayed XOR T=100 by guessing"]),
        ("output gates/fit", ["1 3x2 lr=0.5 without output gates"]),
        ("hidden units", ["5 T=100 with 4 hidden units"]),
        ("sequential construction", ["6a one block at a time", "6b one block at a time"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("profile", ["quick", "paper", "beyond", "all"])
def test_a_claim_is_found_by_its_topic_in_every_profile(profile, topic, names):
    assert [e.name for e in select(profile, [topic])] == names


def test_the_beyond_profile_runs_what_the_claims_are_compared_with():
    labels = [e.label for e in select("beyond")]
    assert {e.claim.against for e in CLAIMS if e.claim} - {""} <= set(labels)
    assert len(set(labels)) == len(labels)
    assert [e.label for e in select("all")] == [e.label for e in (*paper(), *CLAIMS, *options(), *modern())]
    assert not any(e.claim for e in select("quick"))


def test_variants_differ_where_they_say():
    table, bare = hs97.experiment_1(3, 2, 0.5, "fit"), beyond.without_output_gates("fit")
    network = replace(beyond.lstm(table).network, output_gates=False)
    assert bare.learner == replace(beyond.lstm(table), network=network, biases=("ig",), output_gate_bias=())
    assert (bare.task, bare.stop, bare.cap) == (table.task, table.stop, table.cap)
    table, helped = hs97.experiment_5(100, "fit"), beyond.with_hidden_units(4)
    assert beyond.lstm(helped).network == replace(beyond.lstm(table).network, hidden_units=4)
    assert helped.learner.weight_count == 189
    assert helped.stop == table.stop
    grown = beyond.lstm(beyond.one_block_at_a_time(3))
    assert grown.construction is not None
    assert (grown.construction.start, grown.network.blocks) == (1, 4)
    assert beyond.two_sequence_guessing("c").stop.goals[0].mean == 0.015


def test_hidden_units_have_biases_and_learn():
    learner = beyond.lstm(beyond.with_hidden_units(4))
    model = LayerModel(learner, np.random.default_rng(0))
    before = model.weights
    model.train(hs97.experiment_5().task.sample(20, np.random.default_rng(1)))
    for name, value in model.weights.items():
        assert np.abs(value - before[name]).max() > 0, name
    assert before["bias_hid"].shape == (4,)


def test_lstm_does_not_learn_delayed_xor_where_it_learns_to_add():
    """The same learner and length: experiment 4 has left the constant answer after so many sequences, XOR has not."""
    cap = 80_000
    record = trial(replace(beyond.delayed_xor(100), cap=cap), 0)
    assert not record.success
    assert record.curve[-1][1] == pytest.approx(0.5, abs=0.02)
    adding = trial(replace(hs97.experiment_4(100), cap=cap), 0)
    assert adding.curve[-1][1] < 0.5 * adding.curve[0][1]


def test_guessing_uses_the_nets_of_1996():
    assert beyond.parity_guessing().learner == GuessingLearner(1, 1, 1, "all", 100.0)
    stop = beyond.parity_guessing().stop
    assert isinstance(stop, TrainingSetCriterion)
    assert (stop.size, stop.bound) == (100, 0.1)
