"""One step of a `Recurrent` layer and its derivatives, from the partials of its cell.

B samples, H units, G gates; s: outputs and states of all levels, S numbers, n of them per level.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from longlag.cells import Cell
from longlag.engines import Norm, Weights, reference
from longlag.layers import Recurrent
from longlag.layers._module import Layer
from longlag.learn._state import Parts, Values

Errors = list[tuple[slice, Tensor]]  # rows of s, (B, rows)


class Block(NamedTuple):
    """Parameters that enter a step alike: rows of net inputs (or numbers of the units), each times a source."""

    key: str
    C: Tensor  # ∂s/∂rows (B, S′, rows), over the level of the parameters and those above
    source: Tensor | None  # (B, width); None: 1


class Linearised(NamedTuple):
    """One step: output, new state, J = ∂s(t)/∂s(t−1) (B, S, S), how parameters enter, what `Step.back` needs."""

    y: Tensor
    state: Parts
    J: Tensor
    blocks: list[Block]
    seen: Values


class Step(abc.ABC):
    """One step of a kind of layer.

    Attributes:
        firsts: block -> rows of s that stand before those it can influence.
        paths: attributes of the layer that the blocks hold.
    """

    def __init__(self, layer: Layer, firsts: Mapping[str, int]) -> None:
        self.layer, self.firsts = layer, dict(firsts)
        self.paths = [path for key in firsts for path in self.read_by(key)]

    @abc.abstractmethod
    def linear(self, x: Tensor, state: Parts) -> Linearised:
        """The step from ``state``, and its derivatives."""

    @abc.abstractmethod
    def back(self, seen: Values, dy: Tensor, outer: Mapping[str, Tensor]) -> tuple[Errors, dict[str, Tensor]]:
        """Errors by s, and the gradients of the parameters ``outer`` that lie between s and y."""

    @abc.abstractmethod
    def read_by(self, key: str) -> list[str]:
        """The paths of a block."""

    @abc.abstractmethod
    def effective(self, key: str, gradient: Tensor) -> dict[str, Tensor]:
        """Gradients by path, from that of a block (rows · width)."""


class RecurrentStep(Step):
    """A `Recurrent` layer; s = (y, states) of the first level, of the second, …"""

    layer: Recurrent

    def __init__(self, layer: Recurrent) -> None:
        self.cell, self.H = layer.cell, layer.hidden_size
        self.n = len(layer.cell.outputs) * layer.hidden_size
        keys = ["weight_ih", *(["weight_hh"] if layer.cell.dense else []), *(["bias"] if layer.bias else [])]
        keys += [*layer.cell.params, *(["norm_weight", "norm_bias"] if layer.norm else [])]
        super().__init__(layer, {f"{key}_l{k}": k * self.n for k in range(layer.num_layers) for key in keys})

    def read_by(self, key: str) -> list[str]:
        if not key.startswith("bias_l"):
            return [key]
        names = ("bias_ih", "bias_hh") if self.cell.dense else ("bias_ih",)
        return [key.replace("bias", name) for name in names]

    def effective(self, key: str, gradient: Tensor) -> dict[str, Tensor]:
        if not key.startswith("bias_l"):
            return {key: gradient.view(getattr(self.layer, key).shape)}
        by_gate = dict(zip(self.cell.gates, gradient.split(self.H)))
        readers = (self.cell.input_gates, self.cell.recurrent_gates)
        return {path: torch.cat([by_gate[g] for g in gates]) for path, gates in zip(self.read_by(key), readers)}

    def linear(self, x: Tensor, state: Parts) -> Linearised:
        n, levels, y = self.n, self.layer.num_layers, x
        J, finals = x.new_zeros(len(x), levels * n, levels * n), []
        columns: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []  # C, and what the level read
        for k in range(levels):
            w, past = self.layer.weights(k), dict(zip(self.cell.fed_back, (part[k] for part in state)))
            unit = _linearise(self.layer, w, y, past)
            own, below = slice(k * n, k * n + n), slice(k * n - n, k * n - n + self.H)
            J[:, own, own] = unit.A
            C = x.new_zeros(len(x), (levels - k) * n, unit.D.shape[-1] + unit.others.shape[-1])
            C[:, :n] = torch.cat([unit.D, unit.others], -1)
            if k:  # what y of the level below depends on reaches this level within the step, through W
                M = unit.D[:, :, self._rows(self.cell.input_gates)] @ w.W  # ∂s/∂y_below (B, n, H)
                J[:, own, : k * n] = M @ J[:, below, : k * n]
                for i, (lower, _, _) in enumerate(columns):
                    lower[:, _up(own, i * n)] = M @ lower[:, _up(below, i * n)]
            columns.append((C, y, past))
            y = unit.outputs["y"]
            finals.append(tuple(unit.outputs[part] for part in self.cell.fed_back))
        blocks = [block for k, read in enumerate(columns) for block in self._blocks(k, *read)]
        return Linearised(y, tuple(map(torch.stack, zip(*finals))), J, blocks, {})

    def _blocks(self, k: int, C: Tensor, x: Tensor, past: dict[str, Tensor]) -> list[Block]:
        """The parameters of level k: columns of C are net inputs, then params, γ and β."""
        G, end = len(self.cell.gates) * self.H, f"_l{k}"
        nets = C[:, :, :G]
        blocks = [Block("weight_ih" + end, nets[:, :, self._rows(self.cell.input_gates)], x)]
        if self.cell.dense:
            blocks.append(Block("weight_hh" + end, nets[:, :, self._rows(self.cell.recurrent_gates)], past["y"]))
        if self.layer.bias:
            blocks.append(Block("bias" + end, nets, None))
        sizes = dict.fromkeys(self.cell.params, self.H)
        sizes |= dict.fromkeys(["norm_weight", "norm_bias"] if self.layer.norm else [], G)
        pieces = C[:, :, G:].split(list(sizes.values()), -1)
        return blocks + [Block(name + end, piece, None) for name, piece in zip(sizes, pieces)]

    def _rows(self, gates: tuple[str, ...]) -> list[int] | slice:
        return _rows(gates, self.cell, self.H)

    def back(self, seen: Values, dy: Tensor, outer: Mapping[str, Tensor]) -> tuple[Errors, dict[str, Tensor]]:
        top = self.n * (self.layer.num_layers - 1)
        return [(slice(top, top + self.H), dy)], {}


class _Unit(NamedTuple):
    """One level's step: its n outputs and states, and their derivatives."""

    outputs: dict[str, Tensor]
    A: Tensor  # ∂s/∂s(t−1) (B, n, n)
    D: Tensor  # ∂s/∂net (B, n, G·H)
    others: Tensor  # ∂s by the cell's params, γ and β (B, n, …)


def _linearise(layer: Recurrent, w: Weights, x: Tensor, past: dict[str, Tensor]) -> _Unit:
    cell, H, G = layer.cell, layer.hidden_size, len(layer.cell.gates)
    net = linear(x, w.W, w.b).unflatten(-1, (len(cell.input_gates), H))
    values = reference.cell_inputs(cell, net, w.U, tuple(past.values()), w.params, bias=w.b_recurrent)
    norms = [] if w.norm is None else [_norm(r, k, w.norm) for k, r in enumerate(values[:G])]
    values[: len(norms)] = [value for value, _, _ in norms]
    outputs, p = cell.with_partials(cell.outputs)(*values)

    def by_unit(names: tuple[str, ...], scales: Iterable[Tensor | float]) -> Tensor:
        """∂s/∂names, each times a scale, as matrices (B, n, len(names)·H): units see only themselves."""
        M = x.new_zeros(len(x), len(cell.outputs), H, len(names), H)
        for k, (name, scale) in enumerate(zip(names, scales)):
            for i, out in enumerate(cell.outputs):
                if (out, name) in p:
                    d = torch.as_tensor(p[out, name] * scale, dtype=x.dtype, device=x.device)
                    M[:, i, :, k, :] = torch.diag_embed(d.expand(len(x), H))
        return M.flatten(3).flatten(1, 2)

    D = to_gates = by_unit(cell.gates, [1.0] * G)
    others = [by_unit(cell.params, [1.0] * len(cell.params))]
    if norms:
        D = torch.cat([piece @ slope for piece, (_, slope, _) in zip(to_gates.split(H, -1), norms)], -1)
        kappa = ((H - 1) / H) ** 0.5 if layer.norm == "layer" else 1.0  # γ enters as κ γ: see `Norm.of_paper`
        others += [by_unit(cell.gates, [kappa * hat for _, _, hat in norms]), to_gates]
    A = by_unit(cell.outputs, [1.0] * len(cell.outputs))
    if w.U is not None:
        A[:, :, :H] += D[:, :, _rows(cell.recurrent_gates, cell, H)] @ w.U  # [ELMAN 1.3], [LSTM-FG 1.2 dñ]
    return _Unit(outputs, A, D, torch.cat(others, -1))


def _norm(r: Tensor, k: int, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """LN(r) of gate k, its slope ∂LN/∂r (B, H, H), and r̂. [LN-RNN 5 backward]"""
    H = r.shape[-1]
    s = (r.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    hat = (r - r.mean(-1, keepdim=True)) / s
    eye = torch.eye(H, dtype=r.dtype, device=r.device)
    slope = norm.weight[k].unsqueeze(-1) * (eye - 1 / H - hat.unsqueeze(-1) * hat.unsqueeze(-2) / H) / s.unsqueeze(-1)
    return norm.weight[k] * hat + norm.bias[k], slope, hat


def _rows(gates: tuple[str, ...], cell: Cell, H: int) -> list[int] | slice:
    """Where the net inputs of some gates stand among those of all."""
    if gates == cell.gates:
        return slice(None)
    return [cell.gates.index(gate) * H + j for gate in gates for j in range(H)]


def _up(rows: slice, first: int) -> slice:
    """Rows of s, counted from ``first``."""
    return slice(rows.start - first, rows.stop - first)
