"""Two processes under torchrun: the gradients, and the training, of one."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tagger.gradients import SIZES, gradients
from tagger.test_train import Ear
from tagger.town import SMALL, names, speech, town, write

import longlag as ll
from longlag.tagger.loop import World
from longlag.tagger.train import main

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*command, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_gradients_are_those_of_one_process(tmp_path):
    """Noise included, for batches that cannot be halved, and for one that leaves a process without a sentence."""
    folders = {head: tmp_path / head for head in ("crf", "softmax")}
    for head, folder in folders.items():
        folder.mkdir()
        town(folder, names, head=head, epochs=1)
    code, said = torchrun(HERE / "gradients.py", tmp_path, *folders.values())
    assert code == 0, said
    for head, folder in folders.items():
        alone = gradients(folder / "model", folder / "train.tsv", World())
        assert len(alone) > 10 * len(SIZES)
        assert max(float(g.abs().max()) for g in alone.values()) > 1e-3
        for rank in (0, 1):
            theirs = load_file(tmp_path / f"{head}{rank}")
            assert theirs.keys() == alone.keys()
            for name, wanted in alone.items():
                assert torch.allclose(theirs[name], wanted, rtol=1e-10, atol=1e-10 * float(wanted.abs().max())), name


def test_training_in_two_processes(tmp_path):
    """The same batches in the same order: after three epochs the same model, but for the order of additions."""
    ear = Ear()
    tagger, train, dev = town(tmp_path, watch=ear)
    options = [item for name, value in SMALL.items() for item in (f"--{name}", value)]
    command = ["-m", "longlag.tagger.train", train, "--dev", dev, "--out", tmp_path / "two", *options]
    code, said = torchrun(*command)
    assert code == 0, said
    assert said.count("epoch 3/3") == 1  # only the first process speaks
    assert f"epoch 1/3  loss {ear.epochs[0][1]:.4f}" in said
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"tagger.json", "model.safetensors"}
    both = ll.Tagger.load(tmp_path / "two")
    start = load_file(tmp_path / "model" / "model.safetensors")
    for name, p in both.named_parameters():
        assert torch.allclose(p, start[name], rtol=1e-3, atol=1e-4), name
    words = [[word for word, _ in sentence] for sentence in speech(20, 5)]
    assert both.predict(words) == tagger.predict(words)
    before = (tmp_path / "two" / "model.safetensors").read_bytes()
    code, said = torchrun(*command)  # a folder that is taken: nobody waits for the other, nothing is overwritten
    assert code != 0
    assert "two holds a tagger already" in said
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == before


def test_rows_of_a_batch():
    for sentences in range(1, 9):
        for size in range(1, 5):
            shares = [World(rank, size).rows(sentences) for rank in range(size)]
            counted = [k for rows, weight in shares if weight for k in range(sentences)[rows]]
            assert counted == list(range(sentences))
            assert all(rows.stop > rows.start for rows, _ in shares)


def test_a_missing_file_is_one_line(tmp_path, capsys):
    dev = write(tmp_path / "d.tsv", speech(3))
    assert main([str(tmp_path / "no.tsv"), "--dev", str(dev), "--out", str(tmp_path / "m")]) == 2
    assert capsys.readouterr().err == f"longlag: tagger: {tmp_path}/no.tsv must be a file, there is none\n"
    assert not (tmp_path / "m").exists()
