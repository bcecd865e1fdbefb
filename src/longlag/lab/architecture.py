"""The network of LSTM-1997 as a description: sizes, connections, functions, and how blocks are added. Frozen data."""

from dataclasses import dataclass
from typing import ClassVar

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
