"""`longlag tag`: files in, a model out, tags out; bad input is one line and exit code 2."""

import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser

import pytest
from tagger.town import names, speech, text, town, write
from typer.testing import CliRunner

import longlag as ll
from longlag.cli import app
from longlag.cli.tag import watching
from longlag.tagger.errors import Errors, analyse
from longlag.tagger.loop import Loop
from longlag.tagger.score import score
from longlag.tagger.train import Settings, Watch, load, train_tagger

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
LONGLAG = [sys.executable, "-m", "longlag"]
SMALL = ["--epochs", "2", "--hidden", "6"]


def run(*arguments, **options):
    return CliRunner().invoke(app, ["tag", *map(str, arguments)], **options)


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("town")
    town(folder, epochs=6)
    write(folder / "test.tsv", speech(30, 2))
    (folder / "names").mkdir()
    town(folder / "names", names, epochs=6)
    return folder


def test_from_a_file_to_tags(place, tmp_path):
    out = tmp_path / "model"
    done = run("train", place / "train.tsv", "--dev", place / "dev.tsv", "--out", out, *SMALL)
    assert done.exit_code == 0, done.output
    assert re.search(r"epoch 2/2  loss \d\.\d{4}  dev accuracy \d+\.\d\d %", done.stderr)
    assert "\x1b" not in done.output  # no bar, no colours: nobody watches
    again = run("train", place / "train.tsv", "--dev", place / "dev.tsv", "--out", out, *SMALL, "--resume")
    assert again.exit_code == 0
    assert "is finished: nothing to resume" in again.stderr
    done = run("predict", out, "-", input="the xx\ncats yy\n\n\nsees\n")
    tags = ll.Tagger.load(out).predict([["the", "cats"], ["sees"]])
    assert done.stdout == f"the\t{tags[0][0]}\ncats\t{tags[0][1]}\n\nsees\t{tags[1][0]}\n\n"


def test_evaluation_prints_what_the_library_finds(place):
    done = run("eval", place / "model", place / "test.tsv")
    assert done.exit_code == 0, done.output
    tagger, sentences = ll.Tagger.load(place / "model"), load(place / "test.tsv", Watch())
    found = analyse(tagger, sentences, tagger.predict([s.words for s in sentences]))
    assert done.stdout.splitlines()[:-1] == found.lines()
    assert re.fullmatch(r"30 sentences in \d+\.\d\d s: [\d,]+ sentences per second", done.stdout.splitlines()[-1])
    assert found.lines()[0] == f"accuracy      {100 * found.score.accuracy:.2f} % of {found.score.words}"
    assert 0.8 < found.score.accuracy < 1
    assert found.known[1] + found.unknown[1] == found.score.words
    assert found.mistakes[0][0] in [("NOUN", "VERB"), ("VERB", "NOUN")]
    spans = run("eval", place / "names" / "model", place / "names" / "dev.tsv").stdout
    assert "spans         precision 100.00  recall 100.00  F1 100.00  (40 spans)" in spans
    assert "most frequent mistakes" not in spans


def test_a_tag_that_training_never_saw_is_an_error_of_the_tagger_not_of_the_file(place, tmp_path):
    seen = [[("the", "DET"), ("cat", "NOUN")]]
    new = write(tmp_path / "new.tsv", [*seen, [("the", "DET"), ("red", "ADJ")]])
    done = run("eval", place / "model", new, "--report", tmp_path / "errors.html")
    assert done.exit_code == 0, done.output
    note = "1 of 4 words have tags that training never saw and count as errors: ADJ 1 (first in line 5)"
    assert done.stderr == f"longlag: {new}: {note}\n"
    assert done.stdout.startswith("accuracy      75.00 % of 4\n")
    assert re.search(r"  ADJ +\w+ +1  red", done.stdout)
    html = (tmp_path / "errors.html").read_text(encoding="utf-8")
    assert "ADJ" in html
    names = place / "names"
    odd = write(tmp_path / "odd.tsv", [[("meet", "O"), ("Ann", "B-per"), ("in", "O"), ("Rome", "GPE")]])
    done = run("eval", names / "model", odd)  # spans are still counted, though GPE is no tag of BIO
    assert "spans         precision 50.00  recall 50.00  F1 50.00  (2 spans)" in done.stdout
    assert "GPE 1 (first in line 4)" in done.stderr


def test_evaluation_reads_the_columns_that_training_read(tmp_path):
    data = tmp_path / "x.tsv"
    data.write_text("".join("".join(f"{t}\t{w}\t_\n" for w, t in s) + "\n" for s in speech(40)))
    small = ["--epochs", "2", "--hidden", "6", "--columns", "2,1"]
    done = run("train", data, "--dev", data, "--out", tmp_path / "m", *small)
    assert done.exit_code == 0, done.output
    assert set(ll.Tagger.load(tmp_path / "m").vocabulary.tags) == {"DET", "NOUN", "VERB"}
    done = run("eval", tmp_path / "m", data)
    assert (done.exit_code, done.stderr) == (0, "")
    other = write(tmp_path / "two.tsv", speech(9))
    assert run("eval", tmp_path / "m", other, "--columns", "1,2").exit_code == 0
    assert "no tag is known from training" in run("eval", tmp_path / "m", other).stderr


class Page(HTMLParser):
    """The texts of a page's table cells, and the addresses it needs."""

    def __init__(self):
        super().__init__()
        self.cells, self.addresses, self.tag = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tag = tag
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_the_report_is_one_page(place, tmp_path):
    odd = write(tmp_path / "odd.tsv", [*speech(20, 3), [("<b>&", "NOUN"), ("👍", "VERB"), ("fish", "DET")]])
    done = run("eval", place / "model", odd, "--report", tmp_path / "errors.html")
    assert done.exit_code == 0, done.output
    html = (tmp_path / "errors.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    assert page.addresses == []  # nothing is loaded from elsewhere
    assert "width=device-width" in html
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;" in html
    tagger, sentences = ll.Tagger.load(place / "model"), load(odd, Watch())
    found = analyse(tagger, sentences, tagger.predict([s.words for s in sentences]))
    (right, guess), n = found.mistakes[0]
    k = page.cells.index(right, page.cells.index("for example"))
    assert page.cells[k : k + 3] == [right, guess, str(n)]
    example = found.examples[right, guess][0]
    assert page.cells[k + 3].startswith(f"{example.before} {example.word} {example.after}".rstrip())


def test_the_report_shows_every_confusion_and_fits_a_phone(tmp_path):
    """No table grows with the number of tags: every guess, O among them, is on the page without scrolling sideways."""
    tags = ["O", *(f"{letter}-kind{k}" for k in range(12) for letter in "BI")]
    confusion = Counter({(right, guess): 1 + i + j for i, right in enumerate(tags) for j, guess in enumerate(tags)})
    found = Errors(score([tags], [tags]), (1, 1), (0, 0), confusion, {pair: [] for pair in confusion}, Counter())
    html = found.html("x")
    rows = [row.split("<t")[1:] for row in re.findall(r"<tr>(.*?)</tr>", html)]
    assert max(map(len, rows)) <= 6
    assert "overflow-x" not in html
    table = html[html.index("<h2>Guesses by right tag</h2>") :]
    for right in tags:
        (row,) = re.findall(rf"<tr><td>{right}<td>(.*?)</tr>", table)
        guesses = dict(re.findall(r"<span class=pair>(\S+) ([\d,]+)</span>", row))
        assert guesses == {guess: str(confusion[right, guess]) for guess in tags if guess != right}
        words = sum(confusion[right, guess] for guess in tags)
        assert row.startswith(f"{words:,}<td>{confusion[right, right]}<td class=text>")


def test_prediction_serves_a_pipe_at_once(place):
    """A sentence is answered while the other end is still open, in order, whatever comes after."""
    command = [*LONGLAG, "tag", "predict", str(place / "model"), "--raw", "--marginals", "-"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for sentence in ("the cat sees a dog", "a bird likes the fox"):
            process.stdin.write(f"{sentence}\n".encode())
            process.stdin.flush()
            lines = []
            while line := process.stdout.readline().decode().rstrip("\n"):
                lines.append(line.split("\t"))
            assert [word for word, _, _ in lines] == sentence.split()
            assert all(0 < float(p) <= 1 for _, _, p in lines)
            time.sleep(0.05)
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0


def test_a_reader_that_goes_away_is_no_error(place, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("the\ncat\n\n" * 30_000)
    command = shlex.join([*LONGLAG, "tag", "predict", str(place / "model"), str(words)])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -n 1"], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the\tDET\n", "")


ODD = "\ufeffthe\tDET\r\n👩🏽\u200d🚀\tNOUN\r\nsee\u200bs\tVERB\r\na\u00a0b\tNOUN\r\n\r\n"


def test_odd_characters_pass_through(place, tmp_path):
    (tmp_path / "odd.tsv").write_bytes(ODD.encode())
    (tmp_path / "train.tsv").write_bytes(ODD.encode() + text(speech(20)).encode())
    data = [tmp_path / "train.tsv", "--dev", tmp_path / "odd.tsv"]
    done = run("train", *data, "--out", tmp_path / "m", *SMALL)
    assert done.exit_code == 0, done.output
    assert run("eval", tmp_path / "m", tmp_path / "odd.tsv").exit_code == 0
    out = run("predict", tmp_path / "m", tmp_path / "odd.tsv").stdout
    assert [line.split("\t")[0] for line in out.split("\n")] == [
        "the",
        "👩🏽\u200d🚀",
        "see\u200bs",
        "a\u00a0b",
        "",
        "",
    ]


def test_a_sentence_of_ten_thousand_words(place, tmp_path):
    long = [("the", "DET"), ("cat", "NOUN"), ("sees", "VERB"), ("it", "NOUN")] * 2500
    train = write(tmp_path / "t.tsv", [*speech(40), long])
    done = run("train", train, "--dev", train, "--out", tmp_path / "m", *SMALL)
    assert done.exit_code == 0, done.output
    out = run("predict", tmp_path / "m", train).stdout
    assert len(out.split("\n\n")[-2].split("\n")) == 10_000


BAD = {
    "empty": ("", "tagger: {file} must hold tagged sentences, it is empty"),
    "one column": ("the\n", "tagger: {file}:1: a line must be a word, TAB or blanks, and a tag, got one column: 'the'"),
    "ragged": ("a\tX\nb\tX\tY\n", "tagger: {file}:2: every line must have 2 columns like the first, got 3"),
    "latin-1": (b"a\tX\ncaf\xe9\tX\n", "tagger: {file}:2: text must be UTF-8, byte 4 is 0xe9"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_one_line(place, tmp_path, kind):
    data, complaint = BAD[kind]
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(data if isinstance(data, bytes) else data.encode())
    before = content(place)
    commands = [
        ["train", bad, "--dev", place / "dev.tsv", "--out", tmp_path / "m"],
        ["train", place / "train.tsv", "--dev", bad, "--out", tmp_path / "m"],
        ["eval", place / "model", bad, "--report", tmp_path / "r.html"],
    ]
    for command in commands:
        done = run(*command)
        assert done.exit_code == 2
        assert done.stderr == f"longlag: {complaint.format(file=bad)}\n"
        assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]
    assert content(place) == before


def test_bad_text_ends_prediction_where_it_is(place, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"the\n\ncaf\xe9\n")
    done = run("predict", place / "model", tmp_path / "bad.txt")
    assert (done.exit_code, done.stderr) == (
        2,
        f"longlag: tagger: {tmp_path}/bad.txt:3: text must be UTF-8, byte 4 is 0xe9\n",
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["eval", "{place}/model", "{tmp}/new.tsv"],
         "tagger: {tmp}/new.tsv: no tag is known from training (DET, NOUN, VERB), got ADJ, ART"),
        (["eval", "{place}/model", "{place}/test.tsv", "--columns", "2"],
         "tagger: columns must be two numbers from 1, of word and tag, such as 2,4; got '2'"),
        (["eval", "{place}/model", "{place}/test.tsv", "--report", "errors.txt"],
         "tagger: report must end in .html, got errors.txt"),
        (["eval", "{place}", "{place}/test.tsv"],
         "Tagger: {place} must be a folder written by longlag tag train, it has no tagger.json"),
        (["predict", "{place}/nothing", "-"],
         "Tagger: {place}/nothing must be a folder written by longlag tag train, it has no tagger.json"),
        (["predict", "{place}/model", "{tmp}/none.txt"],
         "tagger: {tmp}/none.txt must be a file, or - for standard input"),
        (["train", "{place}/train.tsv", "--dev", "{place}/dev.tsv", "--out", "{place}/model"],
         "Tagger: {place}/model holds a tagger already, finished: choose another folder, or remove this one"),
        (["train", "{place}/train.tsv", "--dev", "{place}/dev.tsv", "--out", "{tmp}/m", "--epochs", "0"],
         "tagger: epochs must be a positive int, got 0"),
        (["train", "{place}/train.tsv", "--dev", "{place}/dev.tsv", "--out", "{tmp}/m", "--head", "hmm"],
         "tagger: head must be one of 'crf', 'softmax', got 'hmm'"),
        (["train", "{place}/train.tsv", "--dev", "{place}/dev.tsv", "--out", "{tmp}/m", "--vectors", "{tmp}/v.txt"],
         "tagger: vectors must be a text file, there is no {tmp}/v.txt"),
    ],
)  # fmt: skip
def test_bad_calls_are_one_line(place, tmp_path, arguments, complaint):
    write(tmp_path / "new.tsv", [[("the", "ART"), ("red", "ADJ")]])
    before = content(place)
    done = run(*(a.format(place=place, tmp=tmp_path) for a in arguments))
    assert done.exit_code == 2
    assert done.stderr == f"longlag: {complaint.format(place=place, tmp=tmp_path)}\n"
    assert content(place) == before
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("command", ["train", "eval", "predict"])
def test_help_teaches(command):
    words = " ".join(run(command, "--help").output.replace("│", " ").split())
    assert "Example" in words
    assert f"longlag tag {command}" in words
    assert len(words) > 600


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_bar_with_the_time_left(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with watching() as watch:
        train_tagger(place / "train.tsv", place / "dev.tsv", tmp_path / "m", Settings(epochs=2, hidden=6), watch=watch)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"epoch 2/2 ━+ \d:\d\d:\d\d left \d:\d\d:\d\d", shown)  # the last picture; others as time allows
    assert re.search(r"epoch 2/2  loss \d\.\d{4}  dev accuracy", shown)


def test_control_c_says_how_to_go_on(place, tmp_path, monkeypatch):
    def stop(self, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "backward", stop)
    done = run("train", place / "train.tsv", "--dev", place / "dev.tsv", "--out", tmp_path / "m", *SMALL)
    assert done.exit_code == 130
    assert done.stderr == "longlag: stopped; the same command with --resume goes on\n"
