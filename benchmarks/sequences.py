"""Batches of unequal sequences, and sequences with resets, beside the usual code over torch.nn.

    python benchmarks/sequences.py [seconds per row]

Unequal lengths: our ``lengths`` beside `pack_padded_sequence`, nn.LSTM or nn.GRU, `pad_packed_sequence`; lengths are
drawn uniformly from T/4 to T. Resets: our ``reset`` beside the loop of recurrent policies, one call of nn.LSTM per step
with the state multiplied by 1 - start; an episode starts at every twentieth step on average. One thread, float32,
forward and backward from the input to the gradients of all parameters. Outputs and gradients are compared first.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from _rows import append
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import longlag as ll
from longlag.cli.bench import measure, middle

RAGGED = [(40, 8, 32, 64), (100, 32, 64, 128), (200, 16, 64, 64)]  # T, B, I, H
RESETS = [(4, 128, 32, 64), (16, 128, 32, 64), (32, 256, 64, 128), (128, 8, 32, 64)]


def compare(title: str, ours: Callable[[], list[Tensor]], theirs: Callable[[], list[Tensor]], seconds: float) -> None:
    """Time two ways to the same numbers."""
    for a, b in zip(ours(), theirs(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    (mine, spread), (base, _) = map(middle, measure({"ours": ours, "theirs": theirs}, seconds).values())
    append(f"sequences: {title}", mine * 1e3, "ms", baseline=base * 1e3, spread=spread)


def ragged(kind: str, peer: Any, size: tuple[int, int, int, int], two_ways: bool, seconds: float) -> None:
    T, B, inputs, H = size
    theirs = peer(inputs, H, bidirectional=two_ways)
    ours = getattr(ll, kind)(inputs, H, bidirectional=two_ways)
    ours.load_state_dict(theirs.state_dict())
    x, lengths = torch.randn(T, B, inputs), torch.randint(T // 4, T + 1, (B,))
    lengths[0] = T
    d = torch.randn(T, B, H * (1 + two_ways))

    def packed() -> list[Tensor]:
        y, _ = pad_packed_sequence(theirs(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])
        return [y, *torch.autograd.grad(y, list(theirs.parameters()), d)]

    def plain() -> list[Tensor]:
        y = ours(x, lengths=lengths)[0]
        return [y, *torch.autograd.grad(y, list(ours.parameters()), d)]

    ways = ", both directions" if two_ways else ""
    compare(f"{kind} with lengths / packed nn.{peer.__name__}{ways} {size}", plain, packed, seconds)


def resets(size: tuple[int, int, int, int], seconds: float) -> None:
    T, B, inputs, H = size
    theirs, ours = nn.LSTM(inputs, H), ll.LSTM(inputs, H)
    ours.load_state_dict(theirs.state_dict())
    x, start, d = torch.randn(T, B, inputs), torch.rand(T, B) < 0.05, torch.randn(T, B, H)

    def loop() -> list[Tensor]:
        state, outputs = (torch.zeros(1, B, H), torch.zeros(1, B, H)), []
        for x_t, first in zip(x, start):
            keep = (~first).float().view(1, B, 1)
            y, state = theirs(x_t.unsqueeze(0), (keep * state[0], keep * state[1]))
            outputs.append(y)
        y = torch.cat(outputs)
        return [y, *torch.autograd.grad(y, list(theirs.parameters()), d)]

    def one_call() -> list[Tensor]:
        y = ours(x, reset=start)[0]
        return [y, *torch.autograd.grad(y, list(ours.parameters()), d)]

    compare(f"LSTM with resets / loop over nn.LSTM {size}", one_call, loop, seconds)


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for size in RAGGED:
        ragged("LSTM", nn.LSTM, size, False, seconds)
        ragged("LSTM", nn.LSTM, size, True, seconds)
        ragged("GRU", nn.GRU, size, False, seconds)
    for size in RESETS:
        resets(size, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
