"""What an experiment is: task, learner, stopping rule, and the paper's figures beside them; all of it frozen data."""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from longlag.engines.cpu.online97.network import Network
from longlag.tasks import Task

Reading = Literal["text", "fit"]
Update = Literal["sequence", "step"]


@dataclass(frozen=True)
class Memory:
    """LSTM-1997 learning by truncated RTRL: w ← w − lr · ∂/∂w ½ Σ (y − ŷ)².

    Weights start uniform in ±reach; `biases` names the groups that have biases ("ig", "og", "cell", "out"), and those
    of the gates start at the constants given. `initial` is the value of fed-back activations before a sequence; `grow`
    is how many sequences the direct connections learn alone before the block is added, or "plateau": until a hundred
    sequences improve their error by less than 1 %. [LSTM-97 4]

    >>> Memory(Network(2, 2, 2, 1), biases=("ig", "og", "cell", "out"), reach=0.1, lr=0.5).weight_count
    93
    """

    network: Network
    biases: tuple[str, ...]
    reach: float
    lr: float
    input_gate_bias: tuple[float, ...] = ()
    output_gate_bias: tuple[float, ...] = ()
    update: Update = "sequence"
    initial: float = 0.0
    grow: int | Literal["plateau"] = 0

    def __post_init__(self) -> None:
        for name in ("input_gate_bias", "output_gate_bias"):
            value = getattr(self, name)
            if value and len(value) != self.network.blocks:
                raise ValueError(f"Memory: {name} must have one value per block ({self.network.blocks}), got {value!r}")
        if not self.lr > 0:
            raise ValueError(f"Memory: lr must be positive, got {self.lr!r}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of weights and biases."""
        shapes = self.network.shapes()
        return shapes | {f"bias_{group}": shapes[f"weight_{group}"][:1] for group in self.biases}

    @property
    def weight_count(self) -> int:
        """How many weights are trained, biases among them."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    @property
    def cost(self) -> float:
        """Nanoseconds of a step, about."""
        return 60 + 3 * self.network.output_size


@dataclass(frozen=True)
class Plain:
    """A net of logistic units without memory cells or biases, as the paper's competitors have it.

    With `readout`, outputs read the new hidden activations, and the input if `direct`; without, the first units are
    the outputs (the fully recurrent net). rule: "rtrl", "bptt", or "elman" (errors stop at the copy of the context).

    >>> Plain(7, 3, 7, "rtrl", lr=0.05, readout=False).weight_count
    170
    >>> Plain(5, 1, 5, "bptt", lr=1.0, direct=True).weight_count
    36
    """

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
class Goal:
    """Reached when fewer than `fewer_than` of the sequences judged are wrong and their mean |error| is below `mean`."""

    name: str = ""
    fewer_than: int = 1
    mean: float = math.inf


@dataclass(frozen=True)
class Window:
    """Judge the most recent training sequences, each by its error before its update; final: fresh test sequences.

    `block` sequences are drawn at once. It stands here because the data of a seed depend on it.
    """

    bound: float
    goals: tuple[Goal, ...]
    size: int = 2000
    final: int = 2560
    block: int = 500


@dataclass(frozen=True)
class Test:
    """Judge frozen weights on test sequences every so often.

    `fresh` draws them anew each time; else they are drawn once per trial; `distinct`: one of each class is enough.
    `last`: only the last step of a sequence counts.
    """

    bound: float
    goals: tuple[Goal, ...]
    size: int = 256
    every: int = 100
    fresh: bool = False
    distinct: bool = False
    last: bool = False
    final: int = 0

    __test__ = False  # no test of pytest's


@dataclass(frozen=True)
class Legal:
    """E1: on every step of all training and test strings the legal symbols are the most active ones. [E1]"""

    every: int = 256
    goals: tuple[Goal, ...] = (Goal(),)


@dataclass(frozen=True)
class Figures:
    """What the paper prints for one stage: mean sequences until success, and figures of its test."""

    after: int | None
    test: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One row of a table of the paper, in one reading of its text.

    Args:
        number, name: "4", "4 T=100".
        reading: "text", or "fit": what reproduces; `departs` says how it differs from the text.
        cap: a trial that has seen so many sequences has failed.
        trials: how many the paper profile runs; the paper ran `paper_trials`.
        paper: figures per stage, in the order of stop.goals.
        success: the paper's success rate in percent; None where it says "some fraction".
        note: choices of ours that the paper leaves open.
    """

    number: str
    name: str
    reading: Reading
    table: int
    task: Task
    learner: Memory | Plain
    stop: Window | Test | Legal
    cap: int
    trials: int
    paper_trials: int
    paper: tuple[Figures, ...]
    weights: str
    success: float | None = 100.0
    departs: str = ""
    note: str = ""
    method: str = "LSTM"

    @property
    def key(self) -> str:
        """Short digest of everything a trial's result depends on, beside the seed and the version."""
        settings = (self.task, self.learner, self.stop, self.cap)
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]

    @property
    def length(self) -> float:
        """Mean number of steps of a sequence, from a small sample."""
        return float(self.task.sample(32, np.random.default_rng(0)).lengths.mean())

    @property
    def work(self) -> float:
        """A rough guess at the nanoseconds of a trial that runs to its cap; long ones are started first."""
        return self.cap * self.length * self.learner.cost
