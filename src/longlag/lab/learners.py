"""Learners as descriptions: a network, how its weights start, and how they are found. Frozen data, no engine.

Each description declares a `kind`; together with its fields it identifies a learner in the store (see `identity`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

Update = Literal["sequence", "step"]
OUTPUTS = ("logistic", "linear", "softmax")


def check_int(owner: str, name: str, value: object, least: int) -> None:
    """Refuse anything but an int of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{owner}: {name} must be an int of at least {least}, got {value!r}")


def check_positive(owner: str, name: str, value: float) -> None:
    """Refuse a number that is not positive (NaN among them)."""
    if not value > 0:
        raise ValueError(f"{owner}: {name} must be positive, got {value!r}")


@dataclass(frozen=True)
class Architecture:
    """Sizes, connections and functions of an LSTM-1997 network. [LSTM-97 2]

    g and h are "4s-2", "2s-1", "logistic" (g only) or "identity" (h only): a·σ(x) + b with a, b as named. Output units
    are "logistic" or "linear" and learn by ½ Σ (y − ŷ)², or "softmax" and learn by cross-entropy.

    >>> Architecture(input_size=2, blocks=2, block_size=2, output_size=1).shapes()["weight_cell"]
    (4, 10)
    """

    kind: ClassVar[str] = "lstm97 network"
    input_size: int
    blocks: int
    block_size: int
    output_size: int
    hidden_units: int = 0
    output_gates: bool = True
    recurrent: bool = True
    input_to_output: bool = False
    g: str = "4s-2"
    h: str = "2s-1"
    output: str = "logistic"

    def __post_init__(self) -> None:
        for name in ("input_size", "block_size", "output_size"):
            check_int("Architecture", name, getattr(self, name), 1)
        for name in ("blocks", "hidden_units"):
            check_int("Architecture", name, getattr(self, name), 0)
        for name in ("output_gates", "recurrent", "input_to_output"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Architecture: {name} must be True or False, got {getattr(self, name)!r}")
        if self.output not in OUTPUTS:
            raise ValueError(f"Architecture: output must be one of {OUTPUTS}, got {self.output!r}")

    @property
    def cells(self) -> int:
        """Memory cells of all blocks."""
        return self.blocks * self.block_size

    @property
    def groups(self) -> dict[str, int]:
        """Units of each group that feeds back, in the order of the weight columns; empty groups are left out."""
        counts = {
            "hid": self.hidden_units,
            "ig": self.blocks,
            "og": self.blocks * self.output_gates,
            "cell": self.cells,
        }
        return {group: count for group, count in counts.items() if count}

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of the weight matrices: weight_hid, weight_ig, weight_og, weight_cell (·, D), weight_out (·, D_o)."""
        sources = self.input_size + sum(self.groups.values()) * self.recurrent
        shapes = {f"weight_{group}": (count, sources) for group, count in self.groups.items()}
        direct = self.input_size * self.input_to_output
        return shapes | {"weight_out": (self.output_size, direct + self.hidden_units + self.cells)}


@dataclass(frozen=True)
class Construction:
    """Sequential construction: start with few blocks, add one whenever the error stalls. [LSTM-97 4]

    The error stalls when its mean over `window` sequences has not fallen by more than `improvement` (a fraction) for
    `patience` windows in a row; with `after`, a block is added after that many sequences instead. The network's
    number of blocks is the most there will be. The paper says only "whenever the error stops decreasing". mute: the
    output weights of a new block start at 0, so that adding the block changes no output at first.
    """

    kind: ClassVar[str] = "sequential construction"
    start: int = 1
    window: int = 500
    patience: int = 2
    improvement: float = 0.01
    after: int | None = None
    mute: bool = False

    def __post_init__(self) -> None:
        check_int("Construction", "start", self.start, 0)
        check_int("Construction", "window", self.window, 1)
        check_int("Construction", "patience", self.patience, 1)
        if self.after is not None:
            check_int("Construction", "after", self.after, 1)


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
