"""`Recurrent`: any cell as a layer, and the named layers that are one cell each."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longlag import engines
from longlag.cells import Cell
from longlag.layers import _door
from longlag.layers._stack import Options, Stack

NORMS = ("layer", "layer_torch")
EPS = 1e-5


class Weights(NamedTuple):
    """What one layer (and direction) hands to an engine."""

    W: Tensor  # (Gx·H, I)
    b: Tensor | None  # (Gx·H,): bias_ih, plus bias_hh of the gates that have a row in both
    U: Tensor | None  # (Gy·H, H)
    b_recurrent: Tensor | None  # (recurrent-only gates, H)
    params: tuple[Tensor, ...]  # each (H,)
    norm: engines.Norm | None


class Recurrent(Stack):
    """A stack of recurrent layers made of one cell.

    For every gate, a = W x(t) + b_ih + U y(t−1) + b_hh; then the cell's equations.

    Args:
        cell: the equations; see `longlag.cell`.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as in ``torch.nn.LSTM``.
        norm: None; ``"layer"`` normalises every gate's net input over the units, variance with divisor H−1;
            ``"layer_torch"`` with divisor H, as ``torch.nn.LayerNorm`` does.
        recurrent_dropout: probability that y(t−1) of a unit is not fed back, one draw per sequence. For cells
            with local feedback, that the unit's own loop is cut (kept loops keep their gain).
        engine: ``"auto"`` or an engine's name.

    >>> import torch, longlag as ll
    >>> @ll.cell(gates="a z")
    ... def mine(a, z, y):
    ...     return ll.cells.sigmoid(z) * y + (1 - ll.cells.sigmoid(z)) * ll.cells.tanh(a)
    >>> layer = ll.Recurrent(mine, 4, 8)
    >>> y, state = layer(torch.randn(10, 3, 4))
    >>> y.shape, state.shape
    (torch.Size([10, 3, 8]), torch.Size([1, 3, 8]))
    """

    weight_ih_l0: Tensor

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        norm: str | None = None,
        recurrent_dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, recurrent_dropout
        )
        if not isinstance(cell, Cell):
            raise TypeError(f"{self._name}: cell must be made by @longlag.cell, got {type(cell).__name__}")
        engines.check(self._name, engine)
        if norm is not None:
            _door.one_of(self._name, "norm", norm, NORMS)
            if norm == "layer" and hidden_size < 2:
                raise ValueError(f"{self._name}: norm='layer' divides by H−1 and needs hidden_size >= 2, got 1")
        self.cell, self.norm, self.engine = cell, norm, engine
        self._scales_mask = cell.dense
        self._make_weights({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _make_weights(self, factory: dict) -> None:
        cell, H = self.cell, self.hidden_size
        rows_x, rows_y = len(cell.input_gates) * H, len(cell.recurrent_gates) * H
        for k, size in enumerate(self._input_sizes()):
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows_x, size)}
            if cell.dense:
                shapes["weight_hh"] = (rows_y, H)
            if self.bias:
                shapes["bias_ih"] = (rows_x,)
                if cell.dense:
                    shapes["bias_hh"] = (rows_y,)
            shapes |= dict.fromkeys(cell.params, (H,))
            if self.norm:
                shapes |= dict.fromkeys(["norm_weight", "norm_bias"], (len(cell.gates), H))
            for name, shape in shapes.items():
                self.register_parameter(name + self._suffix(k), nn.Parameter(torch.empty(shape, **factory)))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−1/√H, 1/√H) for weights and biases, as in torch; γ = 1, β = 0; the cell's values for its params."""
        bound = self.hidden_size**-0.5
        for name, parameter in self.named_parameters():
            own = name.rpartition("_l")[0].removeprefix("parametrizations.")
            if own in self.cell.params:
                name = name.removeprefix("parametrizations.").removesuffix(".original")
                value = self._initial_param(own).to(parameter)
                if parametrize.is_parametrized(self, name):
                    setattr(self, name, value)  # through the inverse of the parametrisation
                else:
                    parameter.copy_(value)
            elif own in ("norm_weight", "norm_bias"):
                parameter.fill_(1.0 if own == "norm_weight" else 0.0)
            else:
                parameter.uniform_(-bound, bound)

    def _initial_param(self, name: str) -> Tensor:
        """Initial values (H,) of one of the cell's params."""
        return torch.full((self.hidden_size,), self.cell.initial_params[name], dtype=torch.float64)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.cell.fed_back, (self.hidden_size,))

    @property
    def _weight(self) -> Tensor:
        return self.weight_ih_l0

    def weights(self, k: int) -> Weights:
        """The weights of layer k as an engine takes them; k counts layers, then directions."""
        cell, H, suffix = self.cell, self.hidden_size, self._suffix(k)
        W, U, b, b_hh, gamma, beta = (
            getattr(self, name + suffix, None)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "norm_weight", "norm_bias")
        )
        assert W is not None
        b_recurrent = norm = None
        if b is not None and b_hh is not None and cell.input_gates == cell.recurrent_gates:
            b = b + b_hh
        elif b is not None and b_hh is not None:
            rows = dict(zip(cell.recurrent_gates, b_hh.view(-1, H).unbind(0)))
            both = [rows[gate] if gate in rows else b.new_zeros(H) for gate in cell.input_gates]
            b = b + torch.cat(both)
            only = [row for gate, row in rows.items() if gate not in cell.input_gates]
            b_recurrent = torch.stack(only) if only else None
        if gamma is not None and beta is not None:
            norm = (engines.Norm.of_paper if self.norm == "layer" else engines.Norm)(gamma, beta, EPS)
        params = tuple(getattr(self, name + suffix) for name in cell.params)
        return Weights(W, b, U, b_recurrent, params, norm)

    def _run(
        self, k: int, x: Tensor, state: tuple[Tensor, ...], sequences: _door.Sequences, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        w = self.weights(k)
        return engines.run(
            self.engine,
            self.cell,
            x,
            w.W,
            w.b,
            w.U,
            state,
            w.params,
            bias=w.b_recurrent,
            norm=w.norm,
            mask=mask,
            lengths=sequences.lengths,
            reset=sequences.reset,
            reverse=self._runs_backwards(k),
        )

    def engine_for(self, x: Tensor) -> str:
        """Which engine would run x, and why."""
        return ": ".join(engines.choose(self.engine, x))

    def extra_repr(self) -> str:
        named = "" if type(self) is not Recurrent else f"{self.cell.name}, "
        norm = f", norm={self.norm!r}" if self.norm else ""
        return named + super().extra_repr() + norm


class Elman(Recurrent):
    """Elman network; weights are interchangeable with ``torch.nn.RNN``.

    y(t) = tanh(W x(t) + b_ih + U y(t−1) + b_hh) [ELMAN 1], or relu in place of tanh.

    Args:
        nonlinearity: ``"tanh"`` or ``"relu"``. The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> theirs, ours = torch.nn.RNN(3, 5), ll.Elman(3, 5)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(7, 2, 3)
    >>> torch.allclose(theirs(x)[0], ours(x)[0], atol=1e-6)
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        _door.one_of("Elman", "nonlinearity", nonlinearity, ("tanh", "relu"))
        cell = cells.elman if nonlinearity == "tanh" else cells.elman_relu
        super().__init__(
            cell, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )


class LSTM(Recurrent):
    """LSTM with a forget gate; weights are interchangeable with ``torch.nn.LSTM``.

    i, f, g, o = rows of W x(t) + b_ih + U y(t−1) + b_hh;
    c(t) = σ(f) c(t−1) + σ(i) tanh(g); y(t) = σ(o) tanh(c(t)) [LSTM-FG 25.20-25.25].

    Args:
        forget_bias: if given, the initial bias of the forget gates (1 keeps memories from the start).
            The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> y, (h, c) = ll.LSTM(3, 5, norm="layer", batch_first=True)(torch.randn(2, 7, 3), lengths=[7, 4])
    >>> bool((y[1, 4:] == 0).all()), torch.equal(h[0, 1], y[1, 3])
    (True, True)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        forget_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        if forget_bias is not None and not bias:
            raise ValueError("LSTM: forget_bias needs bias=True")
        self.forget_bias = forget_bias
        super().__init__(
            cells.lstm,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As `Recurrent`; the forget gate's two biases then sum to ``forget_bias``."""
        super().reset_parameters()
        if self.forget_bias is not None:
            forget = slice(self.hidden_size, 2 * self.hidden_size)
            for k in range(self.num_layers * self.directions):
                getattr(self, "bias_ih" + self._suffix(k))[forget] = self.forget_bias
                getattr(self, "bias_hh" + self._suffix(k))[forget] = 0.0


class GRU(Recurrent):
    """Gated recurrent units; weights are interchangeable with ``torch.nn.GRU``.

    y(t) = (1 − σ(z)) tanh(n + σ(r) m) + σ(z) y(t−1); n reads x(t) only, m reads y(t−1) only [GRU 1].

    Args: as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> theirs, ours = torch.nn.GRU(3, 5, 2, bidirectional=True), ll.GRU(3, 5, 2, bidirectional=True)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(7, 2, 3)
    >>> torch.allclose(theirs(x)[0], ours(x)[0], atol=1e-6)
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        super().__init__(
            cells.gru,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )
