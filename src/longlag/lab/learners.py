"""Learners as descriptions: a network, how its weights start, and how they are found. Frozen data, no engine.

Each description declares a `kind`; together with its fields it identifies a learner in the store (see `identity`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from longlag.lab.architecture import Architecture, Construction, check_int, check_positive

Update = Literal["sequence", "step"]


@dataclass(frozen=True)
class LSTM97Learner:
    """LSTM-1997 learning by truncated RTRL: w ← w − lr · ∂/∂w ½ Σ (y − ŷ)².

    Weights start uniform in ±reach. `biases` names the groups with biases ("hid", "ig", "og", "cell", "out"); a group
    that the network lacks has none. Biases of the gates start at the constants given, one per block. `initial` is the
    value of fed-back activations before a sequence. `construction`: how blocks are added while learning.

    >>> every = ("ig", "og", "cell", "out")
    >>> LSTM97Learner(Architecture(2, 2, 2, 1), biases=every, reach=0.1, lr=0.5).weight_count
    93
    """

    kind: ClassVar[str] = "lstm97"
    network: Architecture
    biases: tuple[str, ...]
    reach: float
    lr: float
    input_gate_bias: tuple[float, ...] = ()
    output_gate_bias: tuple[float, ...] = ()
    update: Update = "sequence"
    initial: float = 0.0
    construction: Construction | None = None

    def __post_init__(self) -> None:
        for name, group in (("input_gate_bias", "ig"), ("output_gate_bias", "og")):
            value, blocks = getattr(self, name), self.network.blocks
            if value and len(value) != blocks:
                raise ValueError(f"LSTM97Learner: {name} must have one value per block ({blocks}), got {value!r}")
            if value and group not in self.biases:
                raise ValueError(f"LSTM97Learner: {name} needs {group!r} among biases, got biases {self.biases!r}")
        check_positive("LSTM97Learner", "lr", self.lr)
        if self.construction is not None:
            self._check_start(self.construction.start)

    def _check_start(self, start: int) -> None:
        """Refuse a start with more blocks than there are, or with none where direct connections cannot learn alone."""
        if start > self.network.blocks:
            most = self.network.blocks
            raise ValueError(f"LSTM97Learner: construction.start must be at most blocks = {most}, got {start}")
        if start == 0 and (not self.network.input_to_output or self.network.hidden_units or "out" in self.biases):
            rule = "input_to_output, no hidden units and no biases of the outputs"
            raise ValueError(
                f"LSTM97Learner: construction.start = 0 needs {rule}, got {self.network} and {self.biases}"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of weights and biases."""
        shapes = self.network.shapes()
        present = [group for group in self.biases if f"weight_{group}" in shapes]
        return shapes | {f"bias_{group}": shapes[f"weight_{group}"][:1] for group in present}

    @property
    def weight_count(self) -> int:
        """How many weights are trained, biases among them."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    @property
    def cost(self) -> float:
        """Nanoseconds of a step, about."""
        return 60 + 3 * self.network.output_size


@dataclass(frozen=True)
class PlainLearner:
    """A net of logistic units without memory cells or biases, as the paper's competitors have it.

    With `readout`, outputs read the new hidden activations, and the input if `direct`; without, the first units are
    the outputs (the fully recurrent net). rule: "rtrl", "bptt", or "elman" (errors stop at the copy of the context).

    >>> PlainLearner(7, 3, 7, "rtrl", lr=0.05, readout=False).weight_count
    170
    >>> PlainLearner(5, 1, 5, "bptt", lr=1.0, direct=True).weight_count
    36
    """

    kind: ClassVar[str] = "plain"
    input_size: int
    hidden: int
    output_size: int
    rule: Literal["rtrl", "bptt", "elman"]
    lr: float
    readout: bool = True
    direct: bool = False
    reach: float = 0.2
    update: Update = "sequence"

    @property
    def units(self) -> int:
        """Units that feed back."""
        return self.hidden + (0 if self.readout else self.output_size)

    @property
    def weight_count(self) -> int:
        """How many weights are trained."""
        recurrent = self.units * (self.input_size + self.units)
        return recurrent + self.readout * self.output_size * (self.hidden + self.direct * self.input_size)

    @property
    def cost(self) -> float:
        """Nanoseconds of a step, about; the influence matrix of RTRL costs units³ times sources."""
        influence = self.units**3 * (self.input_size + self.units) / 3 if self.rule == "rtrl" else self.units**2
        return 50 + 3 * self.output_size + influence


@dataclass(frozen=True)
class GuessingLearner:
    """Random weight guessing: draw all weights anew from ±reach until the net classifies the whole training set.

    The nets are those of Hochreiter and Schmidhuber (NIPS 9, 1996): logistic units y(t) = σ(W [x(t), y(t−1), 1]), all
    zero before a sequence. connections "all" (their A1): every unit sees the input and every unit, and the hidden
    units have biases. "sparse" (their A2): a hidden unit sees the input, the outputs and itself, an output sees the
    input and all other units, and every unit has a bias.

    >>> GuessingLearner(1, 1, 1).weight_count, GuessingLearner(1, 10, 1, connections="sparse").weight_count
    (7, 52)
    """

    kind: ClassVar[str] = "guessing"
    input_size: int
    hidden: int
    output_size: int
    connections: Literal["all", "sparse"] = "all"
    reach: float = 100.0

    def __post_init__(self) -> None:
        for name in ("input_size", "hidden", "output_size"):
            check_int("GuessingLearner", name, getattr(self, name), int(name != "hidden"))
        if self.connections not in ("all", "sparse"):
            raise ValueError(f"GuessingLearner: connections must be 'all' or 'sparse', got {self.connections!r}")
        check_positive("GuessingLearner", "reach", self.reach)

    @property
    def weight_count(self) -> int:
        """How many weights are guessed, biases among them."""
        units, d = self.hidden + self.output_size, self.input_size
        if self.connections == "all":
            return units * (d + units) + self.hidden
        hidden, outputs = self.hidden * (d + self.output_size + 2), self.output_size * (d + units)
        return hidden + outputs

    @property
    def cost(self) -> float:
        """Nanoseconds of a step, about."""
        return 100 + 10 * (self.hidden + self.output_size)


@dataclass(frozen=True)
class CellLearner:
    """One recurrent layer of any cell, and output units, learning as LSTM-1997 does or as is usual today.

    Rule "1997": errors go back through what each unit keeps by itself and not through net inputs; w ← w − lr · ∂/∂w ½
    Σ (y − ŷ)² after every sequence or step. Rule "bptt": the whole gradient through time, averaged over `batch`
    sequences and cut to norm 1, goes to Adam. Weights and biases start uniform in ±reach, the cell's params at their
    own values.

    Args:
        cell: a name in `longlag.cells`, or "module:name" of a cell of the user's own.
        equations: digest of its equations, so that trials of other equations are other trials.
        gate_bias: (gate, value) of gates whose biases start at a constant.

    >>> from longlag.lab.cell_rows import cell_learner, experiment_4
    >>> cell_learner(experiment_4(100).learner, "gru").weight_count  # the paper's LSTM has 93
    101
    """

    kind: ClassVar[str] = "cell"
    cell: str
    equations: str
    input_size: int
    hidden: int
    output_size: int
    reach: float
    lr: float
    output: Literal["logistic", "linear"] = "logistic"
    update: Update = "sequence"
    rule: Literal["1997", "bptt"] = "1997"
    batch: int = 1
    gate_bias: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in ("1997", "bptt"):
            raise ValueError(f"CellLearner: rule must be '1997' or 'bptt', got {self.rule!r}")
        check_int("CellLearner", "batch", self.batch, 1)
        if self.rule == "1997" and self.batch != 1:
            raise ValueError(f"CellLearner: batch must be 1 with rule '1997', got {self.batch}")

    @property
    def weight_count(self) -> int:
        """How many weights are trained, biases among them."""
        from longlag.lab.nets import net_of

        return sum(p.numel() for p in net_of(self).parameters())

    @property
    def cost(self) -> float:
        """Nanoseconds of a step, about."""
        return (100 + 3 * self.output_size + 10 * self.hidden) * (10 if self.rule == "bptt" else 1)


Learner = LSTM97Learner | PlainLearner | GuessingLearner | CellLearner
