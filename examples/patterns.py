"""The four design patterns of recurrent networks, each learning a tiny task in seconds.

    python examples/patterns.py

T steps, B sequences, l classes; every function trains and returns the share of correct answers on fresh data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import longlag as ll

B = 64


def train(modules: Iterable[nn.Module], loss: Callable[[int], Tensor], updates: int) -> None:
    """Adam on loss(k), k = 0, 1, …, with the gradient clipped to norm 1."""
    parameters = [p for module in modules for p in module.parameters()]
    adam = torch.optim.Adam(parameters, lr=0.02)
    for k in range(updates):
        adam.zero_grad()
        loss(k).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)  # [CLIP 5 dθ]
        adam.step()


def pattern_1() -> float:
    """Hidden recurrence, an output at every step: is this bit the same as the one before?"""
    layer, readout = ll.Elman(1, 16, engine="reference"), nn.Linear(16, 2)

    def outputs(T: int) -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (T, B))
        same = torch.cat([torch.zeros(1, B), (bits[1:] == bits[:-1])]).long()
        h, _ = layer(2.0 * bits.unsqueeze(-1) - 1)
        return readout(h), same  # [PAT-I]

    def loss(k: int) -> Tensor:
        z, same = outputs(T=10)
        return cross_entropy(z.flatten(0, 1), same.flatten())

    train([layer, readout], loss, updates=200)
    with torch.no_grad():
        z, same = outputs(T=50)
    return float((z.argmax(-1) == same).float().mean())


def pattern_2() -> float:
    """Hidden recurrence, one output after the last valid step of ragged sequences: what was the first symbol?"""
    layer, readout = ll.LSTM(4, 16, engine="reference"), nn.Linear(16, 4)

    def outputs(longest: int) -> tuple[Tensor, Tensor]:
        symbols, lengths = torch.randint(4, (longest, B)), torch.randint(1, longest + 1, (B,))
        _, (h, _) = layer(one_hot(symbols, 4).float(), lengths=lengths)  # h: the state at each length
        return readout(h[-1]), symbols[0]  # [PAT-II]

    def loss(k: int) -> Tensor:
        return cross_entropy(*outputs(longest=8))

    train([layer, readout], loss, updates=200)
    with torch.no_grad():
        z, first = outputs(longest=12)
    return float((z.argmax(-1) == first).float().mean())


def pattern_3() -> float:
    """Output recurrence only: count the ones modulo 3. Teacher forcing learns all steps at once, no loop over time."""
    net = ll.Jordan(1, 16, 3, feedback="argmax")

    def count(T: int) -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (T, B))
        return bits.unsqueeze(-1).float(), bits.cumsum(0) % 3

    def loss(k: int) -> Tensor:
        x, y = count(T=10)
        z, _ = net(x, targets=y)  # [PAT-III]
        return cross_entropy(z.flatten(0, 1), y.flatten())

    train([net], loss, updates=300)
    x, y = count(T=50)
    with torch.no_grad():
        z, _ = net(x)  # free running: its own answers are all it remembers
    return float((z.argmax(-1) == y).float().mean())


def pattern_4() -> float:
    """Both recurrences, scheduled sampling: count the ones up to the step before, so that one bit must be kept."""
    net, epsilon = ll.Jordan(1, 24, 3, hidden_feedback=True), ll.schedules.inverse_sigmoid(40.0)

    def count(T: int) -> tuple[Tensor, Tensor]:
        bits = torch.randint(2, (T, B))
        return bits.unsqueeze(-1).float(), (bits.cumsum(0) - bits) % 3

    def loss(k: int) -> Tensor:
        x, y = count(T=10)
        z, _ = net(x, targets=y, teacher=epsilon(k))  # [PAT-IV] a coin per token: the teacher's answer or its own
        return cross_entropy(z.flatten(0, 1), y.flatten())

    train([net], loss, updates=350)
    x, y = count(T=30)
    with torch.no_grad():
        z, _ = net(x)
    return float((z.argmax(-1) == y).float().mean())


WORDS = ("abca.", "baac.", "cab..", "cbb..")
LETTERS = "abc."  # the full stop ends a word


def pattern_4_generates() -> float:
    """Pattern IV without input is a generative model: sample y(t) from p(y(t) | y(1) … y(t−1)) and feed it back."""
    net = ll.Jordan(0, 24, len(LETTERS), hidden_feedback=True, feedback="sample")
    y = torch.tensor([[LETTERS.index(letter) for letter in word] for word in WORDS]).t()  # (T, words)

    def loss(k: int) -> Tensor:
        z, _ = net(torch.empty(*y.shape, 0), targets=y)
        return cross_entropy(z.flatten(0, 1), y.flatten())  # −log Π p(y(t) | y(<t)), per token

    train([net], loss, updates=300)
    with torch.no_grad():
        state, letters = None, []
        for _ in WORDS[0]:
            _, state = net.step(torch.empty(1000, 0), state)
            letters.append(state[0].argmax(-1))  # what was drawn is what is fed back
    spoken = ["".join(LETTERS[i] for i in row) for row in torch.stack(letters, 1).tolist()]
    missing = [word for word in WORDS if not 0.15 < spoken.count(word) / 1000 < 0.35]  # each is said a quarter
    return 0.0 if missing else sum(word in WORDS for word in spoken) / 1000


PATTERNS = (pattern_1, pattern_2, pattern_3, pattern_4, pattern_4_generates)


def main() -> None:
    for pattern in PATTERNS:
        torch.manual_seed(0)
        start = time.perf_counter()
        correct = pattern()
        print(f"{pattern.__name__:20} {correct:6.1%} correct after {time.perf_counter() - start:.1f} s")
        assert correct > 0.98, f"{pattern.__name__} did not learn"


if __name__ == "__main__":
    main()
