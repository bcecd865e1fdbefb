"""Layers and inputs that `longlag flow` analyses: layers by name, noise, an LSTM trained on the adding problem."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from longlag.layers import Layer


class Kind(StrEnum):
    """Layers by name."""

    elman = "elman"
    rnn97 = "rnn97"
    leaky = "leaky"
    gru = "gru"
    lstm = "lstm"
    lstm97 = "lstm97"
    skip = "skip"
    jordan = "jordan"
    echo = "echo"
    local_net = "local-net"
    local_activation = "local-activation"


def check(what: str, expected: str, value: object, right: bool) -> None:
    """Refuse a value by name."""
    if not right:
        text = f"{value:g}" if isinstance(value, float) else repr(value)
        raise ValueError(f"{what} must be {expected}, got {text}")


def start_random_numbers(seed: int) -> None:
    """Seed torch's generator."""
    import torch

    check("flow: seed", "0 or a positive int", seed, seed >= 0)
    torch.manual_seed(seed)


def noise(length: int, sequences: int, inputs: int, seed: int) -> Tensor:
    """Gaussian noise (T, B, I)."""
    import torch

    for name, value in {"length": length, "sequences": sequences, "inputs": inputs}.items():
        check(f"flow: {name}", "a positive int", value, value >= 1)
    check("flow: seed", "0 or a positive int", seed, seed >= 0)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, sequences, inputs, generator=generator, dtype=torch.float64)


def build(kind: Kind, inputs: int, hidden: int, seed: int) -> Layer:
    """A float64 layer by name, as it is initialised."""
    import torch

    import longlag as ll

    start_random_numbers(seed)
    dtype = torch.float64
    makers = {
        Kind.elman: lambda: ll.Elman(inputs, hidden, dtype=dtype),
        Kind.rnn97: lambda: ll.Recurrent(ll.cells.rnn97, inputs, hidden, dtype=dtype),
        Kind.leaky: lambda: ll.Leaky(inputs, hidden, alpha=10.0, dtype=dtype),
        Kind.gru: lambda: ll.GRU(inputs, hidden, dtype=dtype),
        Kind.lstm: lambda: ll.LSTM(inputs, hidden, forget_bias=1.0, dtype=dtype),
        Kind.lstm97: lambda: ll.LSTM97(inputs, hidden, dtype=dtype),
        Kind.skip: lambda: ll.Skip(inputs, hidden, delays=(10,), dtype=dtype),
        Kind.jordan: lambda: ll.Jordan(inputs, hidden, hidden, dtype=dtype),
        Kind.echo: lambda: ll.EchoState(inputs, hidden, 1, density=0.5, dtype=dtype),
        Kind.local_net: lambda: ll.LocalFeedback(inputs, hidden, feedback="net", dtype=dtype),
        Kind.local_activation: lambda: ll.LocalFeedback(inputs, hidden, feedback="activation", dtype=dtype),
    }
    return makers[kind]()


def rescale(layer: Layer, radius: float) -> None:
    """Give the recurrent matrix this spectral radius."""
    import torch

    U = dict(layer.named_parameters()).get("weight_hh_l0")
    if U is None or U.shape[0] != U.shape[1]:
        raise ValueError(
            f"flow error: --gain needs a layer with one square recurrent matrix, got {type(layer).__name__}"
        )
    with torch.no_grad():
        U.mul_(radius / torch.linalg.eigvals(U).abs().max())


def adding(hidden: int, length: int, updates: int, seed: int) -> tuple[Layer, Tensor, list[int]]:
    """An LSTM trained on the adding problem, one sequence (T, 1, 2) of it, and its two marked steps."""
    import numpy as np
    import torch

    import longlag as ll
    from longlag import tasks
    from longlag.engines import few_threads

    check("flow memory: --updates", "0 or a positive int", updates, updates >= 0)
    start_random_numbers(seed)
    rng, task = np.random.default_rng(seed), tasks.Adding(length)
    lstm, readout = ll.LSTM(2, hidden, forget_bias=4.0), torch.nn.Linear(hidden, 1)
    with torch.no_grad():
        lstm.get_parameter("bias_ih_l0")[:hidden] = -3.0  # input gates start nearly closed, as in 1997
    parameters = [*lstm.parameters(), *readout.parameters()]
    optimizer = torch.optim.Adam(parameters, 0.01)
    with few_threads(4 * hidden):
        for _ in range(updates):
            x, targets, lengths = task.sample(32, rng).padded()
            _, (h, _) = lstm(x, lengths=lengths)
            optimizer.zero_grad()
            (readout(h[0]) - targets).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
    while True:  # nine sequences in ten have two marks
        x, _, _ = task.sample(1, rng).padded()
        marked = (x[:, 0, 1] == 1).nonzero().flatten().tolist()
        if len(marked) == 2:
            return lstm, x, marked
