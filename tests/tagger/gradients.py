"""Run by torchrun in the tests: the gradients of every process, for batches of several sizes, in float64."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed

import longlag as ll
from longlag.tagger.batches import Corpus
from longlag.tagger.data import read
from longlag.tagger.loop import Loop, World

SIZES = (1, 2, 5, 8)


def gradients(model, data, world):
    """Name -> gradient, of every batch size, with the same random numbers in all processes."""
    tagger = ll.Tagger.load(model).double()
    corpus = Corpus(read(data), tagger.vocabulary)
    loop = Loop(tagger, corpus, batch_size=8, rate=0.01, epochs=1, world=world)
    found = {}
    for size in SIZES:
        torch.manual_seed(size)
        loop.backward(corpus.batch(range(size)))
        found |= {f"{size} {name}": p.grad.clone() for name, p in tagger.named_parameters() if p.grad is not None}
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    here = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    out, *folders = map(Path, sys.argv[1:])
    for folder in folders:
        save_file(gradients(folder / "model", folder / "train.tsv", here), out / f"{folder.name}{here.rank}")
    distributed.destroy_process_group()
