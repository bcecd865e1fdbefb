"""One level of a stack of cells at one step: values, partials, and layer normalisation. B samples, H units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import linear

from longlag.cells import Cell
from longlag.engines import Norm, Weights, reference


class Normed(NamedTuple):
    """Layer normalisation r̂ = (r − μ)/σ of one gate, linearised: ∂r̂/∂r = (I − 11ᵀ/H − r̂ r̂ᵀ/H)/σ. [LN-RNN 5 dr]"""

    unit: Tensor  # r̂ (B, H)
    scale: Tensor  # σ (B, 1)

    @classmethod
    def of(cls, r: Tensor, eps: float) -> Normed:
        """Normalise r (B, H)."""
        scale = (r.var(-1, keepdim=True, correction=0) + eps).sqrt()
        return cls((r - r.mean(-1, keepdim=True)) / scale, scale)

    def __call__(self, d: Tensor) -> Tensor:
        """∂r̂/∂r d for d (B, H, p). The matrix is symmetric: this is also the product with its transpose."""
        unit = self.unit.unsqueeze(-1)
        return (d - d.mean(1, keepdim=True) - unit * (unit * d).mean(1, keepdim=True)) / self.scale.unsqueeze(-1)


class Level(NamedTuple):
    """One level of the stack at this step."""

    weights: Weights
    read: Tensor  # the input of W, (B, width)
    past: dict[str, Tensor]  # the parts of the state before the step, each (B, H)
    nets: dict[str, Tensor]  # net inputs of the gates, normalised if there is a norm, each (B, H)
    partials: Mapping[tuple[str, str], Tensor | float]  # ∂output/∂input, (B, H, 1) or a constant
    norms: dict[str, Normed]

    def at(self, samples: slice) -> Level:
        """The same at some of the samples."""
        return Level(
            self.weights,
            self.read[samples],
            {name: part[samples] for name, part in self.past.items()},
            {name: net[samples] for name, net in self.nets.items()},
            {key: p[samples] if isinstance(p, Tensor) else p for key, p in self.partials.items()},
            {gate: Normed(norm.unit[samples], norm.scale[samples]) for gate, norm in self.norms.items()},
        )


def step_level(cell: Cell, w: Weights, x: Tensor, past: dict[str, Tensor]) -> tuple[Level, dict[str, Tensor]]:
    """One level's step and its partials; outputs by name."""
    net = linear(x, w.W, w.b).unflatten(-1, (len(cell.input_gates), -1))
    values = reference.cell_inputs(cell, net, w.U, tuple(past.values()), w.params, bias=w.b_recurrent)
    norms = {}
    if w.norm is not None:
        norms = {gate: Normed.of(r, w.norm.eps) for gate, r in zip(cell.gates, values)}
        scaled = zip(norms.values(), w.norm.weight, w.norm.bias)
        values[: len(norms)] = [gamma * norm.unit + beta for norm, gamma, beta in scaled]
    outputs, found = cell.with_partials(cell.outputs)(*values)
    shape = (len(x), net.shape[-1])
    partials = {key: p.expand(shape).unsqueeze(-1) if isinstance(p, Tensor) else p for key, p in found.items()}
    return Level(w, x, past, dict(zip(cell.gates, values)), partials, norms), outputs


def constant(w: Weights) -> Weights:
    """The same weights without their graph."""
    W, b, U, b_recurrent = (None if v is None else v.detach() for v in w[:4])
    norm = None if w.norm is None else Norm(w.norm.weight.detach(), w.norm.bias.detach(), w.norm.eps)
    assert W is not None
    return Weights(W, b, U, b_recurrent, tuple(p.detach() for p in w.params), norm)
