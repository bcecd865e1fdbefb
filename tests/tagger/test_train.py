"""Training: the same bytes again, whatever happens in between; nothing that was there is overwritten."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from tagger.town import SMALL, names, speech, text, town, write

import longlag as ll
from longlag import files
from longlag.tagger import folder as folders
from longlag.tagger.data import DataError
from longlag.tagger.folder import FolderError
from longlag.tagger.loop import Loop
from longlag.tagger.network import Network
from longlag.tagger.train import Settings, Watch, train_tagger

WEIGHTS, CHECKPOINT = folders.WEIGHTS, folders.CHECKPOINT


class Ear(Watch):
    def __init__(self):
        self.notes, self.epochs, self.batches = [], [], []

    def note(self, text):
        self.notes.append(text)

    def batch(self, epoch, epochs, done, batches):
        self.batches.append((epoch, epochs, done, batches))

    def epoch(self, epoch, epochs, loss, dev, best):
        self.epochs.append((epoch, loss, dev.value, best))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, and a model trained without interruption."""
    folder = tmp_path_factory.mktemp("town")
    town(folder)
    return folder


def again(place, out, *, resume=False, watch=None, **settings):
    return train_tagger(
        place / "train.tsv", place / "dev.tsv", out, Settings(**{**SMALL, **settings}), resume=resume, watch=watch
    )


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(place, tmp_path):
    torch.manual_seed(17)
    before = torch.get_rng_state()
    ear = Ear()
    again(place, tmp_path / "a", watch=ear)
    assert content(tmp_path / "a") == content(place / "model")
    assert set(content(tmp_path / "a")) == {"tagger.json", WEIGHTS}
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are left alone
    assert [epoch for epoch, *_ in ear.epochs] == [1, 2, 3]
    assert ear.batches[-1] == (2, 3, 8, 8)
    assert ear.epochs[-1][1] < 0.5 * ear.epochs[0][1]  # it learns
    assert ear.epochs[-1][2] > 0.85
    again(place, tmp_path / "b", seed=1)
    assert content(tmp_path / "b")[WEIGHTS] != content(tmp_path / "a")[WEIGHTS]


class Killed(BaseException):
    """As a kill, nobody catches it."""


@pytest.mark.parametrize("half", [False, True])
def test_killed_at_any_writing_it_resumes_to_the_same_bytes(place, tmp_path, monkeypatch, half):
    """Every file the training writes is, once, the one it dies at: before it, or halfway through it."""
    wanted, real, deaths = content(place / "model"), files.replace, 0
    while True:
        out, left = tmp_path / f"killed at {deaths}", deaths

        def replace(path, data):
            nonlocal left
            left -= 1
            if left < 0:
                if half:
                    path.with_name(f".{path.name}.1f2e{files.TEMPORARY}").write_bytes(data[: len(data) // 2])
                raise Killed
            real(path, data)

        monkeypatch.setattr(files, "replace", replace)
        try:
            again(place, out)
            break
        except Killed:
            monkeypatch.setattr(files, "replace", real)
        if (out / WEIGHTS).exists():
            assert ll.Tagger.load(out).predict([["the", "cat"]]) != [[]]
        again(place, out, resume=True)
        assert content(out) == wanted  # and nothing half written is left
        deaths += 1
    assert deaths >= 6  # the start's two, then at least a checkpoint per epoch and a model


def test_interrupted_in_the_middle_of_an_epoch(place, tmp_path):
    class Stop(Ear):
        def batch(self, epoch, epochs, done, batches):
            if (epoch, done) == (1, 5):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again(place, tmp_path / "m", watch=Stop())
    ear = Ear()
    with pytest.raises(FolderError, match=r"m holds a tagger already, unfinished: resume it"):
        again(place, tmp_path / "m")
    again(place, tmp_path / "m", resume=True, watch=ear)
    assert ear.notes == ["resuming after epoch 1"]
    assert content(tmp_path / "m") == content(place / "model")
    again(place, tmp_path / "m", resume=True, watch=ear)
    assert ear.notes[-1].endswith("m is finished: nothing to resume")
    assert content(tmp_path / "m") == content(place / "model")


def test_a_process_killed_again_and_again(place, tmp_path):
    """SIGKILL at random moments, then --resume, in other processes: the bytes of an uninterrupted training."""
    out, draw = tmp_path / "m", random.Random(0)
    options = [item for name, value in SMALL.items() for item in (f"--{name}", str(value))]
    data = [str(place / "train.tsv"), "--dev", str(place / "dev.tsv"), "--out", str(out), "--resume"]
    command = [sys.executable, "-m", "longlag.tagger.train", *data, *options]
    environment, kills = {**os.environ, "OMP_NUM_THREADS": "1"}, 0
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch"):
                break
        time.sleep(draw.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.stderr.close()
        kills += process.wait() == -signal.SIGKILL
        ll.Tagger.load(out)
    assert kills >= 1
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert content(out) == content(place / "model"), done.stderr


def test_a_finished_model_is_not_overwritten(place, tmp_path):
    shutil.copytree(place / "model", tmp_path / "m")
    with pytest.raises(FolderError, match=r"m holds a tagger already, finished: choose another folder, or remove"):
        again(place, tmp_path / "m")
    assert content(tmp_path / "m") == content(place / "model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_text("mine")
    for resume in (False, True):
        with pytest.raises(FolderError, match="other must be a new or empty folder, it holds other files"):
            again(place, tmp_path / "other", resume=resume)
    assert content(tmp_path / "other") == {"model.safetensors": b"mine"}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FolderError, match="file must be a folder, got a file"):
        again(place, tmp_path / "file")


def test_resuming_needs_the_same_settings_and_data(place, tmp_path):
    class Stop(Ear):
        def epoch(self, epoch, epochs, loss, dev, best):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again(place, tmp_path / "m", watch=Stop())
    before = content(tmp_path / "m")
    with pytest.raises(FolderError, match=r"begun with other settings: epochs was 3, now 9; head was 'crf', now 'sof"):
        again(place, tmp_path / "m", resume=True, epochs=9, head="softmax")
    other = write(tmp_path / "other.tsv", speech(5))
    with pytest.raises(FolderError, match="was begun with other training or dev data"):
        train_tagger(place / "train.tsv", other, tmp_path / "m", Settings(**SMALL), resume=True)
    assert content(tmp_path / "m") == before
    data = before[CHECKPOINT]
    (tmp_path / "m" / CHECKPOINT).write_bytes(data[: len(data) // 2])
    with pytest.raises(FolderError, match=r"checkpoint\.safetensors is truncated or not a tagger's"):
        again(place, tmp_path / "m", resume=True)


def test_training_stops_when_it_no_longer_helps(place, tmp_path):
    ear = Ear()
    again(place, tmp_path / "m", epochs=30, patience=2, watch=ear)
    best = max(range(len(ear.epochs)), key=lambda k: ear.epochs[k][2])  # the first of the best
    assert len(ear.epochs) == best + 1 + 2 < 30
    notes = folders.read_tensors(tmp_path / "m" / WEIGHTS)[1]
    assert (notes["epoch"], notes["dev"]) == (best + 1, ear.epochs[best][2])


def test_epochs_before_the_first_hit_do_not_count_as_no_progress(place, tmp_path, monkeypatch):
    """F1 is 0 until the first span is found: then there is nothing yet that could get better."""
    values = [0.0] * 6 + [0.1, 0.3, 0.2, 0.3]
    found = iter(values)
    monkeypatch.setattr("longlag.tagger.train.score", lambda gold, guessed: SimpleNamespace(value=next(found)))
    ear = Ear()
    again(place, tmp_path / "m", epochs=30, patience=2, watch=ear)
    assert [value for _, _, value, _ in ear.epochs] == values
    notes = folders.read_tensors(tmp_path / "m" / WEIGHTS)[1]
    assert (notes["epoch"], notes["dev"]) == (8, 0.3)


def test_a_training_that_finds_nothing_says_so(place, tmp_path, monkeypatch):
    monkeypatch.setattr("longlag.tagger.train.score", lambda gold, guessed: SimpleNamespace(value=0.0))
    ear = Ear()
    again(place, tmp_path / "m", epochs=4, patience=2, watch=ear)
    assert len(ear.epochs) == 4
    assert ear.notes == ["no epoch got anything right on the dev data; train for more epochs, or check the two files"]
    assert ll.Tagger.load(tmp_path / "m").predict([["the"]]) != [[]]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_networks_train_on_one_thread(place, tmp_path, two_threads):
    """Up to 128 units a second thread gains nothing; on a busy machine an update waits for it."""
    found = set()

    class Count(Watch):
        def batch(self, epoch, epochs, done, batches):
            found.add(torch.get_num_threads())

    again(place, tmp_path / "m", epochs=1, watch=Count())
    assert found == {1}
    assert torch.get_num_threads() == 2
    found.clear()
    again(place, tmp_path / "wide", epochs=1, hidden=300, watch=Count())
    assert found == {2}


def test_a_few_words_are_tagged_on_one_thread(place, two_threads, monkeypatch):
    found, tagger, run = [], ll.Tagger.load(place / "model"), Network.run

    def counted(self, *arguments):
        found.append(torch.get_num_threads())
        return run(self, *arguments)

    monkeypatch.setattr(Network, "run", counted)
    tagger.predict([["the", "cat"]])
    tagger.predict([["the", "cat"]] * 300)
    assert found[0] == 1
    assert set(found[1:]) == {2}
    assert torch.get_num_threads() == 2


def test_the_rate_rises_then_falls_and_gradients_are_clipped(place, monkeypatch):
    tagger = ll.Tagger.load(place / "model")
    from longlag.tagger.batches import Corpus
    from longlag.tagger.data import read

    loop = Loop(tagger, Corpus(read(place / "train.tsv"), tagger.vocabulary), batch_size=2, rate=0.5, epochs=2)
    rates, norms = [], []

    def step():
        rates.append(loop.optimizer.param_groups[0]["lr"])
        norms.append(float(torch.stack([p.grad.norm() for p in tagger.parameters() if p.grad is not None]).norm()))

    monkeypatch.setattr(loop.optimizer, "step", step)
    monkeypatch.setattr("longlag.tagger.loop.CLIP", 0.05)
    for _ in range(2):
        loop.run_epoch(lambda *_: None)
    peak = rates.index(max(rates))
    assert len(rates) == 60
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0.45 < max(rates) < 0.5
    assert rates[-1] < 0.01
    assert max(norms) == pytest.approx(0.05, rel=1e-5)


def test_a_loss_that_is_not_finite_ends_training(place, monkeypatch, tmp_path):
    monkeypatch.setattr(Loop, "backward", lambda self, batch: float("nan"))
    with pytest.raises(ValueError, match="the loss is nan in epoch 1; try a lower rate"):
        again(place, tmp_path / "m")


# ------------------------------------------------------------------------------------------------ spans


@pytest.mark.parametrize("scheme", ["BIO", "BIOES", "BILOU"])
def test_spans_are_learned_and_only_legal_ones_found(tmp_path, scheme):
    tagger, _, _ = town(tmp_path, lambda n, seed: names(n, seed, scheme), epochs=6)
    letters = {"BIO": "BBI", "BIOES": "SBE", "BILOU": "UBL"}[scheme]
    wanted = [["O", f"{letters[1]}-per", f"{letters[2]}-per", "O", f"{letters[0]}-loc"]]
    assert tagger.predict([["meet", "Eve", "Gray", "in", "Rome"]]) == wanted
    assert tagger.crf is not None
    assert tagger.crf.allowed is not None
    with torch.no_grad():
        tagger.network.emit.weight.zero_()  # whatever the scores, a sentence is legal
        tagger.network.emit.bias.copy_(torch.tensor([float("IEL".find(tag[0]) >= 0) for tag in tagger.vocabulary.tags]))
        tagger.crf.transitions.zero_()
    (found,) = tagger.predict([["x"] * 3])
    assert found[0][0] not in "IEL"


def test_an_inside_with_no_beginning_begins_a_span(tmp_path):
    """IOB1, and plain mistakes: spans stay as conlleval finds them, and the chain can be trained."""
    iob1 = [[(word, tag.replace("B-", "I-")) for word, tag in sentence] for sentence in names(40)]
    train, dev = write(tmp_path / "t.tsv", iob1), write(tmp_path / "d.tsv", iob1[:9])
    ear = Ear()
    tagger = train_tagger(train, dev, tmp_path / "m", Settings(**{**SMALL, "epochs": 6}), watch=ear)
    assert ear.notes[0] == f"{train}: 80 tags break BIO (an I- with no B- …) and were mended; no span changes"
    assert tagger.vocabulary.tags == ["B-loc", "B-per", "I-loc", "I-per", "O"]
    assert tagger.predict([["meet", "Eve", "Gray"]]) == [["O", "B-per", "I-per"]]


def test_a_tag_of_the_dev_data_that_training_never_saw_counts_as_an_error(place, tmp_path):
    dev = write(
        tmp_path / "d.tsv", [[("the", "DET")], [("the", "DET"), ("red", "ADJ"), ("oh", "INTJ"), ("raw", "ADJ")]]
    )
    ear = Ear()
    train_tagger(place / "train.tsv", dev, tmp_path / "m", Settings(**SMALL), watch=ear)
    assert ear.notes == [
        f"{dev}: 3 of 5 words have tags that training never saw and count as errors: ADJ 2, INTJ 1 (first in line 4)"
    ]
    assert max(value for _, _, value, _ in ear.epochs) == 2 / 5


def test_a_dev_file_of_other_tags_is_refused(place, tmp_path):
    dev = write(tmp_path / "d.tsv", [[("a", "X"), ("b", "Y")]])
    with pytest.raises(DataError, match=r"d\.tsv: no tag is known from training \(DET, NOUN, VERB\), got X, Y"):
        train_tagger(place / "train.tsv", dev, tmp_path / "m", Settings(**SMALL))
    assert not (tmp_path / "m").exists()


def test_columns_of_conllu_and_others_are_told_and_kept(tmp_path):
    """UPOS by default and never the last column; with --columns any other, for training, dev and evaluation."""
    rows = [[(k, word, tag) for k, (word, tag) in enumerate(s, 1)] for s in speech(40)]
    text = "\n".join(
        "".join(f"{k}\t{word}\t_\t{tag}\t{tag.lower()}\t_\t0\t_\t_\t_\n" for k, word, tag in s) for s in rows
    )
    data = tmp_path / "x.conllu"
    data.write_text(text)
    for columns, tags in ((None, {"DET", "NOUN", "VERB"}), ("2,5", {"det", "noun", "verb"})):
        ear, out = Ear(), tmp_path / f"m{columns}"
        tagger = train_tagger(data, data, out, Settings(**SMALL, columns=columns), watch=ear)
        assert set(tagger.vocabulary.tags) == tags
        assert set(tagger.vocabulary.words) >= {"the", "cat", "sees"}
        wanted = [] if columns else [f"{data}: CoNLL-U: words from column 2 (FORM), tags from column 4 (UPOS)"] * 2
        assert ear.notes == wanted
    (tmp_path / "m2,5" / CHECKPOINT).write_bytes(b"")  # as if it were unfinished
    with pytest.raises(FolderError, match="begun with other settings: columns was '2,5', now None"):
        train_tagger(data, data, tmp_path / "m2,5", Settings(**SMALL), resume=True)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"epochs": 0}, "tagger: epochs must be a positive int, got 0"),
        ({"hidden": -1}, "tagger: hidden must be a positive int, got -1"),
        ({"seed": -1}, "tagger: seed must be a non-negative int, got -1"),
        ({"dropout": 1.0}, "tagger: dropout must be a number in [0, 1), got 1.0"),
        ({"head": "x"}, "tagger: head must be one of 'crf', 'softmax', got 'x'"),
        ({"columns": "2"}, "tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got '2'"),
        ({"columns": "0,1"}, "tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got '0,1'"),
        ({"columns": "3,3"}, "tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got '3,3'"),
        ({"columns": "1,2,x"}, "tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got '1,2,x'"),
        ({"rate": 0.0}, "tagger: rate must be a number between 0 and 1, got 0.0"),
    ],
)
def test_settings_are_checked(setting, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Settings(**setting)


def test_vectors_are_kept_with_the_model(place, tmp_path):
    vectors = tmp_path / "v.txt"
    vectors.write_text("cat 1 0 0\nyak 0.9 0 0\n", encoding="utf-8")
    tagger = again(place, tmp_path / "m", vectors=str(vectors))
    assert tagger.network.widths[0] == ll.Tagger.load(place / "model").network.widths[0] + 3
    once = tagger.predict([["the", "yak"]], marginals=True)
    vectors.unlink()
    assert ll.Tagger.load(tmp_path / "m").predict([["the", "yak"]], marginals=True) == once
    assert json.loads((tmp_path / "m" / "tagger.json").read_text())["vocabulary"]["vectors"] == {"cat": 1, "yak": 2}


def test_text_is_what_the_tests_think_it_is():
    assert text([[("a", "X")]]) == "a\tX\n\n"
