"""A stack of cells, linearised by the partials derived from their equations.

B sequences, T steps, H units, p columns; L levels of the stack. The state vector is (parts, L, H) flattened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from longlag.cells import Cell
from longlag.engines import Norm, Weights, reference
from longlag.flow._run import Run
from longlag.layers import Recurrent
from longlag.layers._door import Sequences


class Normed(NamedTuple):
    """Layer normalisation r̂ = (r − μ)/s of one gate, linearised: ∂r̂/∂r = (I − 11ᵀ/H − r̂ r̂ᵀ/H)/s. [LN-RNN 5]"""

    unit: Tensor  # r̂ (T, B, H)
    scale: Tensor  # s (T, B, 1)

    @classmethod
    def of(cls, r: Tensor, eps: float) -> Normed:
        s = (r.var(-1, keepdim=True, correction=0) + eps).sqrt()
        return cls((r - r.mean(-1, keepdim=True)) / s, s)

    def __call__(self, t: int, d: Tensor) -> Tensor:
        """∂r̂/∂r d, d (B, H, p); the matrix is symmetric, so this is its transpose as well."""
        unit = self.unit[t].unsqueeze(-1)
        return (d - d.mean(1, keepdim=True) - unit * (unit * d).mean(1, keepdim=True)) / self.scale[t].unsqueeze(-1)


class Level(NamedTuple):
    """One level of the stack along the run."""

    weights: Weights
    gates: dict[str, Tensor]  # values of the cell's gates, (T, B, H)
    partials: dict[tuple[str, str], Tensor]  # ∂output/∂input, (T, B, H, 1)
    norms: dict[str, Normed]


class CellRun(Run):
    """Layers made of a cell: `Recurrent` and its kin."""

    def __init__(self, layer: Recurrent, s: Sequences, state: Sequence[Tensor]) -> None:
        self.x, self.cell, self.levels = s.x, layer.cell, []
        below, states = s.x, []
        for k in range(layer.num_layers):
            weights = _constant(layer.weights(k))
            net = linear(below, weights.W, weights.b).unflatten(-1, (len(self.cell.input_gates), -1))
            before, below = _follow(self.cell, net, weights, [part[k] for part in state])
            states.append(before)  # (T + 1, parts, B, H)
            self.levels.append(_linearise(self.cell, net, weights, before[:-1]))
        self.shape = (len(self.cell.fed_back), layer.num_layers, layer.hidden_size)
        self.states = torch.stack(states, 2).movedim(3, 1).flatten(2)  # (T + 1, parts, L, B, H) -> (T + 1, B, n)
        self.outputs = below

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        rows = [part.transpose(0, 1).flatten(1) for part in parts]  # (L, B, H) -> (B, L H)
        return torch.cat(rows, -1) if rows else self.x.new_zeros(self.x.shape[1], 0)

    def parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.transpose(0, 1) for part in flat.unflatten(-1, self.shape).unbind(1))

    def push(self, t: int, ds: Tensor) -> Tensor:
        cell, after, below = self.cell, [], None
        for k, level in enumerate(self.levels):
            d = dict(zip(cell.fed_back, ds.unflatten(1, self.shape)[:, :, k].unbind(1)))
            d |= self._net_change(level, t, d.get("y"), below)
            new = {
                o: sum((level.partials[o, i][t] * d[i] for i in d if (o, i) in level.partials), ds.new_zeros(()))
                for o in cell.outputs
            }
            below = new["y"]
            after.append(torch.stack([new[name] for name in cell.fed_back], 1))
        return torch.stack(after, 2).flatten(1, 3)

    def _net_change(self, level: Level, t: int, dy: Tensor | None, dx: Tensor | None) -> dict[str, Tensor]:
        """Changes of the gates' net inputs, W dx + U dy; dx is what the level below gives."""
        cell, w, d = self.cell, level.weights, {}
        if w.U is not None and dy is not None:
            d |= zip(cell.recurrent_gates, times(w.U, dy).unflatten(1, (-1, self.shape[-1])).unbind(1))
        if dx is not None:
            for gate, change in zip(cell.input_gates, times(w.W, dx).unflatten(1, (-1, self.shape[-1])).unbind(1)):
                d[gate] = d[gate] + change if gate in d else change
        if w.norm is not None:
            for gate, gamma in zip(cell.gates, w.norm.weight):
                if gate in d:
                    d[gate] = gamma.unsqueeze(-1) * level.norms[gate](t, d[gate])
        return d

    def pull(self, t: int, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        cell, before = self.cell, []
        above: Callable[[], Tensor] | None = None if dy is None else lambda: dy
        for k in reversed(range(len(self.levels))):
            level = self.levels[k]
            d = dict(zip(cell.fed_back, ds.unflatten(1, self.shape)[:, :, k].unbind(1)))
            if above is not None:
                d["y"] = d["y"] + above() if "y" in d else above()
            back = {
                i: sum((level.partials[o, i][t] * d[o] for o in d if (o, i) in level.partials), ds.new_zeros(()))
                for i in (*cell.gates, *cell.fed_back)
            }
            back = {i: b.expand(len(ds), self.shape[-1], ds.shape[-1]) for i, b in back.items()}
            nets = self._net_error(level, t, back)
            if level.weights.U is not None:
                heard = torch.cat([nets[gate] for gate in cell.recurrent_gates], 1)
                back["y"] = back["y"] + times(level.weights.U.t(), heard)  # Uᵀ da
            before.append(torch.stack([back[name] for name in cell.fed_back], 1) if cell.fed_back else None)
            above = _error_below(level.weights.W, [nets[gate] for gate in cell.input_gates])
        assert above is not None
        known = [part for part in reversed(before) if part is not None]
        return torch.stack(known, 2).flatten(1, 3) if known else ds, above

    def _net_error(self, level: Level, t: int, back: dict[str, Tensor]) -> dict[str, Tensor]:
        norm = level.weights.norm
        if norm is None:
            return back
        gammas = dict(zip(self.cell.gates, norm.weight))
        return {gate: level.norms[gate](t, gammas[gate].unsqueeze(-1) * back[gate]) for gate in gammas}


def times(M: Tensor, columns: Tensor) -> Tensor:
    """M columns, (B, n, p); as columnsᵀ Mᵀ, which BLAS does ten times faster when p is small."""
    return (columns.mT @ M.t()).mT


def _constant(w: Weights) -> Weights:
    """The same numbers, without a graph behind them."""
    W, b, U, b_recurrent = (None if v is None else v.detach() for v in w[:4])
    norm = None if w.norm is None else Norm(w.norm.weight.detach(), w.norm.bias.detach(), w.norm.eps)
    assert W is not None
    return Weights(W, b, U, b_recurrent, tuple(p.detach() for p in w.params), norm)


def _error_below(W: Tensor, nets: list[Tensor]) -> Callable[[], Tensor]:
    return lambda: times(W.t(), torch.cat(nets, 1))  # Wᵀ da


def _follow(cell: Cell, net: Tensor, w: Weights, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """States before, between and after the steps (T + 1, parts, B, H), and outputs (T, B, H)."""
    states, outputs = [tuple(state)], []
    for a in net.unbind(0):
        y, new = reference.step(cell, a, w.U, states[-1], w.params, bias=w.b_recurrent, norm=w.norm)
        outputs.append(y)
        states.append(new)
    y = torch.stack(outputs)
    if not cell.fed_back:
        return y.new_zeros(len(y) + 1, 0, *y.shape[1:]), y
    return torch.stack([torch.stack(parts) for parts in states]), y


def _linearise(cell: Cell, net: Tensor, w: Weights, before: Tensor) -> Level:
    """Gate values and partials of all steps at once: time is one more batch axis here."""
    T, B = net.shape[:2]
    state = [part.flatten(0, 1) for part in before.unbind(1)]
    values = reference.cell_inputs(cell, net.flatten(0, 1), w.U, state, w.params, bias=w.b_recurrent)
    norms = {}
    if w.norm is not None:
        norms, values = _normalise(cell, w.norm, values, T)
    partials = {}
    for key, value in cell.partials(*values).items():
        full = torch.as_tensor(value, dtype=net.dtype, device=net.device).expand(T * B, net.shape[-1])
        partials[key] = full.unflatten(0, (T, B)).unsqueeze(-1)
    gates = {gate: value.unflatten(0, (T, B)) for gate, value in zip(cell.gates, values)}
    return Level(w, gates, partials, norms)


def _normalise(cell: Cell, norm: Norm, values: list[Tensor], T: int) -> tuple[dict[str, Normed], list[Tensor]]:
    G = len(cell.gates)
    norms = {g: Normed.of(r.unflatten(0, (T, -1)), norm.eps) for g, r in zip(cell.gates, values)}
    gates = [layer_norm(r, r.shape[-1:], norm.weight[g], norm.bias[g], norm.eps) for g, r in enumerate(values[:G])]
    return norms, gates + values[G:]
