"""A network that learns in real time, as plain data. The engine knows no layers and no learning rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from longlag.cells import Cell

X, FED_BACK = "x", "y"  # sources besides the outputs of earlier groups


@dataclass(frozen=True)
class Group:
    """Units of one kind.

    Attributes:
        reads: the pieces of the source, in order: ``"x"`` (first), ``"y"``, or the number of an earlier group.
        ones: number of biases of every gate: that many sources are 1.
        echoes: gates whose σ(net input) is fed back, too (the gates of LSTM-1997).
        rule: how the gradients of its weights are formed, a key of `rules.RULES`; None: they are not trained.
        bounds: for every param of the cell the function of the trained number that the equations read, as a cell
            with one gate; None: the number itself.
    """

    cell: Cell
    units: int
    reads: tuple[str | int, ...]
    ones: int
    echoes: tuple[str, ...] = ()
    rule: str | None = "traces"
    bounds: tuple[Cell | None, ...] = ()

    @cached_property
    def loop(self) -> tuple[str, ...]:
        """The parts of its own past that a unit reads; with the rule "snap" also y, through the unit's own weight."""
        if self.rule == "snap":
            return self.cell.fed_back
        return tuple(part for part in self.cell.inputs if part == "y" or part in self.cell.states)

    @cached_property
    def traced(self) -> tuple[str, ...]:
        """Gates that can influence the loop."""
        return tuple(g for g in self.cell.gates if any((q, g) in self.cell.jacobian for q in self.loop))

    @property
    def key(self) -> str:
        bounds = [bound and bound.key for bound in self.bounds]
        return repr((self.cell.key, self.reads, self.ones, self.echoes, self.rule, bounds))


@dataclass(frozen=True)
class Network:
    """Groups in the order in which a step computes them.

    Attributes:
        inputs: I, length of the input.
        fed_back: the pieces of the vector y that is fed back: (group, ``"y"`` or one of its echoes, every): the values
            of units 0, every, 2·every, ….
        outputs: groups whose outputs are the layer's output.
        readout: whether the last group reads the layer's output, also that of an inactive sample, which is 0.
        symbols: whether inputs are symbols, the numbers of the entry that is 1.
    """

    inputs: int
    groups: tuple[Group, ...]
    fed_back: tuple[tuple[int, str, int], ...]
    outputs: tuple[int, ...]
    readout: bool
    dtype: str
    symbols: bool = False

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The layer's groups."""
        return tuple(range(len(self.groups) - self.readout))

    @cached_property
    def reader(self) -> int | None:
        """The first group that reads what is fed back."""
        return next((k for k, group in enumerate(self.groups) if FED_BACK in group.reads), None)

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """The layer's groups that the next step depends on; the others are computed where an output is wanted."""
        needed = {k for k in self.inner if self.groups[k].loop} | {k for k, _, _ in self.fed_back}
        for k in reversed(self.inner):
            if k in needed:
                needed |= {piece for piece in self.groups[k].reads if isinstance(piece, int)}
        return tuple(sorted(needed))

    @cached_property
    def answers(self) -> tuple[int, ...]:
        """The groups whose outputs are compared with the target."""
        return (len(self.groups) - 1,) if self.readout else self.outputs

    @property
    def bounded(self) -> bool:
        """Whether equations read a param through a bound."""
        return any(bound is not None for group in self.groups for bound in group.bounds)

    @property
    def width(self) -> int:
        """Length of the layer's output."""
        return sum(self.groups[k].units for k in self.outputs)

    def with_symbols(self, symbols: bool) -> Network:
        """The same network for inputs of this kind."""
        return replace(self, symbols=symbols)

    @property
    def key(self) -> str:
        """Equal for networks that can share a kernel, up to sizes."""
        facts = (self.fed_back, self.outputs, self.readout, self.dtype, self.symbols)
        return repr((facts, [group.key for group in self.groups]))
