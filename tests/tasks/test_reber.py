"""E1 against two other descriptions of the grammar: a regular expression, and an enumeration of strings."""

import re
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest

from longlag.tasks import EmbeddedReber, Ragged

ALPHABET = "BEPSTVX"
TAIL = "(?:XT*VP)*(?:S|XT*VV)"
INNER = f"B(?:TS*X{TAIL}|PT*V(?:P{TAIL}|V))E"
EMBEDDED = re.compile(f"B(?:T{INNER}T|P{INNER}P)E")


@cache
def tails(room: int) -> tuple[str, ...]:
    """Ends of at most `room` symbols after an X or P that leads to the grammar's middle."""
    found = ["S"] if room >= 1 else []
    for loops in range(max(0, room - 2)):
        found.append("X" + "T" * loops + "VV")
        found += ["X" + "T" * loops + "VP" + tail for tail in tails(room - loops - 3)]
    return tuple(text for text in found if len(text) <= room)


@cache
def inner(room: int) -> frozenset[str]:
    """All Reber strings of at most `room` symbols."""
    found = []
    for loops in range(room):
        found += ["T" + "S" * loops + "X" + tail for tail in tails(room - loops - 4)]
        found += ["P" + "T" * loops + "VP" + tail for tail in tails(room - loops - 5)]
        found.append("P" + "T" * loops + "VV")
    return frozenset(f"B{text}E" for text in found if len(text) + 2 <= room)


@cache
def prefixes(room: int) -> frozenset[str]:
    strings = [f"B{c}{text}{c}E" for c in "TP" for text in inner(room - 4)]
    return frozenset(text[:k] for text in strings for k in range(len(text) + 1))


def successors(prefix: str) -> set[str]:
    return {s for s in ALPHABET if prefix + s in prefixes(18)}


@cache
def short_strings() -> frozenset[str]:
    """All strings of at most 11 symbols; each of their prefixes can be completed within 18 symbols."""
    return frozenset(text for text in prefixes(18) if len(text) <= 11 and EMBEDDED.fullmatch(text))


def spell(batch: Ragged) -> list[str]:
    """The whole strings of a batch, checked to be told alike by inputs and targets."""
    strings = []
    for a, b in zip(batch.offsets[:-1], batch.offsets[1:]):
        read = "".join(ALPHABET[s] for s in batch.inputs[a:b])
        told = "".join(ALPHABET[s] for s in batch.targets[a:b])
        assert read[1:] == told[:-1]
        strings.append(read + told[-1])
    return strings


def pack(strings: list[str]) -> Ragged:
    codes = [[ALPHABET.index(s) for s in text] for text in strings]
    offsets = np.array([0, *np.cumsum([len(text) - 1 for text in strings])])
    inputs = np.array([s for text in codes for s in text[:-1]])
    return Ragged(inputs, offsets, np.array([s for text in codes for s in text[1:]]), 7, 7)


def test_the_two_oracles_agree():
    for size in range(3, 9):
        matched = {f"B{''.join(m)}E" for m in product(ALPHABET, repeat=size - 2)}
        matched = {text for text in matched if re.fullmatch(INNER, text)}
        assert matched == {text for text in inner(8) if len(text) == size}


@pytest.fixture(scope="module")
def strings():
    return spell(EmbeddedReber().sample(40000, np.random.default_rng(5)))


def test_strings_are_grammatical(strings):
    assert all(EMBEDDED.fullmatch(text) for text in strings)


def test_lengths(strings):
    lengths = np.array([len(text) for text in strings])
    assert lengths.min() == 9
    assert abs(lengths.mean() - 12) < 5 * lengths.std() / np.sqrt(len(strings))


def test_branches_are_equiprobable(strings):
    """A string has probability 2^-(number of forks on its way), forks counted with the enumeration."""
    short = Counter(text for text in strings if len(text) <= 11)
    assert set(short) == short_strings()
    for text, count in short.items():
        forks = sum(len(successors(text[:k])) == 2 for k in range(1, len(text)))
        expected = len(strings) * 0.5**forks
        assert abs(count - expected) < 5 * np.sqrt(expected)


def test_legal_against_enumeration():
    short = sorted(short_strings())
    batch = pack(short)
    legal = EmbeddedReber().legal(batch)
    assert legal.shape == (len(batch.inputs), 7)
    assert legal.dtype == bool
    for text, a in zip(short, batch.offsets):
        for t in range(len(text) - 1):
            assert {ALPHABET[i] for i in np.flatnonzero(legal[a + t])} == successors(text[: t + 1])


def test_legal_symbols_as_targets():
    batch = EmbeddedReber("legal").sample(50, np.random.default_rng(2))
    assert batch.scored == "every"
    assert np.array_equal(batch.inputs, EmbeddedReber().sample(50, np.random.default_rng(2)).inputs)
    assert np.array_equal(batch.targets, EmbeddedReber().legal(batch))
    with pytest.raises(ValueError, match="EmbeddedReber: targets must be one of 'next', 'legal', got 'last'"):
        EmbeddedReber("last")  # pyright: ignore[reportArgumentType]


def test_legal_on_random_strings():
    batch = EmbeddedReber().sample(3000, np.random.default_rng(2))
    legal = EmbeddedReber().legal(batch)
    assert legal[np.arange(len(batch.inputs)), batch.targets].all()
    assert set(legal.sum(1)) == {1, 2}  # errata 001-36: argmax accuracy cannot judge two continuations
    closing = batch.offsets[1:] - 2
    remembered = batch.inputs[batch.offsets[:-1] + 1]
    assert np.array_equal(legal[closing].argmax(1), remembered)
    assert (legal[closing].sum(1) == 1).all()


@pytest.mark.parametrize(("text", "step"), [("BTBTXSEPE", 7), ("TTBTXSETE", 0), ("BTBTXVETE", 5)])
def test_legal_refuses_strings_outside_the_grammar(text, step):
    found = f"got an illegal symbol at step {step} of sequence 1"
    with pytest.raises(ValueError, match=rf"^EmbeddedReber: batch must hold grammatical strings, {found}$"):
        EmbeddedReber().legal(pack(["BPBPVVEPE", text]))


def test_legal_refuses_other_data():
    batch = Ragged(np.zeros((1, 2)), np.array([0, 1]), np.zeros((1, 1)), 2, 1)
    with pytest.raises(
        ValueError, match=r"^EmbeddedReber: batch must hold symbols of width 7, got float64 of width 2$"
    ):
        EmbeddedReber().legal(batch)


@pytest.mark.parametrize("seed", range(3))
def test_sets_are_disjoint_and_grammatical(seed):
    train, test = EmbeddedReber().sets(seed)
    train, test = spell(train), spell(test)
    assert len(train) == len(test) == 256
    assert not set(train) & set(test)
    assert all(EMBEDDED.fullmatch(text) for text in train + test)


def test_training_sets_follow_the_grammar():
    lengths = np.array([len(t) for seed in range(20) for t in spell(EmbeddedReber().sets(seed)[0])])
    assert abs(lengths.mean() - 12) < 5 * lengths.std() / np.sqrt(len(lengths))


def test_sets_are_fixed_by_the_seed():
    first, again, other = (spell(EmbeddedReber().sets(seed)[1]) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_sets_refusals():
    with pytest.raises(ValueError, match=r"^EmbeddedReber: size must be an int >= 1, got 0$"):
        EmbeddedReber().sets(seed=0, size=0)
    with pytest.raises(ValueError, match=r"^EmbeddedReber: seed must be an int >= 0, got -1$"):
        EmbeddedReber().sets(seed=-1)
