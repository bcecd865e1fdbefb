"""The cells and layers under test, by name, and the few tools their tests share.

``LAYERS["gru_two_ways"](input_size=3, size=4, seed=0)`` is a small float64 layer, ``CELLS["lstm"]`` a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import longlag as ll
from longlag import cells
from longlag.cells import exp, relu, sigmoid, tanh

# ------------------------------------------------------------------------------------------------ cells


@ll.cell(gates="a z:x m:y", states="c", params={"p": 0.7, "q": 1.3})
def user_everything(a, z, m, y, c, p, q):
    """Every word of the language: a gate of each kind, the previous output, a state, two params."""
    c = sigmoid(z) * c / (1 + p**2) + relu(a) ** 3 - q * exp(-(m**2))
    return tanh(c) ** 2 + 0.5 * y / q - a / 3, c


@ll.cell(gates="a z")
def user_gated(a, z, y):
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


@ll.cell(gates="a", states="p q", params="k", dense=False)
def user_oscillator(a, p, q, k):
    """Two states that read each other, and an output that reads neither's new value alone."""
    new_p, new_q = p - k * q + tanh(a), q + k * p
    return tanh(new_p * new_q), new_p, new_q


@ll.cell(gates="n:x m:y")
def user_apart(n, m):
    return tanh(n) / (1 + exp(-m))


@ll.cell(gates="a z:x", states="d")
def user_delay(a, z, d):
    """A state that is a gate's net input itself, read one step later."""
    return tanh(a + d) * sigmoid(z), a


@ll.cell(gates="a g m:y", states="v", params={"p": 0.8})
def user_language(a, g, m, v, p):
    """Every function of the language."""
    f = cells
    u = f.where((a > m) & (v < 2), 0.4 * f.log(p + a * a), f.minimum(0.3 * f.sin(v), f.softplus(g)) - 0.5)
    v = 0.5 * v + u + f.maximum(f.relu(a), 0.2) * f.cos(v * p) - abs(g) * f.erf(m)
    return f.gelu(v) - f.silu(g) / f.sqrt(1 + v * v), v


@ll.cell(gates="a", states="v w", params={"beta": 0.9}, fixed={"theta": 0.6})
def user_spikes(a, v, w, y, beta, theta):
    """An adaptive unit that spikes, with a reset that derivatives do not see."""
    v = beta * v * (1 - cells.detach(y)) + a - 0.2 * y
    w = 0.9 * w + cells.spike(v - theta, "triangle", 2)
    return cells.spike(v - theta - 0.1 * w, "atan"), v, w


USERS = (user_everything, user_gated, user_oscillator, user_apart, user_delay, user_language, user_spikes)
SQUASHES = ("4s-2", "2s-1", "logistic", "tanh", "identity")
NAMED = ["elman", "elman_relu", "rnn97", "lstm", "gru", "leaky", "static", "net_feedback", "activation_feedback"]
SHELF = ["peephole_lstm", "coupled_lstm", "gru_original", "mgu", "slstm", "min_gru", "min_lstm", "ind_rnn", "fast_grnn"]
SHELF += ["antisymmetric", "co_rnn", "lem", "cfc", "ctrnn", "lif", "snn_leaky", "snn_synaptic", "adaptive_lif", "lru"]
SHELF += ["gru_d", "gru_d_original"]
CELLS: dict[str, cells.Cell] = {
    **{name: getattr(cells, name) for name in NAMED},
    **{f"memory_cell {g} {h}": cells.memory_cell(g, h) for g, h in zip(SQUASHES, SQUASHES[1:] + SQUASHES[:1])},
    "memory_cell open": cells.memory_cell(output_gate=False),
    **{c.name: c for c in USERS},
}

# ------------------------------------------------------------------------------------------------ layers
DEFAULTS = {"dtype": torch.float64, "engine": "reference"}  # the engine that defines what is correct


def _stacked(kind: Callable[..., nn.Module], *first: Any, **fixed: Any) -> Callable[..., Any]:
    def make(input_size: int = 3, size: int = 4, *, seed: int = 0, **options: Any) -> Any:
        torch.manual_seed(seed)
        return kind(*first, input_size, size, **{**DEFAULTS, **fixed, **options})

    return make


def _network(kind: Callable[..., nn.Module], **fixed: Any) -> Callable[..., Any]:
    """``fixed`` may hold functions of ``size``."""

    def make(input_size: int = 3, size: int = 4, *, seed: int = 0, **options: Any) -> Any:
        torch.manual_seed(seed)
        sized = {name: value(size) if callable(value) else value for name, value in fixed.items()}
        return kind(input_size, **{**DEFAULTS, **sized, **options})

    return make


_two_ways = {"num_layers": 2, "bidirectional": True}
_lstm97 = partial(_network, ll.LSTM97, blocks=lambda n: n, block_size=2, hidden_units=1, init_range=0.8)
_jordan = partial(_network, ll.Jordan, hidden_size=lambda n: n, output_size=3)


def _mixed(input_size: int = 3, size: int = 4, *, seed: int = 0, **options: Any) -> Any:
    """A layer of a step function, whose state has two parts and whose output is a third."""
    torch.manual_seed(seed)
    names = {"W": (size, input_size), "U": (size, size), "V": (2, size), "decay": (size,)}
    placed = {"dtype": options.pop("dtype", torch.float64), "device": options.pop("device", None)}
    params = {name: 0.7 * torch.randn(shape, **placed) for name, shape in names.items()}

    def mixed(x: Tensor, state: tuple[Tensor, ...], p: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, m = state
        m = sigmoid(p["decay"]) * m + torch.softmax(h, -1)
        h = tanh(x @ p["W"].t() + (h * m) @ p["U"].t())
        return (h + m) @ p["V"].t(), (h, m)

    given = {name: value for name, value in options.items() if name != "engine"}
    return ll.Recurrent.from_step(mixed, input_size, {"h": size, "m": size}, params, **given)


def _chain(input_size: int = 3, size: int = 4, *, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    given = {**DEFAULTS, **options}
    return ll.Chain(ll.GRU(input_size, size, **given), ll.Jordan(size, size, 2, start="zero", **given))


_echo = partial(_network, ll.EchoState, hidden_size=lambda n: n, output_size=2, density=1.0, bias_scale=0.5)

# name -> make(input_size=3, size=4, *, seed=0, **options): a float64 layer on the reference engine (give
# ``engine`` for another); size is its number of units, or of blocks (LSTM97), or of units of a kind
# (LocalFeedbackNetwork)
LAYERS: dict[str, Callable[..., Any]] = {
    "elman": _stacked(ll.Elman),
    "elman_relu": _stacked(ll.Elman, nonlinearity="relu"),
    "elman_no_bias": _stacked(ll.Elman, bias=False),
    "elman_two_ways": _stacked(ll.Elman, **_two_ways),
    "elman_norm": _stacked(ll.Elman, norm="layer"),
    "rnn97": _stacked(ll.Recurrent, cells.rnn97),
    "lstm": _stacked(ll.LSTM),
    "lstm_no_bias": _stacked(ll.LSTM, bias=False),
    "lstm_forget_bias": _stacked(ll.LSTM, forget_bias=1.0),
    "lstm_three_layers": _stacked(ll.LSTM, num_layers=3),
    "lstm_two_ways": _stacked(ll.LSTM, **_two_ways),
    "lstm_norm": _stacked(ll.LSTM, norm="layer"),
    "gru": _stacked(ll.GRU),
    "gru_two_ways": _stacked(ll.GRU, **_two_ways),
    "gru_norm_torch": _stacked(ll.GRU, norm="layer_torch"),
    "leaky": _stacked(ll.Leaky, alpha=2.5),
    "leaky_learned": _stacked(ll.Leaky, alpha=2.5, learn_alpha=True),
    "leaky_two_ways": _stacked(ll.Leaky, learn_alpha=True, **_two_ways),
    "local_static": _stacked(ll.LocalFeedback, feedback="static", constrain=None),
    "local_net": _stacked(ll.LocalFeedback, feedback="net", constrain=None),
    "local_net_forget": _stacked(ll.LocalFeedback, feedback="net", constrain="forget", num_layers=2),
    "local_net_norm": _stacked(ll.LocalFeedback, feedback="net", norm="layer_torch", constrain=None),
    "local_activation": _stacked(ll.LocalFeedback, feedback="activation", constrain=None),
    "local_activation_two_ways": _stacked(ll.LocalFeedback, feedback="activation", constrain="forget", **_two_ways),
    "skip": _stacked(ll.Skip),
    "skip_several": _stacked(ll.Skip, delays=(4, 2)),
    "skip_none": _stacked(ll.Skip, delays=()),
    "skip_two_ways": _stacked(ll.Skip, delays=(3,), **_two_ways),
    "user_everything": _stacked(ll.Recurrent, user_everything),
    "user_gated_two_ways": _stacked(ll.Recurrent, user_gated, **_two_ways),
    "user_oscillator": _stacked(ll.Recurrent, user_oscillator),
    "user_apart": _stacked(ll.Recurrent, user_apart),
    "user_delay": _stacked(ll.Recurrent, user_delay),
    "user_language": _stacked(ll.Recurrent, user_language),
    "user_spikes": _stacked(ll.Recurrent, user_spikes),
    "lstm97": _lstm97(output_size=2),
    "lstm97_features": _lstm97(),
    "lstm97_no_output_gates": _lstm97(output_size=2, output_gates=False, bias=("gates", "output")),
    "lstm97_feedforward": _lstm97(output_size=2, recurrent=False, input_to_output=True, bias=False),
    "lstm97_linear": _lstm97(output_size=2, output="linear", g="logistic", h="identity", input_to_output=True),
    "lstm97_hidden_only": _lstm97(blocks=0, hidden_units=lambda n: n, output_size=2),
    "jordan": _jordan(),
    "jordan_zero": _jordan(start="zero", bias=False),
    "jordan_logits": _jordan(feedback="logits"),
    "jordan_argmax": _jordan(feedback="argmax"),
    "jordan_hidden": _jordan(hidden_feedback=True),
    "local_network": _network(ll.LocalFeedbackNetwork, hidden=lambda n: (n, n, n), output=(1, 2, 1), constrain=None),
    "local_network_deep": _network(
        ll.LocalFeedbackNetwork, hidden=lambda n: [(1, n, 0), (0, 1, n)], output=(2, 0, 1), bias=True, constrain=None
    ),
    "local_network_forget": _network(
        ll.LocalFeedbackNetwork, hidden=lambda n: (0, n, n), output=(1, 1, 1), constrain="forget"
    ),
    "local_network_static": _network(
        ll.LocalFeedbackNetwork, hidden=lambda n: (n, 0, 0), output=(2, 0, 0), constrain=None
    ),
    "step_function": _mixed,
    "chain": _chain,
    "echo": _echo(),
    "echo_leaky": _echo(leak=0.3, input_to_output=False),
}
SMALLEST = {name: 3 for name in LAYERS if "norm" in name}  # one or two units are ±1 after normalisation
ONE_WAY = [name for name in LAYERS if not name.endswith("_two_ways")]
TWO_WAYS = [name for name in LAYERS if name.endswith("_two_ways")]

# --------------------------------------------------------------------------------------------------- values


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parts(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A state as a tuple, however many parts it has."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


def whole(state: Iterable[Tensor]) -> Any:
    """The inverse of `parts`: what a layer takes."""
    state = tuple(state)
    return state[0] if len(state) == 1 else state


def batch_axis(layer: nn.Module) -> int:
    """Where a state keeps its sequences."""
    return layer.state_spec.batch_axis if isinstance(layer, ll.Layer) else 1  # torch's own count layers first


def owner(layer: nn.Module) -> str:
    """The name a layer signs its messages with: that of its public class."""
    return next(kind.__name__ for kind in type(layer).__mro__ if vars(ll.layers).get(kind.__name__) is kind)


def rest(layer: Any, batch: int) -> tuple[Tensor, ...]:
    """The state a layer starts from by itself: zeros, but for Jordan's uniform feedback."""
    x = torch.zeros(1, batch, layer.input_size, dtype=torch.float64)
    _, state = layer(x.transpose(0, 1) if layer.batch_first else x)
    zeros = [torch.zeros_like(part) for part in parts(state)]
    if isinstance(layer, ll.Jordan) and layer.start == "uniform":
        zeros[0] += 1 / layer.output_size
    return tuple(zeros)


def some_state(layer: Any, batch: int, seed: int = 1) -> tuple[Tensor, ...]:
    """A state that is nowhere zero."""
    return tuple(randn(*part.shape, seed=seed + i) for i, part in enumerate(rest(layer, batch)))


def numpy_weights(layer: nn.Module) -> dict[str, np.ndarray]:
    """A layer's parameters for an oracle written in NumPy; parametrised ones by their meaning."""
    names = [name.replace("parametrizations.", "").removesuffix(".original") for name, _ in layer.named_parameters()]
    owners = {name: layer.get_submodule(name.rpartition(".")[0]) for name in names}
    return {name: getattr(owners[name], name.rpartition(".")[2]).detach().numpy() for name in names}


# ------------------------------------------------------------------------------------------------ comparison

TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}  # relative to the largest entry


def error(ours: Any, wanted: Any) -> float:
    """max |ours − wanted| / max |wanted|; infinite if only ``wanted`` is all zeros."""
    ours, wanted = (torch.as_tensor(v).detach() for v in (ours, wanted))
    assert ours.shape == wanted.shape, f"shapes differ: {tuple(ours.shape)} and {tuple(wanted.shape)}"
    if not wanted.numel():
        return 0.0
    difference, scale = float((ours - wanted).abs().max()), float(wanted.abs().max())
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def same(ours: Any, wanted: Any, what: str = "", tolerance: float | None = None) -> None:
    """Assert equality to rounding, of tensors, or of tuples or dicts of them (None matches None)."""
    if isinstance(wanted, dict):
        assert ours.keys() == wanted.keys()
        for name in wanted:
            same(ours[name], wanted[name], f"{what} {name}", tolerance)
    elif isinstance(wanted, tuple | list):
        assert len(ours) == len(wanted)
        for i, (a, b) in enumerate(zip(ours, wanted)):
            same(a, b, f"{what}[{i}]", tolerance)
    elif wanted is None:
        assert ours is None, f"{what}: expected None"
    else:
        limit = TOLERANCE[torch.as_tensor(wanted).dtype] if tolerance is None else tolerance
        found = error(ours, wanted)
        assert found <= limit, f"{what}: relative error {found:.2e} > {limit:.0e}"


def weighted_sum(*tensors: Tensor, seed: int = 5) -> Tensor:
    """A scalar that depends on every entry, each with a weight of its own."""
    terms = [(t * randn(*t.shape, seed=seed + i, dtype=t.dtype)).sum() for i, t in enumerate(tensors)]
    return torch.stack(terms).sum()


def gradients(loss: Tensor, layer: nn.Module, *tensors: Tensor) -> dict[str, Tensor]:
    """∂loss by name: trainable parameters, then ``tensors`` as "0", "1", …; 0 where nothing depends on it."""
    wanted = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    wanted |= {str(i): t for i, t in enumerate(tensors)}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(wanted.items(), found)}


# ------------------------------------------------------------------------------------------- losses for oracles


class Head:
    """The output of the spec's pseudo-code: p = softmax(V h + c_out) against y, scored where m = 1. [ELMAN 1]"""

    def __init__(self, T: int, B: int, H: int, classes: int = 3, seed: int = 40) -> None:
        self.V, self.c_out = randn(classes, H, seed=seed), randn(classes, seed=seed + 1)
        self.V.requires_grad_()
        self.c_out.requires_grad_()
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (T, B), generator=generator)
        self.y = nn.functional.one_hot(labels, classes).double()
        self.m = (torch.rand(T, B, generator=generator) < 0.6).double()
        self.m[-1, 0] = 1.0  # something is scored

    def loss(self, h: Tensor) -> Tensor:
        """Σ m_t L_t of our layer's outputs h (T, B, H), under autograd."""
        log_p = torch.log_softmax(h @ self.V.t() + self.c_out, -1)
        return -(self.m * (self.y * log_p).sum(-1)).sum()

    def dz(self, h: np.ndarray, b: int) -> np.ndarray:
        """dz_t = m_t (p_t − y_t) of sequence b, by hand: h (T, H) -> (T, classes)."""
        z = h @ self.V.detach().numpy().T + self.c_out.detach().numpy()
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return self.m[:, b, None].numpy() * (p - self.y[:, b].numpy())

    def gradients(self, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """dV = Σ dz hᵀ and dc_out = Σ dz over all sequences: h (T, B, H)."""
        dz = np.stack([self.dz(h[:, b], b) for b in range(h.shape[1])], 1)
        return np.einsum("tbl,tbh->lh", dz, h), dz.sum((0, 1))
