"""Which tag may follow which, from the names of the tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Constraints(NamedTuple):
    """Allowed tags and transitions of a CRF: True where allowed."""

    transitions: Tensor  # (K, K) bool, [from, to]
    starts: Tensor  # (K,) bool
    ends: Tensor  # (K,) bool


class Scheme(NamedTuple):
    """A tagging scheme: the letters before the type (``B-PER``), and their conditions on neighbouring tags."""

    letters: str
    continues: str  # must follow B or I of the same type
    unfinished: str  # must be followed by a tag that continues the span


SCHEMES = {
    "BIO": Scheme("BI", "I", ""),
    "BIOES": Scheme("BIES", "IE", "BI"),
    "BILOU": Scheme("BILU", "IL", "BI"),
}


def constraints_from(labels: Sequence[str], scheme: str = "BIO") -> Constraints:
    """The constraints of a tagging scheme.

    Args:
        labels: the names of the tags in order: ``O``, or a letter of the scheme, ``-`` and a type (``B-loc``).
        scheme: ``"BIO"`` (also called IOB2), ``"BIOES"`` or ``"BILOU"``.

    >>> constraints_from(["O", "B-PER", "I-PER"]).transitions.int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [1, 1, 1]], dtype=torch.int32)

    Source: Ramshaw and Marcus 1995 (BIO); Ratinov and Roth 2009 (BILOU).
    """
    if scheme not in SCHEMES:
        raise ValueError(f"constraints_from: scheme must be one of {', '.join(map(repr, SCHEMES))}, got {scheme!r}")
    if isinstance(labels, str) or not labels or len(set(labels)) != len(labels):
        raise ValueError(f"constraints_from: labels must be different names, at least one, got {labels!r}")
    rules, tags = SCHEMES[scheme], [_parts(label, scheme) for label in labels]

    def follows(before: tuple[str, str], after: tuple[str, str]) -> bool:
        if after[0] in rules.continues:
            return before[0] in ("B", "I") and before[1] == after[1]
        return before[0] not in rules.unfinished

    return Constraints(
        torch.tensor([[follows(before, after) for after in tags] for before in tags]),
        torch.tensor([letter not in rules.continues for letter, _ in tags]),
        torch.tensor([letter not in rules.unfinished for letter, _ in tags]),
    )


def _parts(label: str, scheme: str) -> tuple[str, str]:
    """Letter and type of a label."""
    letter, dash, kind = label.partition("-")
    if label != "O" and (letter not in tuple(SCHEMES[scheme].letters) or not dash or not kind):
        letters = ", ".join(f"{x}-type" for x in SCHEMES[scheme].letters)
        raise ValueError(f"constraints_from: labels of {scheme} must be O, {letters}, got {label!r}")
    return letter, kind
