"""The network of LSTM-1997 for the online kernel: sizes are compile-time constants, weights are packed in lanes.

All units of a network lie in one SIMD vector, [hid | ig | og | cell], padded to a power of two; so do the cells
alone. Cell j of block k is cell number j·n_b + k here (block-major outside): the gates of all blocks then line up
with the cells. A weight matrix is stored source by source, (D + 1, units), the last row being the biases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SQUASH = {"4s-2": (4.0, -2.0), "2s-1": (2.0, -1.0), "logistic": (1.0, 0.0)}  # (a, b) of a·σ + b
MOST_UNITS = 64


class Weights(NamedTuple):
    """Packed weights; rows are sources, columns units. `train` changes `units` and `out` in place."""

    units: NDArray  # (D + 1, unit lanes)
    out: NDArray  # (D_o + 1, output lanes)
    units_biased: NDArray  # (unit lanes,) 1 where the unit has a bias, 0 elsewhere
    out_biased: NDArray  # (output lanes,)
    out_real: NDArray  # (output lanes,) 1 for an output, 0 for padding


@dataclass(frozen=True)
class Network:
    """Sizes and functions of an LSTM-1997 network. [LSTM-97 2]

    >>> network = Network(input_size=2, blocks=2, block_size=2, output_size=1, output="linear")
    >>> network.sources, network.output_sources
    (10, 4)
    """

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
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name in ("input_size", "blocks", "block_size", "output_size", "hidden_units"):
            value, least = getattr(self, name), int(name != "hidden_units")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                kind = "a positive int" if least else "a non-negative int"
                raise ValueError(f"Network: {name} must be {kind}, got {value!r}")
        for name in ("output_gates", "recurrent", "input_to_output"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Network: {name} must be True or False, got {getattr(self, name)!r}")
        choices = {"g": tuple(SQUASH), "h": ("2s-1", "4s-2", "identity"), "output": ("logistic", "linear"),
                   "dtype": ("float32", "float64")}  # fmt: skip
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"Network: {name} must be one of {allowed}, got {getattr(self, name)!r}")
        if self.units > MOST_UNITS:
            rule = f"gates, cells and hidden units together must be at most {MOST_UNITS}"
            raise ValueError(f"Network: {rule}, got {self.units}")

    @property
    def cells(self) -> int:
        return self.blocks * self.block_size

    @property
    def starts(self) -> dict[str, int]:
        """Lane of the first unit of each group."""
        ig = self.hidden_units
        og = ig + self.blocks
        return {"hid": 0, "ig": ig, "og": og, "cell": og + self.blocks * self.output_gates}

    @property
    def units(self) -> int:
        return self.starts["cell"] + self.cells

    @property
    def sources(self) -> int:
        """D: inputs and fed-back units. Without output gates there are no gate activations to feed back."""
        return self.input_size + self.units * self.recurrent

    @property
    def output_sources(self) -> int:
        """D_o: inputs if connected, hidden units, cells."""
        return self.input_size * self.input_to_output + self.hidden_units + self.cells

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the public weights; the matching `bias_...` are optional."""
        rows = {"hid": self.hidden_units, "ig": self.blocks, "og": self.blocks * self.output_gates, "cell": self.cells}
        shapes = {f"weight_{group}": (count, self.sources) for group, count in rows.items() if count}
        return shapes | {"weight_out": (self.output_size, self.output_sources)}


def lanes_for(count: int) -> int:
    """The power of two, at least 2, that holds `count` lanes."""
    return max(2, 1 << (count - 1).bit_length())


def output_lanes(network: Network) -> int:
    """Outputs computed at once; more outputs take several turns."""
    return min(lanes_for(network.output_size), 8)


def check(network: Network, public: Mapping[str, ArrayLike]) -> dict[str, NDArray]:
    """The public weights as arrays, refused if a name or shape is wrong."""
    shapes = network.shapes()
    biases = {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()}
    arrays = {name: np.asarray(value, network.dtype) for name, value in public.items()}
    for name in shapes:
        if name not in arrays:
            raise ValueError(f"pack: {name} must be given, got only {sorted(arrays)}")
    for name, value in arrays.items():
        wanted = (shapes | biases).get(name)
        if wanted is None:
            raise ValueError(f"pack: names must be among {sorted(shapes | biases)}, got {name!r}")
        if value.shape != wanted:
            raise ValueError(f"pack: {name} must be of shape {wanted}, got {value.shape}")
    return arrays


def places(network: Network) -> dict[str, tuple[str, NDArray, NDArray]]:
    """The position of each public entry: array, rows (sources), columns (units), broadcast to the public shape."""
    n = network
    cell = np.arange(n.cells).reshape(n.block_size, n.blocks).T.ravel()  # block-major to kernel number
    lanes = {"hid": np.arange(n.hidden_units), "ig": n.starts["ig"] + np.arange(n.blocks),
             "og": n.starts["og"] + np.arange(n.blocks * n.output_gates), "cell": n.starts["cell"] + cell}  # fmt: skip
    fed_back = n.input_size + np.concatenate(list(lanes.values())) if n.recurrent else np.arange(0)
    sources = np.concatenate([np.arange(n.input_size), fed_back])
    direct = n.input_size * n.input_to_output
    out_sources = np.concatenate([np.arange(direct), direct + lanes["hid"], direct + n.hidden_units + cell])
    table = {}
    for group, columns in lanes.items():
        table[f"weight_{group}"] = ("units", sources[None, :], columns[:, None])
        table[f"bias_{group}"] = ("units", np.full(columns.shape, n.sources), columns)
    outputs = np.arange(n.output_size)
    table["weight_out"] = ("out", out_sources[None, :], outputs[:, None])
    table["bias_out"] = ("out", np.full(outputs.shape, n.output_sources), outputs)
    return table


def packed_shapes(network: Network) -> dict[str, tuple[int, ...]]:
    """Shapes of `Weights`."""
    step = output_lanes(network)
    units, outputs = lanes_for(network.units), -(-network.output_size // step) * step
    return {
        "units": (network.sources + 1, units),
        "out": (network.output_sources + 1, outputs),
        "units_biased": (units,),
        "out_biased": (outputs,),
        "out_real": (outputs,),
    }


def pack(network: Network, public: Mapping[str, ArrayLike]) -> Weights:
    """Public weights to the kernel's layout.

    public: `weight_hid` (d_hid, D), `weight_ig`, `weight_og` (n_b, D), `weight_cell` (n_b·d_b, D) block-major,
    `weight_out` (d_out, D_o), and any of `bias_hid`, `bias_ig`, `bias_og`, `bias_cell`, `bias_out`. Columns of D:
    [x, hid, ig, og, cell], of D_o: [x if input_to_output, hid, cell]. Groups without units are left out.
    """
    packed = Weights(*(np.zeros(shape, network.dtype) for shape in packed_shapes(network).values()))
    packed.out_real[: network.output_size] = 1
    table = places(network)
    for name, value in check(network, public).items():
        array, sources, columns = table[name]
        getattr(packed, array)[sources, columns] = value
        if name.startswith("bias"):
            getattr(packed, f"{array}_biased")[columns] = 1
    return packed


def unpack(network: Network, weights: Weights) -> dict[str, NDArray]:
    """The inverse of `pack`: copies in the public layout, with the biases that exist."""
    public = {}
    for name, (array, sources, columns) in places(network).items():
        exists = name.startswith("weight") or getattr(weights, f"{array}_biased")[columns].any()
        if columns.size and exists:
            public[name] = getattr(weights, array)[sources, columns]
    return public


def check_packed(owner: str, network: Network, weights: Weights) -> None:
    """Raise if the weights were not packed for this network."""
    if not isinstance(weights, Weights):
        raise TypeError(f"{owner}: weights must be what pack returns, got {type(weights).__name__}")
    for name, shape in packed_shapes(network).items():
        array = getattr(weights, name)
        if array.shape != shape or array.dtype != network.dtype or not array.flags.carray:
            wanted, got = f"{network.dtype} of shape {shape}", f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"{owner}: weights.{name} must be contiguous {wanted}, got {got}")
