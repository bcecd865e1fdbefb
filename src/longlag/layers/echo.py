"""Echo state network: a fixed random reservoir, a read-out solved in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longlag import engines
from longlag.layers import validation
from longlag.layers._reservoir import argument_for, gram, random_matrix, ridge_solution, spectral_radius
from longlag.layers.layer import Layer
from longlag.layers.local import Leaky
from longlag.layers.state import StateSpec

SUMS = ("_xx", "_xd", "_x", "_d", "_n")  # over the steps to learn from: x xᵀ, x dᵀ, x, d, 1; x = [h(t); x(t)]
PROBE = 20  # steps on which a reservoir is scaled to a radius of its Jacobian


class EchoState(Layer):
    """Echo state network (Jaeger 2001) with leaky units and a ridge read-out.

    h(t) = (1−a) h(t−1) + a tanh(U h(t−1) + W x(t) + b), U, W, b fixed [ESN 4 h];
    y(t) = V [h(t); x(t)] + c, (V, c) = argmin Σ ‖y − d‖² + λ ‖V‖², from accumulated XᵀX, XᵀD, ΣX and ΣD [ESN 4 V].

    Args:
        input_size, hidden_size, output_size: n, m, l.
        spectral_radius: ρ(U), the modulus of the largest eigenvalue; above 200 units to a relative error below 1e-3.
        jacobian_radius: if given, U is scaled until the mean spectral radius of the step's Jacobian has this value
            (`scale`, on uniform inputs in ±1), in place of ρ(U) = ``spectral_radius``.
        leak: a in (0, 1].
        density: share of connections in U that exist.
        input_scale, bias_scale: W and b are uniform in ± these.
        ridge: λ. The bias c is not penalised.
        warmup: first steps of every sequence from the initial state, which `fit` and `accumulate` leave out.
        input_to_output: whether the read-out sees x(t) too.
        recurrent_dropout: as in `Recurrent`; it acts in ``train()`` mode, `fit` included.
        seed: seed of the reservoir.

    >>> import torch, longlag as ll
    >>> x = torch.sin(torch.arange(400.0) / 5).view(-1, 1, 1).double()
    >>> net = ll.EchoState(1, 50, 1, warmup=50, dtype=torch.float64).fit(x[:-1], x[1:])
    >>> bool((net.predict(x[:-1]) - x[1:])[50:].abs().max() < 1e-3)
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        spectral_radius: float = 0.9,
        jacobian_radius: float | None = None,
        leak: float = 1.0,
        density: float = 0.1,
        input_scale: float = 1.0,
        bias_scale: float = 0.0,
        ridge: float = 1e-6,
        warmup: int = 0,
        input_to_output: bool = True,
        batch_first: bool = False,
        recurrent_dropout: float = 0.0,
        seed: int = 0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self._arguments = arguments
        self.last_state: Tensor | None = None
        numbers = ["leak", "density", "spectral_radius", "ridge", "input_scale", "bias_scale"]
        for name in numbers + ["jacobian_radius"] * (jacobian_radius is not None):
            validation.number("EchoState", name, arguments[name])
        for name, value in {"leak": leak, "density": density}.items():
            if not 0 < value <= 1:
                raise ValueError(f"EchoState: {name} must be in (0, 1], got {value!r}")
        engines.check_for_cells("EchoState", engine)
        self.input_size = validation.positive("EchoState", "input_size", input_size)
        self.hidden_size = validation.positive("EchoState", "hidden_size", hidden_size)
        self.output_size = validation.positive("EchoState", "output_size", output_size)
        self.warmup = validation.positive("EchoState", "warmup", warmup, least=0)
        self.spectral_radius, self.leak, self.density, self.ridge = spectral_radius, leak, density, ridge
        self.input_scale, self.bias_scale, self.seed = input_scale, bias_scale, seed
        self.batch_first, self.input_to_output = batch_first, input_to_output
        self.recurrent_dropout = validation.probability("EchoState", "recurrent_dropout", recurrent_dropout)
        width = hidden_size + (input_size if input_to_output else 0)
        self.readout = nn.Linear(width, output_size, device=device, dtype=dtype)
        given: Any = {"recurrent_dropout": recurrent_dropout, "engine": engine, "dtype": dtype}
        self.reservoir = Leaky(input_size, hidden_size, alpha=1 / leak, device="meta", **given).requires_grad_(False)
        self.reservoir.to_empty(device=self.readout.weight.device)  # `reset_parameters` draws the weights
        for name in SUMS:
            self.register_buffer(name, None, persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the reservoir from its seed and scale it; clear the accumulated sums."""
        generator = torch.Generator().manual_seed(self.seed)
        m = self.hidden_size

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1

        U, radius = random_matrix(m, self.density, uniform, generator)
        if not radius and self.spectral_radius:
            raise ValueError(f"EchoState: density {self.density} leaves no loop in a reservoir of {m} units")
        U.values.mul_(self.spectral_radius / radius if radius else 0.0)  # [ESN 4 ρ]
        U.into(self.reservoir.get_parameter("weight_hh_l0"))
        self.reservoir.nonzeros = len(U.places)  # the engine reads only these
        drawn = {
            "weight_ih_l0": uniform(m, self.input_size) * self.input_scale,
            "bias_ih_l0": uniform(m) * self.bias_scale,
            "bias_hh_l0": torch.zeros(m),
            "alpha_l0": torch.full((m,), 1 / self.leak, dtype=torch.float64),
        }
        for name, value in drawn.items():
            self.reservoir.get_parameter(name).copy_(value)
        l, width = self.readout.weight.shape
        like = {"device": self.readout.weight.device, "dtype": torch.float64}
        self._set_sums([torch.zeros(shape, **like) for shape in ((width, width), (width, l), (width,), (l,), ())])
        if (wanted := self._arguments["jacobian_radius"]) is not None:
            self.scale(uniform(PROBE, self.input_size).to(self.any_weight), wanted)

    @torch.no_grad()
    def scale(self, x: Tensor, jacobian_radius: float) -> EchoState:
        """Scale U so that the mean spectral radius of the Jacobian along a run over x has this value [ESN 4 J].

        A larger U does not always give a larger Jacobian, because the units saturate: a radius that no factor up to 100
        times ρ(U) = 1 gives is refused, and U stays as it is.
        """
        U = self.reservoir.get_parameter("weight_hh_l0")
        before, radius = U.clone(), spectral_radius(U.double().cpu())
        if not radius:
            raise ValueError("EchoState: scale needs a reservoir with a loop, got spectral_radius=0")

        def reached(rho: float) -> float:
            U.copy_(before * (rho / radius))
            return self.jacobian_radius(x)

        try:
            self.spectral_radius = argument_for(jacobian_radius, reached)
        except ValueError as error:
            U.copy_(before)
            raise ValueError(f"EchoState: jacobian_radius {error} on these inputs") from None
        return self

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over whole sequences: x (T, B, n), (B, T, n) if ``batch_first``, or (T, n); state (1, B, m)."""
        s = validation.sequences(self, x, lengths, reset)
        features, state = self._features(s, state)
        y = self.readout(features)
        if s.lengths is not None:
            y = torch.where(_active(s).unsqueeze(-1), y, torch.zeros_like(y))
        return s.restore(y), state

    @torch.no_grad()
    def predict(self, x: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None) -> Tensor:
        """The outputs alone, without gradients."""
        return self(x, state, lengths=lengths)[0]

    def fit(
        self, x: Tensor, targets: Tensor, *, lengths: Tensor | None = None, scored: Tensor | None = None
    ) -> EchoState:
        """Solve for the read-out from these sequences alone; targets are laid out like x, with l features.

        The state after the last step is kept in ``last_state``: pass it to `predict` to continue after ``x``.
        scored: (T, B) bool, the steps that have a target, after ``warmup``; all by default.
        """
        sums, self.last_state = self._sums(x, targets, None, lengths, scored)
        self._set_sums(sums)
        return self.solve()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as in scikit-learn's estimators."""
        return dict(self._arguments)

    def set_params(self, **params: Any) -> EchoState:
        """Set arguments of the constructor; the reservoir is drawn again and the read-out is reset."""
        unknown = sorted(params.keys() - self._arguments.keys())
        if unknown:
            raise ValueError(f"EchoState: {unknown[0]!r} is not one of {', '.join(self._arguments)}")
        self.__init__(**{**self._arguments, **params})
        return self

    def clone(self) -> EchoState:
        """An untrained network with the same arguments."""
        return EchoState(**self._arguments)

    @torch.no_grad()
    def accumulate(
        self, x: Tensor, targets: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Tensor:
        """Add a piece of a stream to XᵀX and XᵀD; memory does not grow. Returns the state for the next piece.

        Without a state the piece starts from the initial state, and its first ``warmup`` steps are left out.
        """
        sums, state = self._sums(x, targets, state, lengths)
        for name, more in zip(SUMS, sums):
            getattr(self, name).add_(more)
        return state

    @torch.no_grad()
    def _sums(
        self, x: Tensor, targets: Tensor, state: Tensor | None, lengths: Tensor | None, scored: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """The sums (`SUMS`) and the final state of one piece."""
        s = validation.sequences(self, x, lengths, None)
        d = validation.like("EchoState", "targets", targets, self.readout.weight)
        wanted = (*x.shape[:-1], self.output_size)
        if targets.shape != wanted:
            raise ValueError(f"EchoState: targets must have shape {wanted}, got {tuple(targets.shape)}")
        d = (d.transpose(0, 1) if self.batch_first else d) if s.batched else d.unsqueeze(1)
        start = self.warmup if state is None else 0
        if start >= s.steps:
            raise ValueError(f"EchoState: warmup must leave steps to learn from: {start} of {s.steps}")
        features, state = self._features(s, state)
        if s.lengths is None and scored is None:
            X, D = features[start:].flatten(0, 1).double(), d[start:].flatten(0, 1).double()
        else:
            used = _active(s) if scored is None else _active(s) & scored
            used[:start] = False
            X, D = features[used].double(), d[used].double()
        x_sum, d_sum = X.sum(0), D.sum(0)  # finite if and only if all their terms are
        if not bool(torch.isfinite(x_sum).all()) or not bool(torch.isfinite(d_sum).all()):
            raise ValueError("EchoState: input and targets must be finite, got NaN or infinity")
        return [gram(X), X.t() @ D, x_sum, d_sum, X.new_tensor(len(X))], state

    def _set_sums(self, sums: list[Tensor]) -> None:
        for name, value in zip(SUMS, sums):
            setattr(self, name, value)

    @torch.no_grad()
    def solve(self) -> EchoState:
        """Set the read-out to the ridge solution of the accumulated sums."""
        xx, xd, x, d, n = (getattr(self, name) for name in SUMS)
        if not float(n):
            raise ValueError("EchoState: solve needs accumulated data, got none")
        A, B = torch.addr(xx, x, x / n, alpha=-1), torch.addr(xd, x, d / n, alpha=-1)  # of x − x̄ and d − d̄ [ESN 4 V]
        V = ridge_solution(A.cpu(), B.cpu(), self.ridge).to(d)
        self.readout.weight.copy_(V.t())
        self.readout.bias.copy_((d - x @ V) / n)
        return self

    @torch.no_grad()
    def jacobian_radius(self, x: Tensor) -> float:
        """Mean spectral radius of J(t) = (1−a) I + a diag(1−τ²) U along a run, τ = tanh of the net input."""
        h, _ = self.reservoir(validation.sequences(self, x, None, None).x)
        past = torch.cat([h.new_zeros(1, *h.shape[1:]), h[:-1]])
        slope = 1 - ((h - (1 - self.leak) * past) / self.leak) ** 2
        U = self.reservoir.get_parameter("weight_hh_l0")
        own = (1 - self.leak) * torch.eye(self.hidden_size, dtype=h.dtype, device=h.device)
        J = (own + self.leak * diagonal.unsqueeze(-1) * U for diagonal in slope.flatten(0, 1))  # [ESN 4 J]
        return float(np.mean([spectral_radius(step.double().cpu()) for step in J]))

    @property
    def state_spec(self) -> StateSpec:
        return self.reservoir.state_spec

    def gain_bound(self) -> tuple[float, str] | None:
        return self.reservoir.gain_bound()

    def engine_for(self, x: Tensor) -> str:
        return self.reservoir.engine_for(x)

    @property
    def any_weight(self) -> Tensor:
        return self.readout.weight

    def _features(self, s: validation.Sequences, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """[h(t); x(t)] (T, B, m + n) and the final state, in the caller's layout."""
        if state is not None:
            shape = (1, s.batch, self.hidden_size) if s.batched else (1, self.hidden_size)
            (state,) = validation.state_parts("EchoState", state, self.state_spec.names, [shape], self.any_weight)
            state = state if s.batched else state.unsqueeze(1)
        h, new = self.reservoir(s.x, state, lengths=s.lengths, reset=s.reset)  # [ESN 4 h]
        features = torch.cat([h, s.x], -1) if self.input_to_output else h
        return features, new if s.batched else new.squeeze(1)

    def extra_repr(self) -> str:
        return f"spectral_radius={self.spectral_radius}, leak={self.leak}, ridge={self.ridge}"


def _active(s: validation.Sequences) -> Tensor:
    """(T, B) bool: steps that belong to a sequence."""
    steps = torch.arange(s.steps, device=s.x.device)[:, None].expand(s.steps, s.batch)
    return steps < s.lengths if s.lengths is not None else torch.ones_like(steps, dtype=torch.bool)
