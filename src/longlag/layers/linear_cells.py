"""One step of a stack of cells with its derivatives, from the partials derived from the cell's equations.

B samples, L levels, H units, G gates, p columns. The state is a row (parts, L, H), flattened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.layers._level import Level, constant, step_level
from longlag.layers.linear import Direct, Gradients, LinearStep, times
from longlag.layers.state import Parts

if TYPE_CHECKING:
    from longlag.layers.recurrent import Recurrent

Columns = dict[str, Tensor]  # by name of a cell's input or output, (B, H, p)


class CellStep(LinearStep):
    """One step of a `Recurrent` layer, from the state before it, each part (L, B, H)."""

    def __init__(self, layer: Recurrent, x: Tensor, state: Parts) -> None:
        self.layer, self.cell, self.H = layer, layer.cell, layer.hidden_size
        self.shape = (len(self.cell.fed_back), layer.num_layers, self.H)
        self.levels: list[Level] = []
        y, after = x, []
        for k in range(layer.num_layers):
            past = dict(zip(self.cell.fed_back, (part[k] for part in state)))
            level, outputs = step_level(self.cell, constant(layer.weights(k)), y, past)
            self.levels.append(level)
            y = outputs["y"]
            after.append([outputs[name] for name in self.cell.fed_back])
        self.y, self.state = y, tuple(torch.stack(part) for part in zip(*after))

    def at(self, samples: slice) -> CellStep:
        step = object.__new__(CellStep)
        step.layer, step.cell, step.H, step.shape = self.layer, self.cell, self.H, self.shape
        step.levels = [level.at(samples) for level in self.levels]
        step.y, step.state = self.y[samples], tuple(part[:, samples] for part in self.state)
        return step

    # ---------------------------------------------------------------------------------------------------- forwards
    def push(self, ds: Tensor) -> Tensor:
        after, below = [], None
        for k, level in enumerate(self.levels):
            d = dict(zip(self.cell.fed_back, ds.unflatten(1, self.shape)[:, :, k].unbind(1)))
            new = self._outputs(level, d | self._net_changes(level, d.get("y"), below), ds)
            below = new["y"]
            after.append(new)
        return self._state_columns(after)

    def _outputs(self, level: Level, d: Columns, like: Tensor) -> Columns:
        """Changes of the cell's outputs from changes d of its inputs; ``like`` (B, …, p)."""
        zero = like.new_zeros(len(like), self.H, like.shape[-1])
        return {
            out: _sum([level.partials[out, name] * d[name] for name in d if (out, name) in level.partials], zero)
            for out in self.cell.outputs
        }

    def _net_changes(self, level: Level, dy: Tensor | None, dx: Tensor | None) -> Columns:
        """Changes of the gates' net inputs, W dx + U dy, from changes dx, dy of the inputs of W and U."""
        cell, w, d = self.cell, level.weights, {}
        if w.U is not None and dy is not None:
            d |= zip(cell.recurrent_gates, times(w.U, dy).unflatten(1, (-1, self.H)).unbind(1))  # [LSTM-FG 1.2 dñ]
        if dx is not None:
            for gate, change in zip(cell.input_gates, times(w.W, dx).unflatten(1, (-1, self.H)).unbind(1)):
                d[gate] = d[gate] + change if gate in d else change
        if w.norm is not None:
            gammas = dict(zip(cell.gates, w.norm.weight))
            d = {gate: gammas[gate].unsqueeze(-1) * level.norms[gate](change) for gate, change in d.items()}
        return d

    def _state_columns(self, levels: list[Columns]) -> Tensor:
        """Changes of the state (B, parts · levels · H, p) from those of the cell's outputs, level by level."""
        parts = [torch.stack([new[name] for new in levels], 1) for name in self.cell.fed_back]
        y = levels[-1]["y"]
        return torch.stack(parts, 1).flatten(1, 3) if parts else y.new_zeros(len(y), 0, y.shape[-1])

    # ----------------------------------------------------------------------------------------------------- parameters
    def jacobian(self) -> Tensor:
        level = self.levels[0]
        if len(self.levels) > 1 or level.norms:
            return super().jacobian()
        eye = torch.eye(self.H, dtype=self.y.dtype, device=self.y.device)
        reads = {name: {name: eye} for name in self.cell.fed_back}  # values read from the past, with their matrices
        if level.weights.U is not None:
            reads["y"] |= zip(self.cell.recurrent_gates, level.weights.U.split(self.H))
        zero = eye.new_zeros(len(self.y), self.H, self.H)
        rows = [
            torch.cat([self._product(level, out, matrices, zero) for matrices in reads.values()], -1)
            for out in self.cell.fed_back
        ]
        return torch.cat(rows, 1) if rows else super().jacobian()

    def _product(self, level: Level, out: str, matrices: Columns, zero: Tensor) -> Tensor:
        """Σ_v (∂out/∂v) M_v."""
        return sum((level.partials[out, v] * M for v, M in matrices.items() if (out, v) in level.partials), zero)

    def output_jacobian(self) -> Tensor:
        if "y" not in self.cell.fed_back or len(self.levels) > 1 or self.levels[0].norms:
            return super().output_jacobian()
        first = self.cell.fed_back.index("y") * self.H
        return self.jacobian()[:, first : first + self.H]

    def influence(self, wanted: Collection[str]) -> tuple[Tensor, list[Direct]]:
        blocks = [block for k in range(len(self.levels)) for block in self._blocks(k, wanted)]
        return self.jacobian(), blocks

    def _blocks(self, k: int, wanted: Collection[str]) -> Iterator[Direct]:
        """How the parameters of level k enter the step."""
        cell, level, G = self.cell, self.levels[k], len(self.cell.gates) * self.H
        sources: dict[str, tuple[tuple[str, ...], Tensor | None]] = {"weight_ih": (cell.input_gates, level.read)}
        if cell.dense:
            sources["weight_hh"] = cell.recurrent_gates, level.past["y"]
        if self.layer.bias:
            sources["bias"] = cell.gates, None
        units = {
            **dict.fromkeys(cell.params, self.H),
            **dict.fromkeys(["norm_weight", "norm_bias"] if level.norms else [], G),
        }
        if not any(path in wanted for name in (*sources, *units) for path in self._paths(name, k)):
            return
        C, C_y = self._parameter_columns(k)  # columns: net inputs, params, γ, β
        rows = None
        if k:  # levels below k do not depend on these parameters
            rows = torch.arange(C.new_empty(self.shape).numel(), device=C.device).view(self.shape)[:, k:].flatten()
        for name, (gates, source) in sources.items():
            columns = self._columns(gates)
            yield self._direct(name, k, C[:, :, columns], source, rows, C_y[:, :, columns])
        pieces = (M[:, :, G:].split(list(units.values()), -1) for M in (C, C_y))
        for name, piece, piece_y in zip(units, *pieces):
            yield self._direct(name, k, piece, None, rows, piece_y)

    def _direct(self, name: str, k: int, C: Tensor, source: Tensor | None, rows: Tensor | None, C_y: Tensor) -> Direct:
        return Direct(f"{name}_l{k}", C, source, rows, functools.partial(self._assign, name, k), lambda: C_y)

    def _parameter_columns(self, k: int) -> tuple[Tensor, Tensor]:
        """∂s/∂(net inputs, params, γ, β) of level k, over the levels from k on: (B, n′, …); and ∂y/∂(the same)."""
        cell, level = self.cell, self.levels[k]
        eye = torch.eye(self.H, dtype=self.y.dtype, device=self.y.device).expand(len(self.y), -1, -1)
        nets = dict.fromkeys(cell.gates, eye)
        if level.weights.norm is not None:
            gammas = zip(cell.gates, level.weights.norm.weight)
            nets = {gate: gamma.unsqueeze(-1) * level.norms[gate](eye) for gate, gamma in gammas}
        entries = [*nets.items(), *((name, eye) for name in cell.params)]
        if level.norms:
            kappa = _gamma_scale(self.layer)
            entries += [(gate, kappa * norm.unit.unsqueeze(-1) * eye) for gate, norm in level.norms.items()]
            entries += [(gate, eye) for gate in cell.gates]
        pieces = [self._outputs(level, {name: d}, eye) for name, d in entries]
        reached = [{out: torch.cat([piece[out] for piece in pieces], -1) for out in cell.outputs}]
        for above in self.levels[k + 1 :]:
            below = reached[-1]["y"]
            reached.append(self._outputs(above, self._net_changes(above, None, below), below))
        return self._state_columns(reached), reached[-1]["y"]

    def _columns(self, gates: tuple[str, ...]) -> list[int] | slice:
        """Columns of some gates' net inputs among those of all gates."""
        if gates == self.cell.gates:
            return slice(0, len(gates) * self.H)
        return [self.cell.gates.index(gate) * self.H + j for gate in gates for j in range(self.H)]

    def _paths(self, name: str, k: int) -> list[str]:
        """The layer's attributes in a block of parameters."""
        names = [name] if name != "bias" else ["bias_ih", "bias_hh"] if self.cell.dense else ["bias_ih"]
        return [f"{name}_l{k}" for name in names]

    def _assign(self, name: str, k: int, gradient: Tensor) -> Gradients:
        paths = self._paths(name, k)
        if name != "bias":
            return {paths[0]: gradient.view(getattr(self.layer, paths[0]).shape)}
        by_gate = dict(zip(self.cell.gates, gradient.split(self.H)))
        readers = (self.cell.input_gates, self.cell.recurrent_gates)
        return {path: torch.cat([by_gate[g] for g in gates]) for path, gates in zip(paths, readers)}

    # ---------------------------------------------------------------------------------------------------- backwards
    def pull(self, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        before: list[Columns] = []
        level, nets = self.levels[0], {}
        for level, back, nets in self._back(ds, dy):  # noqa: B007 (the lowest level's are used below)
            before.append(back)
        parts = [torch.stack([back[name] for back in reversed(before)], 1) for name in self.cell.fed_back]
        return torch.stack(parts, 1).flatten(1, 3) if parts else ds, lambda: self._error_below(level, nets)

    def _back(self, ds: Tensor, dy: Tensor | None, params: bool = False) -> Iterator[tuple[Level, Columns, Columns]]:
        """From the highest level down: the level, errors of the cell's inputs, errors of the raw net inputs."""
        cell, above = self.cell, dy
        for k, level in reversed(list(enumerate(self.levels))):
            d = dict(zip(cell.fed_back, ds.unflatten(1, self.shape)[:, :, k].unbind(1)))
            if above is not None:
                d["y"] = d["y"] + above if "y" in d else above
            zero = ds.new_zeros(len(ds), self.H, ds.shape[-1])
            back = {
                name: _sum([level.partials[out, name] * d[out] for out in d if (out, name) in level.partials], zero)
                for name in (*cell.gates, *cell.fed_back, *(cell.params if params else ()))
            }
            nets = back
            if level.weights.norm is not None:
                gammas = zip(cell.gates, level.weights.norm.weight)
                nets = {gate: level.norms[gate](gamma.unsqueeze(-1) * back[gate]) for gate, gamma in gammas}
            if level.weights.U is not None:
                errors = torch.cat([nets[gate] for gate in cell.recurrent_gates], 1)
                back["y"] = back["y"] + times(level.weights.U.t(), errors)  # Uᵀ da
            yield level, back, nets
            above = self._error_below(level, nets) if k else None

    def _error_below(self, level: Level, nets: Columns) -> Tensor:
        """Wᵀ da: errors of the input of W."""
        return times(level.weights.W.t(), torch.cat([nets[gate] for gate in self.cell.input_gates], 1))

    def gradients(self, dy: Tensor, wanted: Collection[str]) -> tuple[Tensor, Gradients]:
        B, cell, found, before = len(dy), self.cell, {}, []
        errors = self._back(dy.new_zeros(B, self._size, 1), dy.unsqueeze(-1), params=True)
        top_down = zip(reversed(range(len(self.levels))), errors)
        for k, (level, back, nets) in top_down:
            errors = {gate: nets[gate].squeeze(-1) for gate in cell.gates}
            by_name = {"weight_ih": _joined(errors, cell.input_gates).t() @ level.read}
            if cell.dense:
                by_name["weight_hh"] = _joined(errors, cell.recurrent_gates).t() @ level.past["y"]
            if self.layer.bias:
                by_name["bias_ih"] = _joined(errors, cell.input_gates).sum(0)
                if cell.dense:
                    by_name["bias_hh"] = _joined(errors, cell.recurrent_gates).sum(0)
            by_name |= {name: back[name].sum((0, 2)) for name in cell.params}
            if level.norms:
                scaled = [back[gate].squeeze(-1) * level.norms[gate].unit for gate in cell.gates]
                by_name["norm_weight"] = _gamma_scale(self.layer) * torch.stack(scaled).sum(1)
                by_name["norm_bias"] = torch.stack([back[gate].squeeze(-1) for gate in cell.gates]).sum(1)
            found |= {f"{name}_l{k}": gradient for name, gradient in by_name.items()}
            before.append(back)
        parts = [torch.stack([back[name] for back in reversed(before)], 1).squeeze(-1) for name in cell.fed_back]
        ds = torch.stack(parts, 1).flatten(1) if parts else dy.new_zeros(B, 0)
        return ds, {path: gradient for path, gradient in found.items() if path in wanted}

    @property
    def _size(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    # ------------------------------------------------------------------------------------------------- what can be seen
    @property
    def net_inputs(self) -> list[dict[str, Tensor]]:
        return [level.nets for level in self.levels]

    @property
    def gates(self) -> dict[str, Tensor]:
        found = {}
        for k, level in enumerate(self.levels):
            for gate, squash in squashes(self.cell).items():
                net = level.nets[gate]
                found[f"l{k}.{gate}"] = torch.sigmoid(net) if squash == "sigmoid" else (torch.tanh(net) + 1) / 2
        return found


def squashes(cell: Cell) -> dict[str, str]:
    """Gates whose net input alone is the argument of a squashing function: gate -> ``"sigmoid"`` or ``"tanh"``.

    >>> from longlag import cells
    >>> squashes(cells.lstm)
    {'i': 'sigmoid', 'f': 'sigmoid', 'g': 'tanh', 'o': 'sigmoid'}
    """
    import sympy

    calls = {call for expression in cell.expressions for call in expression.atoms(sympy.Function)}
    found = {(str(call.args[0]), type(call).__name__) for call in calls}
    return {gate: squash for gate in cell.gates for squash in ("sigmoid", "tanh") if (gate, squash) in found}


def _gamma_scale(layer: Recurrent) -> float:
    """κ: with divisor H−1 the engines read κ γ; see `Norm`."""
    return ((layer.hidden_size - 1) / layer.hidden_size) ** 0.5 if layer.norm == "layer" else 1.0


def _joined(values: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([values[name] for name in names], -1)


def _sum(terms: list[Tensor], zero: Tensor) -> Tensor:
    return functools.reduce(torch.add, terms) if terms else zero
