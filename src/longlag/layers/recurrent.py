"""`Recurrent`: any cell as a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from longlag import engines
from longlag.cells import Cell, diagonal
from longlag.engines import Weights, reference
from longlag.layers import structures, validation
from longlag.layers._cell_steps import CellSteps
from longlag.layers._cell_weights import MATRICES
from longlag.layers._numbers import level_numbers
from longlag.layers.bounds import gain_bound
from longlag.layers.cell_module import CellModule
from longlag.layers.linear import LinearStep
from longlag.layers.linear_cells import CellStep
from longlag.layers.state import Parts, State
from longlag.layers.step_function import StepFunction
from longlag.layers.units import CutRecurrent, LocalLevels, NotLocal, UnitGraph

NORMS = ("layer", "layer_torch")


class Recurrent(CellSteps):
    """A stack of recurrent layers made of one cell.

    For every gate, a = W x(t) + b_ih + U y(t−1) + b_hh; then the cell's equations.

    Args:
        cell: the equations; see `longlag.cell`.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as in ``torch.nn.LSTM``.
        norm: None; ``"layer"`` normalises every gate's net input over the units, variance with divisor H−1;
            ``"layer_torch"`` with divisor H, as ``torch.nn.LayerNorm`` does.
        recurrent: structure of U: ``"dense"``; ``"diagonal"``, one weight per unit; ``"heads:4"``, units read their own
            head; ``"low_rank:8"``; ``"sparse:0.1"``, a fixed random mask of this density; ``"antisymmetric"``.
        recurrent_mask: (H, H) or (G·H, H) of zeros and ones: connections that do not exist.
        recurrent_signs: (H,) of 1 and −1: the sign of all connections that leave a unit (Dale's law).
        proj_size: as in ``torch.nn.LSTM``: outputs are projected to so many features, which the next step reads.
        learn_initial_state: train the state before the first step, ``initial_y_l0``, ….
        noise_seed: seed of the noise that the layer draws for cells with ``noise``, while it trains.
        fixed: values of the cell's fixed numbers, by name, each one number or (H,).
        recurrent_dropout: probability that y(t−1) of a unit is not fed back, one draw per sequence. For cells
            with local feedback: probability that the unit's own loop is cut (the other loops keep their gain).
        engine: ``"auto"`` or an engine's name.

    Attributes:
        nonzeros: set this to the number of entries in a sparse ``weight_hh`` (per level) to let the CPU engine read
            only these where that is faster; 0 (the default): the matrix is dense. The results do not depend on it.

    >>> import torch, longlag as ll
    >>> @ll.cell(gates="a z")
    ... def mine(a, z, y):
    ...     return ll.cells.sigmoid(z) * y + (1 - ll.cells.sigmoid(z)) * ll.cells.tanh(a)
    >>> layer = ll.Recurrent(mine, 4, 8)
    >>> y, state = layer(torch.randn(10, 3, 4))
    >>> y.shape, state.shape
    (torch.Size([10, 3, 8]), torch.Size([1, 3, 8]))
    """

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
        recurrent: str = "dense",
        recurrent_mask: Tensor | None = None,
        recurrent_signs: Tensor | None = None,
        learn_initial_state: bool = False,
        proj_size: int = 0,
        noise_seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **fixed: Any,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, recurrent_dropout
        )
        if not isinstance(cell, Cell):
            raise TypeError(f"{self.class_name}: cell must be made by @longlag.cell, got {type(cell).__name__}")
        if recurrent == "diagonal":
            if norm is not None:
                raise ValueError(f"{self.class_name}: norm must be None for recurrent='diagonal', got {norm!r}")
            cell = diagonal(cell)
        engines.check_for_cells(self.class_name, engine)
        if norm is not None:
            validation.one_of(self.class_name, "norm", norm, NORMS)
            if norm == "layer" and hidden_size < 2:
                raise ValueError(f"{self.class_name}: norm='layer' divides by H−1 and needs hidden_size >= 2, got 1")
        self.norm, self.engine = norm, engine
        self.proj_size = validation.positive(self.class_name, "proj_size", proj_size, least=0)
        if proj_size:
            self._check_projection(
                cell, recurrent != "dense" or recurrent_mask is not None or recurrent_signs is not None
            )
        self.nonzeros = 0
        self.cell = cell  # pyright: ignore[reportIncompatibleVariableOverride]
        self._scales_mask = cell.dense
        self._make_weights({"device": device, "dtype": dtype}, fixed, learn_initial_state)
        self.learns_initial_state = learn_initial_state and bool(cell.fed_back)
        self._zeros_by_default = not self.learns_initial_state
        self._noise_seed = noise_seed
        layers = [[stem + self.suffix(k) for stem in MATRICES] for k in range(num_layers * self.directions)]
        self._names = [[name if name in self._parameters else None for name in names] for names in layers]
        self.reset_parameters()
        self.flatten_parameters()
        structures.register(self, recurrent, recurrent_mask, recurrent_signs)
        self._make_steps()

    def _check_projection(self, cell: Cell, structured: bool) -> None:
        owner, P = self.class_name, self.proj_size
        if self.hidden_size <= P:
            raise ValueError(f"{owner}: proj_size must be smaller than hidden_size {self.hidden_size}, got {P}")
        if not cell.dense or cell.reads_y or not cell.reads_only_y:
            raise ValueError(f"{owner}: proj_size needs a cell that reads y through U only, and {cell.name} does not")
        if structured:
            raise ValueError(f"{owner}: proj_size needs recurrent='dense' without mask and signs")

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        self.flatten_parameters()
        return moved

    def flatten_parameters(self) -> None:
        """On CUDA, put the weights of each layer into one block of memory, as cuDNN wants them."""
        for names in self._names:
            weights = [self._parameters[name] for name in names[:4] if name in self._parameters]
            if len(weights) in (2, 4) and all(
                w is not None and type(w) is torch.nn.Parameter and w.is_cuda for w in weights
            ):
                engines.join([w for w in weights if w is not None])

    _steps_are_runs = True

    def weights(self, k: int) -> Weights:
        """The weights of layer k as the equations name them; k counts layers, then directions."""
        return self._weights_apart(k).with_summed_biases(self.cell)

    def _weights_apart(self, k: int) -> Weights:
        """The same with bias_ih and bias_hh kept separate: engines add them faster than autograd."""
        cell, norm, names = self.cell, None, self._names[k]
        W, U, b, b_hh, gamma, beta, R = self._values(names)
        U = U if R is None else U @ R  # the engines' units read each other before the projection
        if b is not None and b_hh is not None:
            b = b, b_hh
        if gamma is not None and beta is not None:
            norm = self._norm(gamma, beta)
        params = tuple(self._values([name + self.suffix(k) for name in cell.params])) if cell.params else ()
        recurrent = names[1]
        heads = 1 if recurrent is None or recurrent in self._parameters else structures.heads(self, recurrent)
        return Weights(W, b, U, None, params, norm, self.nonzeros, heads)

    def _run(
        self, k: int, x: Tensor, state: tuple[Tensor, ...] | None, sequences: validation.Sequences, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        R = self._values(self._names[k][-1:])[0] if self.proj_size else None
        if R is not None and state:  # outputs whose projection is the given one
            state = (state[0] @ engines.right_inverse(R).t(), *state[1:])
        y, ends = engines.run(
            self.engine, self.cell, x, self._weights_apart(k), state or (),
            mask=mask, lengths=sequences.lengths, reset=sequences.reset,
            reverse=self.bidirectional and self._runs_backwards(k),
            numbers=level_numbers(self, sequences) if self.cell.per_step else (),
        )  # fmt: skip
        return (y, ends) if R is None else (y @ R.t(), (ends[0] @ R.t(), *ends[1:]))

    def trajectory(self, x: Tensor, state: State | None = None) -> tuple[Tensor, Tensor]:
        """All outputs and states of a run, level by level; see `Layer.trajectory`."""
        self._refuse_two_directions("trajectory")
        if self.cell.per_step or self.proj_size:
            return super().trajectory(x, state)
        parts, below, levels = self.validate_state(state, x.shape[1]), x, []
        for k in range(self.num_layers):
            w = self.weights(k)
            net = linear(below, w.W, w.b).unflatten(-1, (len(self.cell.input_gates), -1))
            states, outputs = [tuple(part[k] for part in parts)], []
            for a in net.unbind(0):
                y, new = reference.step(self.cell, a, w.U, states[-1], w.params, bias=w.b_recurrent, norm=w.norm)
                outputs.append(y)
                states.append(new)
            below = torch.stack(outputs)
            levels.append([torch.stack(part) for part in zip(*states)])  # parts, each (T + 1, B, H)
        rows = [part for parts in zip(*levels) for part in parts]
        return below, torch.cat(rows, -1) if rows else x.new_zeros(len(x) + 1, x.shape[1], 0)

    # --------------------------------------------------------------------------------------------- derivatives
    def linearise(self, x_t: Tensor, state: State | None = None, *, teacher: Tensor | None = None) -> LinearStep:
        """One step of a batch with its derivatives, from the cell's partials where `has_partials`."""
        if not self.has_partials:
            return super().linearise(x_t, state, teacher=teacher)
        with torch.no_grad():
            return CellStep(self, x_t, self.validate_state(state, len(x_t)))

    @property
    def has_partials(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.cell.reads_only_y and not self.cell.per_step and not self.proj_size

    def state_parameters(self) -> list[str]:
        """Every parameter, by the name of the attribute in the equations."""
        params = [name + self.suffix(k) for k in range(len(self._names)) for name in self.cell.params]
        return [name for names in self._names for name in names if name is not None] + params

    def local_units(self, *, cut: bool = False) -> UnitGraph:
        """One group of units per level, if the cell is local; under the cuts of 1997, the one level of a dense cell."""
        if not self.has_partials:
            raise NotLocal("has inputs per step, a projection, or a matrix that reads more than y")
        if not cut:
            if self.cell.dense or self.norm is not None:
                raise NotLocal("feeds units back to each other" if self.cell.dense else "couples units by its norm")
            return LocalLevels(self)
        if not self.cell.dense:
            raise NotLocal("feeds back nothing through a matrix, so there is nothing to cut (LocalForward is exact)")
        if self.num_layers > 1:
            raise NotLocal(f"has {self.num_layers} layers, and the cuts are defined for one")
        if self.norm is not None:
            raise NotLocal(f"has norm={self.norm!r}, through which units read each other")
        return CutRecurrent(self)

    @torch.no_grad()
    def gain_bound(self) -> tuple[float, str] | None:
        """For one level without norm, of cells whose slopes are known. [ELMAN 6 γ]"""
        if self.num_layers > 1 or self.norm is not None:
            return None
        w = self.weights(0)
        return gain_bound(self.cell, w.U, w.params)

    def as_cell(self) -> CellModule:
        """This layer as a module like ``torch.nn.LSTMCell``: one step, the same parameters under the cell's names.

        >>> import torch, longlag as ll
        >>> cell = ll.LSTM(3, 5).as_cell()
        >>> h, c = cell(torch.randn(2, 3))
        >>> h, c = cell(torch.randn(2, 3), (h, c))
        >>> h.shape, list(cell.state_dict())
        (torch.Size([2, 5]), ['weight_ih', 'weight_hh', 'bias_ih', 'bias_hh'])
        """
        return CellModule(self)

    def engine_for(self, x: Tensor) -> str:
        # in the present mode; without lengths and reset
        mask = x.new_ones(()) if self.training and self.recurrent_dropout else None
        return ": ".join(engines.choose_for_cell(self.engine, self.cell, x, self._weights_apart(0), mask=mask))

    @staticmethod
    def from_step(
        step: Callable[..., tuple[Tensor, Tensor | Parts]],
        input_size: int,
        state: int | Mapping[str, int],
        params: Mapping[str, Tensor] | None = None,
        *,
        batch_first: bool = False,
    ) -> StepFunction:
        """A layer from any torch code that computes one step: for steps that are not pointwise equations of a cell.

        The layer serves sequences with ``lengths`` and ``reset``, learning rules (exact RTRL included), `flow` and
        `Online`. Autograd differentiates the step; nothing is compiled. `Chain` stacks layers.

        Args:
            step: ``step(x_t, state, params) -> (y, new state)`` for a batch: x_t (B, I), the state (B, n), or a tuple
                of its parts, params by name. A module is called as ``step(x_t, state)`` and owns its parameters.
            state: size of the state, or of each of its parts by name.
            params: initial values of the trained parameters, by name.

        >>> import torch, longlag as ll
        >>> def fast_weights(x, state, p):            # the state holds a matrix: not a pointwise cell
        ...     h, A = state
        ...     A = A.unflatten(-1, (4, 4)) * 0.9 + 0.5 * h.unsqueeze(-1) * h.unsqueeze(-2)
        ...     h = torch.tanh(x @ p["W"] + h @ p["U"] + (A @ h.unsqueeze(-1)).squeeze(-1))
        ...     return h, (h, A.flatten(1))
        >>> params = {"W": torch.randn(3, 4), "U": torch.randn(4, 4)}
        >>> layer = ll.Recurrent.from_step(fast_weights, 3, {"h": 4, "A": 16}, params)
        >>> y, (h, A) = layer(torch.randn(20, 2, 3), lengths=torch.tensor([20, 5]))
        >>> layer.engine_for(y)
        'reference: the step is torch code, which is not compiled'
        """
        return StepFunction(step, input_size, state, params, batch_first=batch_first)

    def extra_repr(self) -> str:
        named = "" if type(self) is not Recurrent else f"{self.cell.name}, "
        norm = f", norm={self.norm!r}" if self.norm else ""
        return named + super().extra_repr() + norm
