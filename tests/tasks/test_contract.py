"""What every task promises: shapes, determinism, clear refusals, and a lag that is never broken."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longlag import tasks

TASKS = (
    tasks.EmbeddedReber(),
    tasks.EmbeddedReber("legal"),
    tasks.NoiseFree(p=5),
    tasks.Distractors(p=5),
    tasks.Distractors(p=5, scored="end"),
    tasks.LongLag(q=6, p=4),
    tasks.TwoSequence(T=20, N=3, variant="a"),
    tasks.TwoSequence(T=20, N=3, variant="b"),
    tasks.TwoSequence(T=20, N=3, variant="c"),
    tasks.Adding(T=30),
    tasks.Adding(T=30, first="unmark"),
    tasks.Adding(T=30, first="zero_value"),
    tasks.Multiplication(T=30),
    tasks.Multiplication(T=30, first="unmark"),
    tasks.Multiplication(T=30, first="zero_value"),
    tasks.TemporalOrder(symbols=2),
    tasks.TemporalOrder(symbols=3),
    tasks.Copy(T=7, symbols=3, length=2),
    tasks.DelayedXOR(T=30),
    tasks.Parity(T=20),
)
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def contents(batch):
    return [getattr(batch, field.name) for field in dataclasses.fields(batch)]


def same(a, b):
    return all(np.array_equal(x, y) if x is not None else y is None for x, y in zip(contents(a), contents(b)))


@every_task
def test_same_generator_same_batch(task):
    first = task.sample(40, np.random.default_rng(3))
    assert same(first, task.sample(40, np.random.default_rng(3)))
    assert not same(first, task.sample(40, np.random.default_rng(4)))


@every_task
def test_generator_moves_on(task):
    rng = np.random.default_rng(3)
    assert not same(task.sample(40, rng), task.sample(40, rng))


@every_task
@pytest.mark.parametrize("n", [1, 2, 37])
def test_sizes(task, n):
    batch = task.sample(n, np.random.default_rng(0))
    assert len(batch) == n == len(batch.lengths)
    assert batch.lengths.sum() == len(batch.inputs)
    assert (batch.input_size, batch.output_size) == (task.input_size, task.output_size)
    assert batch.dense().shape == (len(batch.inputs), task.input_size)
    rows = n if batch.scored == "end" else len(batch.inputs)
    symbols = batch.scored == "every" and batch.targets.dtype == np.int64
    assert batch.targets.shape == ((rows,) if symbols else (rows, task.output_size))
    assert isinstance(task, tasks.Task)


@every_task
def test_every_symbol_and_class_occurs(task):
    batch = task.sample(2000, np.random.default_rng(0))
    if batch.inputs.ndim == 1:
        assert set(batch.inputs.tolist()) == set(range(task.input_size))
    if batch.labels is not None:
        counts = np.bincount(batch.labels)
        assert (abs(counts - 2000 / len(counts)) < 5 * np.sqrt(2000 / len(counts))).all()


@every_task
def test_refusals(task):
    name, rng = type(task).__name__, np.random.default_rng(0)
    before = rng.bit_generator.state
    for n, error in (
        (0, ValueError),
        (-2, ValueError),
        (2.0, TypeError),
        (True, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error, match=rf"^{name}: n must be an int >= 1, got {n}$"):
            task.sample(n, rng)
    assert rng.bit_generator.state == before
    with pytest.raises(TypeError, match=rf"^{name}: rng must be a numpy.random.Generator, got RandomState$"):
        task.sample(3, np.random.RandomState(0))
    with pytest.raises(TypeError, match=rf"^{name}: rng must be a numpy.random.Generator, got int$"):
        task.sample(3, 0)


@every_task
def test_a_task_is_a_value(task):
    assert task == dataclasses.replace(task)
    assert hash(task) == hash(dataclasses.replace(task))
    for field in dataclasses.fields(task):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(task, field.name, 50)


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (tasks.NoiseFree, {"p": 1}, "NoiseFree: p must be an int >= 2, got 1"),
        (tasks.Distractors, {"p": 1.5}, "Distractors: p must be an int >= 2, got 1.5"),
        (tasks.LongLag, {"q": 0, "p": 5}, "LongLag: q must be an int >= 1, got 0"),
        (tasks.LongLag, {"q": 5, "p": 0}, "LongLag: p must be an int >= 1, got 0"),
        (tasks.TwoSequence, {"T": 1, "N": 1}, "TwoSequence: T must be an int >= 2, got 1"),
        (tasks.TwoSequence, {"T": 10, "N": 0}, "TwoSequence: N must be an int >= 1, got 0"),
        (tasks.TwoSequence, {"T": 10, "N": 10}, "TwoSequence: N must be below T = 10, got 10"),
        (
            tasks.TwoSequence,
            {"T": 10, "N": 1, "variant": "d"},
            "TwoSequence: variant must be one of 'a', 'b', 'c', got 'd'",
        ),
        (tasks.Adding, {"T": 21}, "Adding: T must be an int >= 22, got 21"),
        (tasks.Adding, {"T": "100"}, "Adding: T must be an int >= 22, got '100'"),
        (
            tasks.Adding,
            {"T": 100, "first": 0},
            "Adding: first must be one of 'minus_one', 'unmark', 'zero_value', got 0",
        ),
        (tasks.Multiplication, {"T": 21}, "Multiplication: T must be an int >= 22, got 21"),
        (
            tasks.Multiplication,
            {"T": 100, "first": "one"},
            "Multiplication: first must be one of 'minus_one', 'unmark', 'zero_value', got 'one'",
        ),
        (tasks.TemporalOrder, {"symbols": 4}, "TemporalOrder: symbols must be one of 2, 3, got 4"),
        (tasks.TemporalOrder, {"symbols": 2.0}, "TemporalOrder: symbols must be one of 2, 3, got 2.0"),
        (tasks.Copy, {"T": 0}, "Copy: T must be an int >= 1, got 0"),
        (tasks.Copy, {"T": 5, "symbols": 1}, "Copy: symbols must be an int >= 2, got 1"),
        (tasks.Copy, {"T": 5, "length": 0}, "Copy: length must be an int >= 1, got 0"),
        (tasks.DelayedXOR, {"T": 9}, "DelayedXOR: T must be an int >= 10, got 9"),
        (tasks.Parity, {"T": 0}, "Parity: T must be an int >= 1, got 0"),
    ],
)
def test_refused_arguments(kind, arguments, text):
    with pytest.raises((ValueError, TypeError)) as caught:
        kind(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(("T", "error"), [(100.0, TypeError), (True, TypeError), (None, TypeError), (1, ValueError)])
def test_a_wrong_type_is_a_type_error(T, error):
    with pytest.raises(error, match=rf"^Adding: T must be an int >= 22, got {T}$"):
        tasks.Adding(T)


@pytest.mark.parametrize("T", [100, np.int64(100), np.int32(100)])
def test_any_integer_will_do(T):
    assert tasks.Adding(T).sample(3, np.random.default_rng(0)).lengths.min() >= 100


LENGTHS = st.integers(22, 130)
BATCH = {"n": st.integers(1, 40), "seed": st.integers(0, 2**32)}


def lags(task, batch):
    """Steps from the input to be remembered to the output that needs it, j - i + 1, for each sequence."""
    for a, b in zip(batch.offsets[:-1], batch.offsets[1:]):
        rows = batch.inputs[a:b]
        match task:
            case tasks.EmbeddedReber():
                yield (len(rows) - 2) - 1 + 1  # read at step 1, predicted by the last step but one
            case tasks.NoiseFree() | tasks.Distractors():
                yield len(rows)
            case tasks.LongLag():
                yield len(rows) - int(np.flatnonzero(rows >= task.p + 2)[0])
            case tasks.TwoSequence():
                yield len(rows) - (task.N - 1)
            case tasks.Adding() | tasks.Multiplication() | tasks.DelayedXOR():
                yield len(rows) - int(np.flatnonzero(rows[:, 1] == 1)[-1])
            case tasks.TemporalOrder():
                yield len(rows) - int(np.flatnonzero(rows >= 6)[-1])
            case tasks.Copy():
                (recalled,) = np.flatnonzero(batch.targets[a:b] < task.symbols)[:1]
                yield int(recalled) + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda T, q: tasks.EmbeddedReber(),
        lambda T, q: tasks.NoiseFree(p=T),
        lambda T, q: tasks.Distractors(p=T),
        lambda T, q: tasks.LongLag(q=q, p=T),
        lambda T, q: tasks.TwoSequence(T=T, N=min(q, T - 1), variant="b"),
        lambda T, q: tasks.Adding(T=T, first=("minus_one", "unmark", "zero_value")[q % 3]),
        lambda T, q: tasks.Multiplication(T=T, first=("minus_one", "unmark", "zero_value")[q % 3]),
        lambda T, q: tasks.TemporalOrder(symbols=2 + q % 2),
        lambda T, q: tasks.Copy(T=T, symbols=2 + q, length=q),
        lambda T, q: tasks.DelayedXOR(T=T),
    ],
)
@settings(max_examples=15, deadline=None)
@given(T=LENGTHS, q=st.integers(1, 40), **BATCH)
def test_the_shortest_lag_is_never_broken(make, T, q, n, seed):
    task = make(T, q)
    assert min(lags(task, task.sample(n, np.random.default_rng(seed)))) >= task.minimal_lag


@pytest.mark.parametrize(
    ("task", "published", "shortest"),
    [
        (tasks.EmbeddedReber(), 6, 6),  # errata 001-36: not 9
        (tasks.NoiseFree(p=100), 100, 100),
        (tasks.Distractors(p=100), 100, 100),
        (tasks.LongLag(q=50, p=50), 51, 52),  # Table 3 prints q as "time lag - 1"
        (tasks.TwoSequence(T=100, N=3), 98, 98),
        (tasks.Adding(T=100), 50, 52),  # Table 7
        (tasks.Multiplication(T=100), 50, 52),  # Table 8
        (tasks.TemporalOrder(symbols=2), 40, 40),  # Table 9
        (tasks.TemporalOrder(symbols=3), 24, 24),
        (tasks.Copy(T=30), 41, 41),
        (tasks.DelayedXOR(T=100), 41, 41),
    ],
    ids=str,
)
def test_lags_of_the_paper(task, published, shortest):
    assert task.minimal_lag == published
    assert min(lags(task, task.sample(20000, np.random.default_rng(0)))) == shortest


@pytest.mark.parametrize(
    ("task", "T"),
    [
        (tasks.TwoSequence(T=100, N=1), 100),
        (tasks.Adding(T=107), 107),
        (tasks.Multiplication(T=100), 100),
        (tasks.TemporalOrder(symbols=2), 100),
        (tasks.TemporalOrder(symbols=3), 100),
        (tasks.DelayedXOR(T=50), 50),
        (tasks.Parity(T=40), 40),
    ],
    ids=str,
)
def test_lengths_are_uniform_from_t_to_t_and_a_tenth(task, T):
    n = 5000
    values, counts = np.unique(task.sample(n, np.random.default_rng(1)).lengths, return_counts=True)
    assert values.tolist() == list(range(T, T + T // 10 + 1))
    expected = n / len(values)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)
