"""Random weight guessing: the nets against a plain loop, the search against a count by hand."""

from dataclasses import replace

import numpy as np
import pytest

from longlag.lab import beyond, hs97
from longlag.lab.criteria import Goal, TrainingSetCriterion
from longlag.lab.guessing import GuessingModel, classified, connected
from longlag.lab.learners import GuessingLearner
from longlag.lab.trials import trial
from longlag.tasks import DelayedXOR, EmbeddedReber, Parity

# XOR of the input and the last output: the hidden unit is their conjunction. Sources [x, hidden, output, 1]
PARITY_NET = np.array([[50.0, 0.0, 50.0, -75.0], [20.0, -100.0, 50.0, 0.0]])
EASY = replace(
    beyond.parity_guessing(), task=Parity(3), stop=TrainingSetCriterion(0.3, size=8, final=64), cap=20_000, trials=2
)


def expected(W, learner, x):
    """Outputs of one net at the end: hidden units from y(t−1), then outputs from the new hidden and the old outputs."""
    n, y = learner.hidden, np.zeros(learner.hidden + learner.output_size)
    for x_t in x:
        y = np.concatenate([sigmoid(W[:n] @ np.concatenate([x_t, y, [1]])), y[n:]])
        y = np.concatenate([y[:n], sigmoid(W[n:] @ np.concatenate([x_t, y, [1]]))])
    return y[n:]


def sigmoid(net):
    return 1 / (1 + np.exp(-net))


@pytest.mark.parametrize("learner", [GuessingLearner(2, 3, 2, reach=2.0), GuessingLearner(2, 3, 2, "sparse", 2.0)])
def test_outputs_are_the_equations(learner):
    model = GuessingModel(learner, np.random.default_rng(1))
    data = replace(DelayedXOR(12).sample(5, np.random.default_rng(2)), output_size=2, targets=np.zeros((5, 2)))
    y = model.outputs(data)[data.offsets[1:] - 1]
    for k, (a, b) in enumerate(zip(data.offsets[:-1], data.offsets[1:])):
        np.testing.assert_allclose(y[k], expected(model.W, learner, data.inputs[a:b]), rtol=1e-12)
    errors = model.test(data)
    np.testing.assert_allclose(errors.largest, y.max(1), rtol=1e-12)
    np.testing.assert_allclose(errors.mean, y.mean(1), rtol=1e-12)


def test_connections_are_the_weights_counted():
    for learner in (GuessingLearner(1, 1, 1), GuessingLearner(2, 3, 2), GuessingLearner(1, 10, 1, "sparse")):
        assert connected(learner).sum() == learner.weight_count
        drawn = GuessingModel(learner, np.random.default_rng(0)).draw(50)
        assert (drawn[:, ~connected(learner)] == 0).all()
        assert 90 < np.abs(drawn).max() <= 100
    sparse = connected(GuessingLearner(1, 2, 1, "sparse")).astype(int).tolist()  # sources [x, h1, h2, out, 1]
    assert sparse == [[1, 1, 0, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 0, 1]]


def test_a_net_sees_sequences_up_to_its_first_wrong_one():
    data = Parity(500).sample(20, np.random.default_rng(0))
    nets = np.stack([PARITY_NET, np.zeros((2, 4)), PARITY_NET])
    nets[2, 1] = [100.0, 0.0, 0.0, 0.0]  # answers with the last bit
    seen, right, mean = classified(nets, 1, data, 0.1)
    assert right.tolist() == [True, False, False]
    last = (data.inputs[data.offsets[1:] - 1, 0] > 0) == data.targets[:, 0]
    assert seen.tolist() == [20, 1, int(np.argmin(last)) + 1]
    assert mean[0] < 1e-6
    assert mean[1] == 0.5


def test_the_search_counts_every_guess_and_every_sequence(monkeypatch):
    """One net at a time by hand: the first that is right on all training sequences ends the search."""
    record = trial(EASY, 2)
    assert record.success
    rng = np.random.default_rng([2, 0])
    assert isinstance(EASY.learner, GuessingLearner)
    model = GuessingModel(EASY.learner, rng)
    data = EASY.task.sample(8, np.random.default_rng([2, 1]))
    guesses = sequences = 0
    while True:
        guesses += 1
        seen, right, _ = classified(model.draw(1), 1, data, 0.3)
        sequences += int(seen[0])
        if right[0]:
            break
    (stage,) = record.reached
    assert (stage.test["guesses"], stage.sequences, record.sequences) == (guesses, sequences, sequences)
    monkeypatch.setattr("longlag.lab.trials.NETS_AT_ONCE", 7)
    assert trial(EASY, 2).reached == record.reached, "records do not depend on how many nets run at once"


def test_parity_of_five_hundred_bits_is_guessed():
    record = trial(beyond.parity_guessing(), 1)
    assert record.success
    assert record.reached[0].test["wrong"] == 0
    assert record.example is None


def test_no_success_by_the_cap():
    record = trial(replace(beyond.two_sequence_guessing("c"), cap=500), 0)
    assert (record.success, record.sequences, record.curve[-1][0]) == (False, 500, 500)
    never = replace(EASY, stop=TrainingSetCriterion(0.3, 8, goals=(Goal(mean=0.0),)), cap=300)
    assert not trial(never, 2).success


def test_bad_learners_and_tasks():
    with pytest.raises(ValueError, match="GuessingLearner: connections must be 'all' or 'sparse', got 'few'"):
        GuessingLearner(1, 1, 1, "few")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="GuessingLearner: reach must be positive, got 0"):
        GuessingLearner(1, 1, 1, reach=0)
    with pytest.raises(ValueError, match="must guess a task scored at the end"):
        trial(replace(EASY, task=EmbeddedReber()), 0)
    with pytest.raises(ValueError, match="must guess a task scored at the end"):
        trial(replace(EASY, learner=hs97.experiment_3("a").learner), 0)
