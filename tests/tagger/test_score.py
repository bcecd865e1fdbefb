"""Scores: counted as seqeval counts them, on any tags, legal or not."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from longlag.structured.schemes import SCHEMES, constraints_from
from longlag.tagger.score import Count, score
from longlag.tagger.spans import scheme_of, spans, written

KINDS = ["per", "loc", "a-b"]
BILOU = str.maketrans("LU", "ES")  # seqeval's default counting knows E and S only


def tags_of(scheme):
    return ["O", *(f"{letter}-{kind}" for letter in SCHEMES[scheme].letters for kind in KINDS)]


def corpora(scheme):
    pair = st.tuples(st.sampled_from(tags_of(scheme)), st.sampled_from(tags_of(scheme)))
    return st.lists(st.lists(pair, min_size=1, max_size=8), min_size=1, max_size=4)


def theirs(sentences):
    return [[tag[0].translate(BILOU) + tag[1:] for tag in tags] for tags in sentences]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.data())
@settings(max_examples=150)
def test_counts_are_seqevals(scheme, data):
    corpus = data.draw(corpora(scheme))
    gold, guessed = ([[pair[k] for pair in sentence] for sentence in corpus] for k in (0, 1))
    found = score(gold, guessed)
    assert found.accuracy == accuracy_score(gold, guessed)
    if found.spans is None:
        assert {tag for tags in gold + guessed for tag in tags} == {"O"}
        return
    compare: Any = precision_recall_fscore_support  # its annotations are wrong
    wanted = compare(theirs(gold), theirs(guessed), average="micro", zero_division=0)
    assert (found.spans.precision, found.spans.recall) == wanted[:2]
    assert found.spans.f1 == pytest.approx(wanted[2], rel=1e-12)
    each = compare(theirs(gold), theirs(guessed), average=None, zero_division=0)
    kinds = [(c.precision, c.recall, c.there) for _, c in sorted(found.kinds.items())]
    assert kinds == list(zip(each[0], each[1], each[3]))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.data())
@settings(max_examples=150)
def test_spans_are_seqevals_and_written_legally(scheme, data):
    tags = data.draw(st.lists(st.sampled_from(tags_of(scheme)), max_size=10))
    found = spans(tags)
    assert [tuple(span) for span in found] == [(kind, a, b + 1) for kind, a, b in get_entities(theirs([tags])[0])]
    mended = written(found, len(tags), scheme)
    assert spans(mended) == found
    numbers, allowed = [tags_of(scheme).index(tag) for tag in mended], constraints_from(tags_of(scheme), scheme)
    if numbers:
        assert allowed.starts[numbers[0]]
        assert allowed.ends[numbers[-1]]
        assert all(allowed.transitions[a, b] for a, b in pairwise(numbers))


def test_an_example_by_hand():
    gold = [["B-per", "I-per", "O", "B-loc", "O"]]
    found = score(gold, [["B-per", "I-per", "O", "I-loc", "B-per"]])
    assert found.spans == Count(2, 3, 2)  # I-loc after O is a span
    assert (found.right, found.words, found.accuracy, found.value) == (3, 5, 0.6, pytest.approx(0.8))
    assert found.tags["B-loc"].recall == 0
    assert score([["X", "Y"]], [["X", "X"]]).value == 0.5


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["O"], None),
        ([], None),
        (["O", "I-x"], "BIO"),
        (["B-x", "E-x"], "BIOES"),
        (["B-x", "U-x"], "BILOU"),
        (["E-x", "L-x"], None),
        (["B-x", "NOUN"], None),
        (["B-"], None),
        (["X-ray", "O"], None),
    ],
)
def test_the_scheme_is_told_by_the_letters(tags, scheme):
    assert scheme_of(tags) == scheme


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="score: gold and guessed must be sentences of the same lengths"):
        score([["X"]], [["X", "X"]])
