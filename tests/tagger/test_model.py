"""The model: what it computes, what it predicts, and its folder."""

import json
import re

import pytest
import torch
from tagger.town import names, town

import longlag as ll
from longlag.tagger import folder as files
from longlag.tagger.batches import Corpus
from longlag.tagger.data import Sentence, read
from longlag.tagger.folder import FolderError
from longlag.tagger.network import RARE
from longlag.tagger.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("town")
    town(folder, names)
    return folder


@pytest.fixture
def tagger(place):
    return ll.Tagger.load(place / "model")


def untrained(head="crf", layers=1, **options):
    torch.manual_seed(0)
    vocabulary = Vocabulary.of([["the", "cat"], ["cats", "see"], ["a", "cat", "sees", "the", "cats"]], ["A", "B", "C"])
    return ll.Tagger(vocabulary, hidden=4, layers=layers, head=head, **options).double()


SENTENCES = [
    ["the"],
    ["a", "dog", "sees", "the", "extraordinarily", "cats"],
    [],
    ["cat", "cat"],
    ["👍", "\u200b", "x" * 500],
]


@pytest.mark.parametrize("head", ["crf", "softmax"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_sentence_is_tagged_as_if_it_were_alone(head, layers):
    tagger = untrained(head, layers)
    together = tagger.predict(SENTENCES, marginals=True)
    for sentence, tags in zip(SENTENCES, together):
        (alone,) = tagger.predict([sentence], marginals=True)
        assert [tag for tag, _ in tags] == [tag for tag, _ in alone]
        assert [p for _, p in tags] == pytest.approx([p for _, p in alone], rel=1e-10)
        assert tagger.predict([sentence]) == [[tag for tag, _ in tags]]
    assert together[2] == []
    assert tagger.predict([]) == []


def test_marginals_are_probabilities_of_the_chain():
    tagger, sentence = untrained(), ["a", "cat", "sees"]
    corpus = Corpus([Sentence(sentence, [])], tagger.vocabulary)
    scores = tagger.network.run(tagger.network.describe(corpus.forms)[corpus.places[0]][None], torch.tensor([3]))
    paths = torch.cartesian_prod(*[torch.arange(3)] * 3)
    assert tagger.crf is not None
    p = torch.softmax(torch.stack([tagger.crf.score(scores, path[None]) for path in paths])[:, 0], 0).detach()
    best = paths[p.argmax()]
    wanted = [(tagger.vocabulary.tags[k], float(p[paths[:, t] == k].sum())) for t, k in enumerate(best)]
    (found,) = tagger.predict([sentence], marginals=True)
    assert [tag for tag, _ in found] == [tag for tag, _ in wanted]
    assert [x for _, x in found] == pytest.approx([x for _, x in wanted], rel=1e-9)


def test_training_reads_words_as_prediction_does():
    """Without noise both ways to the scores agree, though one describes a batch's words and one a whole text's."""
    tagger = untrained(dropout=0.0)
    some = [Sentence(words, ["A"] * len(words)) for words in SENTENCES if words]
    corpus = Corpus(some, tagger.vocabulary)
    batch = corpus.batch(range(len(some)))
    noise = tagger.network.draw(batch)
    quiet = noise._replace(hidden=torch.zeros_like(noise.hidden))
    table = tagger.network.describe(corpus.forms)
    places, lengths = corpus.laid_out(range(len(some)))
    wanted = tagger.network.run(table[places.clamp(0)], lengths)
    found = tagger.network(batch, quiet)
    assert torch.allclose(found[batch.mask], wanted[batch.mask], rtol=1e-12, atol=1e-14)
    loss = tagger(batch, quiet)
    each = [tagger(corpus.batch([k]), quiet.rows(slice(k, k + 1))._replace(hidden=torch.zeros(1, n, dtype=torch.bool)))
            for k, n in enumerate(lengths.tolist())]  # fmt: skip
    assert torch.allclose(loss, torch.stack(each).sum(), rtol=1e-12)


def test_noise_hides_rare_words_and_is_the_same_over_time():
    tagger = untrained(dropout=0.5)
    corpus = Corpus([Sentence(["cat", "a", "zebra"] * 2000, [])], tagger.vocabulary)
    corpus.tags = [torch.zeros(6000, dtype=torch.long)]
    noise = tagger.network.draw(corpus.batch([0]))
    shares = noise.hidden[0].view(-1, 3).double().mean(0)
    assert tagger.vocabulary.counts[tagger.vocabulary.words["cat"]] == 2
    wanted = torch.tensor([RARE / (RARE + 2), RARE / (RARE + 1), 1.0]).double()
    assert torch.allclose(shares, wanted, atol=0.03)
    assert shares[2] == 1  # an unknown word is unknown
    for mask, width in zip(noise.masks, [tagger.network.widths[0], 8]):
        assert mask.shape == (1, 1, width)
        assert set(mask.unique().tolist()) <= {0.0, 2.0}


def test_dropout_acts_on_every_input_and_on_the_output():
    """Masks scale what the LSTM reads and what the read-out reads: undone by hand on the weights."""
    tagger, other = untrained(layers=2), untrained(layers=2)
    x, lengths = torch.randn(1, 4, tagger.network.widths[0]).double(), torch.tensor([4])
    masks = [2 * torch.randint(2, (1, 1, width)).double() for width in tagger.network.widths]
    with torch.no_grad():
        for mask, lstm in zip(masks, other.network.lstms):
            for name in ("weight_ih_l0", "weight_ih_l0_reverse"):
                lstm.get_parameter(name).mul_(mask[0])
        other.network.emit.weight.mul_(masks[-1][0])
    assert torch.allclose(tagger.network.run(x, lengths, masks), other.network.run(x, lengths), rtol=1e-12)
    assert not torch.allclose(tagger.network.run(x, lengths), other.network.run(x, lengths), rtol=1e-3)


def test_windows_of_characters():
    """The strongest answer of a filter over all windows of three, with nothing before and after the word."""
    tagger = untrained()
    network, numbers = tagger.network, [0, *(tagger.vocabulary.characters.get(c, 1) for c in "cats"), 0]
    e = network.characters.weight
    answers = [network.windows(torch.cat([e[a], e[b], e[c]])) for a, b, c in zip(numbers, numbers[1:], numbers[2:])]
    wanted = torch.stack(answers).amax(0).relu()
    found = network.spell(tagger.vocabulary.forms(["cats", "a", "extraordinary"]))[0, : len(wanted)]
    assert torch.allclose(found, wanted, rtol=1e-12)


def test_padding_characters_and_long_words_change_nothing():
    tagger = untrained()
    a = tagger.network.spell(tagger.vocabulary.forms(["cat"]))
    b = tagger.network.spell(tagger.vocabulary.forms(["cat", "incomprehensibilities"]))[:1]
    assert torch.allclose(a, b, rtol=1e-13)
    long = tagger.vocabulary.forms(["a" * 20 + "b" * 5000 + "c" * 20, "a" * 20 + "c" * 20])
    assert torch.equal(long.characters[0], long.characters[1])


def test_a_very_long_sentence(tagger):
    words = ["meet", "Bob", "in", "Rome"] * 2500
    (tags,) = tagger.predict([words])
    assert len(tags) == 10_000
    assert tags[4000:4004] == tagger.predict([words[:40]])[0][20:24]


@pytest.mark.parametrize("bad", [["a sentence"], [["a", ""]], [["a", 3]]])
def test_sentences_are_lists_of_words(tagger, bad):
    with pytest.raises(TypeError, match="Tagger: sentences must be lists of words, none of them empty, got"):
        tagger.predict(bad)


def test_bad_construction():
    with pytest.raises(ValueError, match="Tagger: hidden must be a positive int, got 0"):
        ll.Tagger(Vocabulary.of([["a"]], ["X"]), hidden=0)
    with pytest.raises(ValueError, match="Tagger: head must be one of 'crf', 'softmax', got 'hmm'"):
        ll.Tagger(Vocabulary.of([["a"]], ["X"]), head="hmm")


# ------------------------------------------------------------------------------------------------ folder


def test_saved_and_loaded(tagger, tmp_path):
    words = [["meet", "Bob", "in", "New", "York"]]
    tagger.save(tmp_path / "m")
    assert ll.Tagger.load(tmp_path / "m").predict(words, marginals=True) == tagger.predict(words, marginals=True)
    assert {path.suffix for path in (tmp_path / "m").iterdir()} == {".json", ".safetensors"}
    with pytest.raises(FolderError, match="m holds a tagger already"):
        tagger.save(tmp_path / "m")


def damage(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def described(**changes):
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("tagger.json", described(version=2), "must be longlag.tagger version 1, got longlag.tagger version 2"),
        ("tagger.json", described(format="other"), "must be longlag.tagger version 1, got other version 1"),
        ("tagger.json", lambda data: data[:50], "tagger.json is damaged or not a tagger's"),
        ("tagger.json", lambda data: b"[]", "tagger.json is damaged or not a tagger's"),
        ("tagger.json", described(vocabulary={}), "tagger.json is damaged"),
        ("tagger.json", described(shape={"hidden": 7, "layers": 1, "head": "crf", "dropout": 0}),
         "model.safetensors does not fit tagger.json"),
        ("model.safetensors", lambda data: data[:-7], "model.safetensors is truncated or not a tagger's"),
        ("model.safetensors", lambda data: data[:9], "model.safetensors is truncated or not a tagger's"),
        ("model.safetensors", lambda data: b"", "model.safetensors is truncated or not a tagger's"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_named(tagger, tmp_path, name, change, complaint):
    tagger.save(tmp_path)
    damage(tmp_path, name, change)
    with pytest.raises(FolderError, match=re.escape(complaint)):
        ll.Tagger.load(tmp_path)


def test_a_folder_without_a_model(tagger, tmp_path):
    with pytest.raises(FolderError, match=r"must be a folder written by longlag tag train, it has no tagger\.json"):
        ll.Tagger.load(tmp_path)
    tagger.save(tmp_path)
    (tmp_path / files.WEIGHTS).unlink()
    with pytest.raises(FolderError, match=r"must hold model\.safetensors, it does not: no epoch was finished"):
        ll.Tagger.load(tmp_path)


def test_the_file_of_the_fixture_is_read(place):
    assert read(place / "train.tsv")[0].tags[0] == "O"
