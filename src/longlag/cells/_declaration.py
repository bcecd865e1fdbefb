"""What `@cell` declares: names, and what the matrices of a gate read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from longlag.cells._language import COMPOSED, LANGUAGE

Names = str | Iterable[str]


@dataclass(frozen=True)
class Gate:
    """A net input: whether it has a row in W, and what its row in U reads, as text; None: no row in U."""

    name: str
    reads_x: bool
    source: str | None

    @classmethod
    def parsed(cls, text: str, dense: bool) -> Gate:
        """``"a"``, ``"n:x"``, ``"m:y"``, ``"b:z"``, ``"n:x+sigmoid(r)*y"``."""
        name, marked, mark = (part.strip() for part in text.partition(":"))
        if not marked:
            return cls(name, True, "y" if dense else None)
        reads_x = re.match(r"x\s*(\+|$)", mark) is not None
        source = re.sub(r"^x\s*\+?\s*", "", mark) if reads_x else mark
        return cls(name, reads_x, source or None)


@dataclass(frozen=True)
class Declaration:
    """The arguments of `@cell`, as given; checked by `check`."""

    owner: str  # for messages
    gates: tuple[Gate, ...]
    states: tuple[str, ...]
    params: Mapping[str, float]  # trained and fixed
    fixed: tuple[str, ...]
    per_step: tuple[str, ...]  # inputs and noise
    noise: tuple[str, ...]
    dense: bool
    roles: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        trained = tuple(name for name in self.params if name not in self.fixed)
        roles = {
            "gate": tuple(gate.name for gate in self.gates),
            "state": self.states,
            "input": tuple(name for name in self.per_step if name not in self.noise),
            "noise": self.noise,
            "param": trained,
            "fixed number": self.fixed,
        }
        object.__setattr__(self, "roles", roles)

    def role(self, name: str) -> str:
        """What a name is declared as, for messages."""
        return next((role for role, names in self.roles.items() if name in names), "argument")

    def check(self) -> None:
        """Refuse names that are taken or declared twice, and gates that read nothing."""
        names = [*self.roles["gate"], *self.states, *self.per_step, *self.params]
        if not self.gates:
            raise ValueError(f"{self.owner}: gates must name at least one net input, got none")
        for name in names:
            if not re.fullmatch(r"[a-zA-Z]\w*", name) or name == "y" or re.match(r"d_|D_|.*_new$", name):
                raise ValueError(
                    f"{self.owner}: {name!r} cannot name an argument (a Python name, not 'y', 'd_…', 'D_…' or '…_new')"
                )
            if name in LANGUAGE or name in COMPOSED:
                raise ValueError(f"{self.owner}: {name!r} is a function's name and cannot name an argument")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{self.owner}: {name!r} is declared {names.count(name)} times")
        for gate in self.gates:
            if gate.source is not None and not self.dense:
                raise ValueError(
                    f"{self.owner}: gate {gate.name!r} reads {gate.source} through U, but dense=False has no U"
                )
        if not any(gate.reads_x for gate in self.gates):
            raise ValueError(f"{self.owner}: no gate reads x(t) through W")
        if self.dense and all(gate.source is None for gate in self.gates):
            raise ValueError(f"{self.owner}: no gate reads y(t−1) through U; say dense=False")


def declared(
    owner: str, gates: Names, states: Names, params: Names | Mapping[str, float], fixed: Mapping[str, float],
    inputs: Names, noise: Names, dense: bool,
) -> Declaration:  # fmt: skip
    """The declaration of a cell, checked."""
    initial = dict(params) if isinstance(params, Mapping) else dict.fromkeys(_names(owner, "params", params), 1.0)
    if not isinstance(fixed, Mapping):
        raise TypeError(f'{owner}: fixed must map names to numbers, as in {{"tau": 0.1}}, got {fixed!r}')
    drawn = _names(owner, "noise", noise)
    made = Declaration(
        owner,
        tuple(Gate.parsed(text, dense) for text in _names(owner, "gates", gates)),
        _names(owner, "states", states),
        initial | dict(fixed),
        tuple(fixed),
        _names(owner, "inputs", inputs) + drawn,
        drawn,
        dense,
    )
    for name, value in made.params.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{owner}: the value of {name!r} must be a number, got {value!r}")
    twice = [name for name in initial if name in fixed]
    if twice:
        raise ValueError(f"{owner}: {twice[0]!r} is declared 2 times")
    made.check()
    return made


def _names(owner: str, argument: str, names: Names) -> tuple[str, ...]:
    """Names in a string, or in any list."""
    found = names.split() if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in found):
        raise TypeError(f"{owner}: {argument} must be names in a string or a list, got {names!r}")
    return tuple(found)
