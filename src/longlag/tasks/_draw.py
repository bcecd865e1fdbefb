"""Shared by the generators: checks of arguments, and sequence lengths."""

from numbers import Integral

import numpy as np


def check_int(owner: object, name: str, value: object, least: int) -> None:
    """Refuse `value` unless it is an integer of at least `least`; `owner` is the object or name that asks."""
    text = f"{_name(owner)}: {name} must be an int >= {least}, got {value!r}"
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(text)
    if int(value) < least:
        raise ValueError(text)


def check_choice(owner: object, name: str, value: object, choices: tuple) -> None:
    """Refuse `value` unless it is one of `choices` (of the same type: True is not 1)."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{_name(owner)}: {name} must be one of {allowed}, got {value!r}")


def check_sample(owner: object, n: object, rng: object) -> None:
    """Refuse a sample of fewer than one sequence, and an rng that is not a numpy Generator."""
    check_int(owner, "n", n, 1)
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{_name(owner)}: rng must be a numpy.random.Generator, got {type(rng).__name__}")


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where sequences of these lengths (n,) begin and end when laid end to end: (n+1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def random_offsets(T: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Offsets (n+1,) of n sequences with L uniform on {T, ..., T + T/10} (LSTM-97, sections 5.3 to 5.6)."""
    return offsets_of(rng.integers(T, T + T // 10, n, endpoint=True))


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__
