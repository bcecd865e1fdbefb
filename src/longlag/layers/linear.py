"""One step of a layer together with its derivatives, for real-time learning and flow analysis.

B samples; s: the state of one sequence as a row of n numbers (`StateSpec.flatten`); p columns in one product.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from longlag.layers.state import Parts, State

if TYPE_CHECKING:
    from longlag.layers.layer import Layer

Gradients = dict[str, Tensor]  # path of a parameter -> gradient summed over the samples


class Direct(NamedTuple):
    """How parameters enter one step: ∂s(t)/∂θ at a constant s(t−1), as the product C ⊗ source.

    Attributes:
        key: a name for this block of parameters.
        C: ∂s/∂(rows of θ), (B, n′, rows).
        source: (B, width), which multiplies every row of θ; None: θ has one number per row.
        rows: indices of the n′ state values that the parameters can reach; None: all n.
        assign: gradient of the block (rows · width,) -> gradients by path.
        on_output: ∂y/∂(rows of θ), (B, O, rows), at a constant s(t−1).
    """

    key: str
    C: Tensor
    source: Tensor | None
    rows: Tensor | None
    assign: Callable[[Tensor], Gradients]
    on_output: Callable[[], Tensor]


class LinearStep(abc.ABC):
    """A step for B samples: its results, and products with its derivatives.

    Attributes:
        y: outputs (B, O).
        state: the new state, part by part.
    """

    y: Tensor
    state: Parts

    @abc.abstractmethod
    def push(self, ds: Tensor) -> Tensor:
        """J ds, J = ∂s(t)/∂s(t−1): changes (B, n, p) of the state before the step, propagated to the state after it."""

    @abc.abstractmethod
    def pull(self, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        """Errors after the step, propagated back to the state before it.

        Args:
            ds: (B, n, p) errors of the new state; dy: (B, O, p) errors of the output.

        Returns:
            Jᵀ ds + (∂y/∂s(t−1))ᵀ dy, (B, n, p); and a function that gives the errors of x_t, (B, I, p).
        """

    @abc.abstractmethod
    def influence(self, wanted: Collection[str]) -> tuple[Tensor, list[Direct]]:
        """J (B, n, n), and how the parameters with these paths enter the new state."""

    @abc.abstractmethod
    def gradients(self, dy: Tensor, wanted: Collection[str]) -> tuple[Tensor, Gradients]:
        """For an error dy (B, O) of the output: the error of s(t−1), (B, n), and this step's gradients by path."""

    @abc.abstractmethod
    def at(self, samples: slice) -> LinearStep:
        """The same step for a slice of its samples."""

    def jacobian(self) -> Tensor:
        """J (B, n, n)."""
        n = sum(part.numel() for part in self.state) // max(len(self.y), 1)
        eye = torch.eye(n, dtype=self.y.dtype, device=self.y.device)
        return self.push(eye.expand(len(self.y), -1, -1))

    def output_jacobian(self) -> Tensor:
        """∂y(t)/∂s(t−1), (B, O, n)."""
        n, O = sum(part.numel() for part in self.state) // max(len(self.y), 1), self.y.shape[-1]
        eye = torch.eye(O, dtype=self.y.dtype, device=self.y.device).expand(len(self.y), -1, -1)
        return self.pull(eye.new_zeros(len(self.y), n, O), eye)[0].mT

    @property
    def gates(self) -> dict[str, Tensor]:
        """Gate activations as shares of their range 0..1, each (B, units), by name; empty for layers without gates."""
        return {}

    @property
    def net_inputs(self) -> list[dict[str, Tensor]]:
        """Net inputs of a layer made of one cell, level by level: gate -> (B, H). Empty for other layers."""
        return []


class AutogradStep(LinearStep):
    """Any layer's step, differentiated by ``torch.func``.

    Args:
        layer: on the reference engine, dropout off.
        results: outputs and new state, if already computed.
    """

    def __init__(
        self, layer: Layer, x: Tensor, state: Parts, teacher: Tensor | None, results: tuple[Tensor, Parts] | None = None
    ) -> None:
        self.layer, self.x, self.spec, self.before, self.teacher = layer, x, layer.state_spec, state, teacher
        if results is None:
            with torch.no_grad():
                y, new = layer.taught_step(x, self.spec.whole(state), teacher)
            results = y, self.spec.parts(new)
        self.y, self.state = results
        if layer.draws and teacher is None:
            self.teacher = self.state[0]  # the drawn values are constants when the step is run again

    def _rows(self, parts: Parts) -> Tensor:
        return self.spec.flatten(parts) if self.spec.shapes else self.x.new_zeros(len(self.x), 0)

    def _run(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        y, new = self.layer.taught_step(x, self.spec.whole(self.spec.unflatten(s)), self.teacher)
        return y, self._rows(self.spec.parts(new))

    @torch.no_grad()
    def push(self, ds: Tensor) -> Tensor:
        # The pull is linear, so the pull of the pull is the push. (Loading forward-mode AD would warn.)
        s = self._rows(self.before)
        back = vjp(lambda s: self._run(self.x, s)[1], s)[1]
        forth = vjp(lambda d: back(d)[0], torch.zeros_like(s))[1]
        return vmap(forth)(ds.movedim(-1, 0))[0].movedim(0, -1)

    @torch.no_grad()
    def pull(self, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        if dy is None:
            dy = ds.new_zeros(*self.y.shape, ds.shape[-1])
        back = vjp(self._run, self.x, self._rows(self.before))[1]
        dx, before = vmap(lambda d_y, d_s: back((d_y, d_s)))(dy.movedim(-1, 0), ds.movedim(-1, 0))
        return before.movedim(0, -1), lambda: dx.movedim(0, -1)

    def jacobian(self) -> Tensor:
        n = self.spec.size
        eye = torch.eye(n, dtype=self.y.dtype, device=self.y.device).expand(len(self.y), -1, -1)
        return self.pull(eye)[0].mT  # one reverse pass; `push` takes two

    @torch.no_grad()
    def influence(self, wanted: Collection[str]) -> tuple[Tensor, list[Direct]]:
        named = {name: p.detach() for name, p in self.layer.named_parameters() if name in wanted}
        if not self.spec.shapes:
            return self.x.new_zeros(len(self.x), 0, 0), []
        J, C = self._influence_on(named, output=False)
        shapes = {name: p.shape for name, p in named.items()}

        def assign(gradient: Tensor) -> Gradients:
            pieces = gradient.split([shape.numel() for shape in shapes.values()])
            return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces)}

        def on_output() -> Tensor:
            return self._influence_on(named, output=True)[1]

        return J, [Direct("parameters", C, None, None, assign, on_output)] if named else []

    @torch.no_grad()
    def _influence_on(self, named: dict[str, Tensor], output: bool) -> tuple[Tensor, Tensor]:
        """J (B, n, n) and ∂s/∂θ (B, n, w); or the same of the output."""
        samples = [self._influence_on_sample(b, named, output) for b in range(len(self.x))]
        J, C = (torch.stack(pieces) for pieces in zip(*samples))
        return J, C

    def _influence_on_sample(self, b: int, named: dict[str, Tensor], output: bool) -> tuple[Tensor, Tensor]:
        x, teacher = self.x[b : b + 1], None if self.teacher is None else self.teacher[b : b + 1]

        def run(parameters: dict[str, Tensor], s: Tensor) -> Tensor:
            before = self.spec.whole(self.spec.unflatten(s))
            y, after = functional_call(_Taught(self.layer), parameters, (x, before, teacher))
            return y[0] if output else self.spec.flatten(after)[0]

        under = {f"layer.{name}": p for name, p in named.items()}
        s, back = vjp(run, under, self._rows(self.before)[b : b + 1])  # pyright: ignore[reportAssignmentType]
        by_parameter, by_state = vmap(back)(torch.eye(len(s), dtype=s.dtype, device=s.device))
        empty = s.new_zeros(len(s), 0)
        return by_state.flatten(1), torch.cat([empty, *(g.reshape(len(s), -1) for g in by_parameter.values())], 1)

    def gradients(self, dy: Tensor, wanted: Collection[str]) -> tuple[Tensor, Gradients]:
        named = {name: p for name, p in self.layer.named_parameters() if name in wanted}
        s = self._rows(self.before).detach().requires_grad_()
        with torch.enable_grad():
            y, _ = self._run(self.x, s)
        ds, *found = torch.autograd.grad(y, [s, *named.values()], dy, materialize_grads=True)
        return ds, dict(zip(named, found))

    def at(self, samples: slice) -> AutogradStep:
        which = (slice(None),) * self.spec.batch_axis + (samples,)
        before, after = (tuple(part[which] for part in parts) for parts in (self.before, self.state))
        teacher = None if self.teacher is None else self.teacher[samples]
        return AutogradStep(self.layer, self.x[samples], before, teacher, (self.y[samples], after))


class _Taught(torch.nn.Module):
    """`Layer.taught_step` as a forward method, for ``functional_call``."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: State, teacher: Tensor | None) -> tuple[Tensor, State]:
        return self.layer.taught_step(x, state, teacher)


def influential(layer: Layer) -> list[str]:
    """Names of the parameters on which a layer's new state depends, found by autograd."""
    named = dict(layer.named_parameters())
    with torch.enable_grad():
        _, new = layer.taught_step(layer.any_weight.new_zeros(1, layer.input_size), None, None)
        total = sum(part.sum() for part in layer.state_spec.parts(new))
    trained = {name: p for name, p in named.items() if p.requires_grad}
    if not isinstance(total, Tensor) or not total.requires_grad:
        return []
    found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return [name for name, gradient in zip(trained, found) if gradient is not None]


def times(M: Tensor, columns: Tensor) -> Tensor:
    """M columns for columns (B, n, p), computed as columnsᵀ Mᵀ: ten times faster in BLAS when p is small."""
    return (columns.mT @ M.t()).mT
