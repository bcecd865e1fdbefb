"""Reading: columns of any kind, and every complaint with its file and line."""

import io
import itertools
import re
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longlag.tagger.batches import Corpus, buckets, shuffled
from longlag.tagger.data import DataError, Sentence, chunks, layout, read, sentences
from longlag.tagger.tokens import tokenize
from longlag.tagger.vectors import read_vectors
from longlag.tagger.vocabulary import LONGEST, Vocabulary

WANTED = [Sentence(["Ein", "Hund"], ["DET", "NOUN"], (1, 2)), Sentence(["lauf"], ["VERB"], (4,))]


def file(tmp_path, content):
    path = tmp_path / "x.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def note(path, columns=None):
    found = layout(path, columns)
    assert found is not None
    return found.note


@pytest.mark.parametrize(
    "content",
    [
        "Ein\tDET\nHund\tNOUN\n\nlauf\tVERB\n",
        "Ein\tDET\nHund\tNOUN\n\nlauf\tVERB",  # no line end at the end
        "Ein DET\nHund   NOUN\n  \nlauf VERB\n\n\n",  # blanks
        "Ein\tDET\nHund\tNOUN\n\t\nlauf\tVERB\n\u00a0\t \n",  # lines of nothing but white space, as in WNUT-17
        "Ein\tDET\r\nHund\tNOUN\r\n\r\nlauf\tVERB\r\n",  # Windows
        b"\xef\xbb\xbfEin\tDET\nHund\tNOUN \n\nlauf\tVERB\n",  # a BOM; a blank after a tag
        "Ein\tx y\tDET\nHund\t\tNOUN\n\nlauf\t_\tVERB\n",  # more columns: the first and the last
    ],
)
def test_columns_of_any_kind(tmp_path, content):
    assert read(file(tmp_path, content)) == WANTED


def conllu(*rows):
    """Lines of ten columns: ID, FORM, _, UPOS, XPOS, then five more."""
    return "".join(f"{k}\t{form}\t_\t{upos}\tXX\t_\t0\troot\t_\tSpaceAfter=No\n" for k, form, upos in rows)


EIN_HUND = conllu((1, "Ein", "DET"), (2, "Hund", "NOUN")) + "\n" + conllu((1, "lauf", "VERB"))
COMMENTED = (
    "# newdoc\n# text = Ein Hund\n"
    + conllu(("1-2", "EinHund", "_"), (1, "Ein", "DET"), (2, "Hund", "NOUN"), ("2.1", "hat", "VERB"))
    + "\n# text = lauf\n"
    + conllu((1, "lauf", "VERB"))
)


@pytest.mark.parametrize("content", [EIN_HUND, COMMENTED])
def test_conllu_is_recognised(tmp_path, content):
    """FORM and UPOS; comments, multiword tokens and empty nodes are no words."""
    path = file(tmp_path, content)
    assert [(s.words, s.tags) for s in read(path)] == [(s.words, s.tags) for s in WANTED]
    assert note(path) == "CoNLL-U: words from column 2 (FORM), tags from column 4 (UPOS)"
    with path.open("rb") as stream:
        untagged = [s.words for some in sentences(stream, "x", tagged=False) for s in some]
    assert untagged == [s.words for s in WANTED]
    assert [s.tags for s in read(path, columns=(2, 5))] == [["XX", "XX"], ["XX"]]


def test_lines_of_conllu_keep_their_numbers(tmp_path):
    (first, second), path = read(file(tmp_path, COMMENTED)), tmp_path / "x.tsv"
    lines = path.read_text().splitlines()
    assert [lines[n - 1].split("\t")[1] for n in first.lines] == first.words
    assert [lines[n - 1].split("\t")[1] for n in second.lines] == second.words


def test_a_word_may_be_a_number_sign_or_a_number(tmp_path):
    """Neither makes CoNLL-U of two columns, nor a comment of a word."""
    assert read(file(tmp_path, "#\tSYM\n1\tNUM\n# x\tX\n"))[0].words == ["#", "1", "# x"]
    wide = "1\ta\tb\tc\td\te\tf\tg\th\tNUM\nx\ta\tb\tc\td\te\tf\tg\th\tX\n"
    with pytest.raises(DataError, match=re.escape("x.tsv:2: column 1 of CoNLL-U must be a number such as 1, got 'x'")):
        read(file(tmp_path, wide))
    assert read(tmp_path / "x.tsv", columns=(1, 10))[0] == Sentence(["1", "x"], ["NUM", "X"], (1, 2))


@pytest.mark.parametrize("mark", ["-DOCSTART- -X- -X- O\n\n", "-DOCSTART- -X- -X- O\n", "-DOCSTART-\tO\n\n"])
def test_a_document_mark_is_no_sentence(tmp_path, mark):
    tab = "\t" if "\t" in mark else " "
    fill = " x y " if tab == " " else tab
    path = file(tmp_path, f"{mark}Ein{fill}DET\nHund{fill}NOUN\n\n{mark}lauf{fill}VERB\n")
    assert [s.words for s in read(path)] == [["Ein", "Hund"], ["lauf"]]
    with path.open("rb") as stream:
        assert [s.words for some in sentences(stream, "x", tagged=False) for s in some] == [["Ein", "Hund"], ["lauf"]]


def test_a_document_mark_ends_a_sentence(tmp_path):
    assert [s.words for s in read(file(tmp_path, "a\tX\n-DOCSTART-\tO\nb\tX\n"))] == [["a"], ["b"]]


def test_columns_can_be_chosen_and_are_told(tmp_path):
    path = file(tmp_path, "a\tb\tc\td\n")
    assert read(path)[0] == Sentence(["a"], ["d"], (1,))
    assert note(path) == "4 columns: words from column 1, tags from column 4; --columns chooses others"
    assert read(path, columns=(3, 2))[0] == Sentence(["c"], ["b"], (1,))
    assert note(path, columns=(3, 2)) is None
    assert note(file(tmp_path, "a\tb\n")) is None
    with pytest.raises(DataError, match=re.escape("x.tsv:1: a line must have at least 5 columns, got 2")):
        read(path, columns=(1, 5))


@pytest.mark.parametrize(
    "word", ["a\u00a0b", "\u200b", "👩🏽\u200d🚀", "a b", "\u2028", "\x85", "#", "\u00a0", '"', "\ufeff"]
)
def test_odd_words_stay_as_they_are(tmp_path, word):
    assert read(file(tmp_path, f"x\tA\n{word}\tA\n"))[0].words == ["x", word]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "x.tsv must hold tagged sentences, it is empty"),
        ("\n \n", "x.tsv must hold tagged sentences, it is empty"),
        ("a\tX\nb\n", "x.tsv:2: a line must be a word, TAB or blanks, and a tag, got one column: 'b'"),
        ("a\tX\n\nb\tY\tZ\n", "x.tsv:3: every line must have 2 columns like the first, got 3"),
        ("a\tX\nb\t \n", "x.tsv:2: the tag must not be empty, got ['b', '']"),
        ("a\tX\n\tX\n", "x.tsv:2: the word must not be empty, got '\\tX'"),
        (b"a\tX\n\nb\xff\tY\n", "x.tsv:3: text must be UTF-8, byte 2 is 0xff"),
    ],
)
def test_what_cannot_be_read_is_named_by_line(tmp_path, content, complaint):
    with pytest.raises(DataError, match=re.escape(complaint)):
        read(file(tmp_path, content))


def test_a_file_must_be_there(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.tsv must be a file, there is none"):
        read(tmp_path / "nothing.tsv")
    with pytest.raises(DataError, match="must be a file, got a folder"):
        read(tmp_path)


class Endless(io.BytesIO):
    """A stream that gives a little at a time, never more than it is asked for, and counts."""

    given = 0

    def read1(self, size=-1, /):
        self.given += 1
        return b"word word\nwo" if self.given % 2 else b"rd x\n\n"


def test_streams_are_read_as_they_come_in_constant_memory():
    stream = Endless()
    first = next(sentences(stream, "-", tagged=False))
    assert first == [Sentence(["word", "word"], [], (1, 2))]
    assert stream.given == 2
    tracemalloc.start()
    for _ in itertools.islice(sentences(stream, "-", tagged=False), 20_000):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_lines_are_whole_wherever_a_reading_ends():
    data = "ä\r\nb\n\nc".encode()

    class Bytes(io.BytesIO):
        def read1(self, size=-1, /):
            return super().read1(1)

    assert list(itertools.chain.from_iterable(chunks(Bytes(data), "-"))) == ["ä", "b", "", "c"]


# ------------------------------------------------------------------------------------------------ numbers


def test_vocabulary():
    v = Vocabulary.of([["The", "cat", "42"], ["the", "cats"]], ["X"])
    assert v.words == {"the": 2, "cat": 3, "00": 4, "cats": 5}
    assert v.counts == [0, 0, 2, 1, 1, 1]
    assert "3cat" in v.affixes  # of two words
    assert "-3the" in v.affixes  # The, the
    assert "-4cats" not in v.affixes
    assert set(v.characters) == {"a", "c", "t", "h", "e"}  # those of at least two different words
    forms = v.forms(["THE", "17", "dog", "x" * 99])
    assert forms.words.tolist() == [2, 4, 1, 1]
    assert forms.characters.shape == (4, LONGEST)
    assert forms.characters[0, :4].tolist() == [1, 1, 1, 0]  # upper case is told by the characters
    assert Vocabulary.of([["a"]], ["X"]).forms(["a"]).characters.tolist() == [[1]]


def test_batches_hold_what_the_sentences_hold():
    some = [Sentence(list(words), ["A" if w == "a" else "B" for w in words]) for words in ("abab", "b", "ca")]
    v = Vocabulary.of([s.words for s in some], ["A", "B"])
    batch = Corpus(some, v).batch([2, 0])
    assert batch.lengths.tolist() == [2, 4]
    assert batch.tags.tolist() == [[1, 0, -1, -1], [0, 1, 0, 1]]
    words = batch.forms.words[batch.places]
    assert words[batch.mask].tolist() == [v.words[w] for w in "caabab"]
    assert torch.equal(batch.mask, batch.tags >= 0)
    assert batch.rows(slice(1, 2)).tags.tolist() == [[0, 1, 0, 1]]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 9), st.integers(1, 90))
def test_an_epoch_has_every_sentence_once_in_small_batches(lengths, size, words):
    groups = shuffled(lengths, size, words, torch.Generator().manual_seed(0))
    assert sorted(k for group in groups for k in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) <= size
        assert len(group) == 1 or len(group) * max(lengths[k] for k in group) <= words


def test_buckets_keep_their_order():
    assert buckets([3, 3, 9, 1, 1], range(5), 2, 100) == [[0, 1], [2, 3], [4]]


# ------------------------------------------------------------------------------------------------ raw text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I can't, won’t and they'll've", "I ca n't , wo n’t and they 'll 've"),
        ("Mr. Smith's U.S. trip: 10:30 a.m.", "Mr. Smith 's U.S. trip : 10:30 a.m."),
        ("Well... no -- yes!!!", "Well ... no -- yes !!!"),
        ("(see https://a.org/x_(y)?z=1). ok", "( see https://a.org/x_(y)?z=1 ) . ok"),
        ("1,000.5 3rd 2x4 50%", "1,000.5 3rd 2x4 50 %"),
        ("@you #me :) ;-) 🇩🇪🇫🇷 👍🏽!", "@you #me :) ;-) 🇩🇪 🇫🇷 👍🏽 !"),
        ("नमस्ते zero\u200bwidth nai\u0308ve", "नमस्ते zero\u200bwidth nai\u0308ve"),
        ("", ""),
    ],
)
def test_tokens(text, words):
    assert tokenize(text) == words.split()


@given(st.text(max_size=60))
def test_tokens_lose_nothing_but_white_space(text):
    assert "".join(tokenize(text)) == "".join(text.split())
    assert all(word and not re.search(r"\s", word) for word in tokenize(text))


# ------------------------------------------------------------------------------------------------ vectors


def test_vectors_of_a_file(tmp_path):
    numbers, table = read_vectors(file(tmp_path, "3 2\ncat 3 0\n. . 0 4\ncat 9 9\nDog 0 0\n"))
    assert numbers == {"cat": 1, ". .": 2, "Dog": 3}
    scale = (3 / 25) ** 0.5
    assert torch.allclose(table, torch.tensor([[0, 0], [3, 0], [0, 4], [0, 0]]) * scale)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "x.tsv must hold vectors, it is empty"),
        ("cat 1 2\ndog 1\n", "x.tsv:2: a line must be a word and 2 numbers"),
        ("cat 1 x\n", "x.tsv:1: a line must be a word and 2 numbers (could not convert"),
        ("cat\n", "x.tsv:1: a line must be a word and some numbers, got 0"),
        ("cat 1 nan\n", "x.tsv:1: numbers must be finite"),
        (b"c\xe9 1 2\n", "x.tsv:1: text must be UTF-8"),
    ],
)
def test_vectors_that_cannot_be_read(tmp_path, content, complaint):
    with pytest.raises(DataError, match=re.escape(complaint)):
        read_vectors(file(tmp_path, content))
