"""Derivatives of an `LSTM97`: one exact step [LSTM-97 3.6], its units under the truncation of 1997 [LSTM-97 3.1]."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from longlag import cells
from longlag.layers.linear import Direct, Gradients, LinearStep, times
from longlag.layers.state import Parts
from longlag.layers.units import FED_BACK, INPUT, Results, UnitGraph, UnitGroup, linear_unit

if TYPE_CHECKING:
    from longlag.layers.lstm97 import LSTM97


class LSTM97Step(LinearStep):
    """Rows of s: y_hid, y_ig, y_og, y_cell, then the cells' internal states s."""

    def __init__(self, layer: LSTM97, x: Tensor, state: Parts) -> None:
        self.layer, self.x = layer, x
        self.rows: dict[str, slice] = {}
        end = 0
        for section, size in {**layer.sections, "s": layer.cells}.items():
            self.rows[section] = slice(end, end := end + size)
        with torch.no_grad():
            self._linearise(state)
            self.y = self._read_out(self.activations)

    def _linearise(self, state: Parts) -> None:
        layer, x, (past, s) = self.layer, self.x, state
        self.w, b = layer.weights()
        self.source = torch.cat([x, past], -1) if layer.recurrent else x  # [LSTM-97 2 x̃]
        net = dict(zip(layer.sections, linear(self.source, self.w, b).split(list(layer.sections.values()), -1)))
        y = {section: torch.sigmoid(net[section]) for section in ("hid", "ig", "og")}
        per_cell = functools.partial(torch.repeat_interleave, repeats=layer.block_size, dim=-1)
        gates = [per_cell(net["ig"]), net["cell"], *([per_cell(net["og"])] if layer.output_gates else [])]
        cell = cells.memory_cell(layer.g, layer.h, layer.output_gates)
        new, found = cell.with_partials(cell.outputs)(*gates, s)
        self.slopes = {section: value * (1 - value) for section, value in y.items()}  # (B, units)
        self.partials = {
            key: torch.as_tensor(p, dtype=x.dtype, device=x.device).expand_as(s) for key, p in found.items()
        }
        self.activations = torch.cat([*y.values(), new["y"]], -1)
        self.state = (self.activations.clone(), new["s"])

    def _read_out(self, activations: Tensor, x: Tensor | None = None) -> Tensor:
        hidden, cell = activations[:, self.rows["hid"]], activations[:, self.rows["cell"]]
        return self.layer.read_out(self.x if x is None else x, hidden, cell)

    def at(self, samples: slice) -> LSTM97Step:
        step = object.__new__(LSTM97Step)
        step.layer, step.rows, step.w = self.layer, self.rows, self.w
        for name in ("x", "source", "activations", "y"):
            setattr(step, name, getattr(self, name)[samples])
        for name in ("slopes", "partials"):
            setattr(step, name, {key: value[samples] for key, value in getattr(self, name).items()})
        step.state = tuple(part[samples] for part in self.state)
        return step

    # -------------------------------------------------------------------------- products with the step's derivatives
    def push(self, ds: Tensor) -> Tensor:
        y, s = ds.split([self.rows["cell"].stop, self.layer.cells], 1)
        return self._changes(times(self.w_y, y) if self.layer.recurrent else torch.zeros_like(y), s)

    def _changes(self, nets: Tensor, s: Tensor) -> Tensor:
        """Changes of the new state (B, n, p) from those of the net inputs (B, R, p) and of s (B, C, p)."""
        d = {section: nets[:, self.rows[section]] for section in self.layer.sections}
        units = [slope.unsqueeze(-1) * d[section] for section, slope in self.slopes.items()]  # [LSTM-97 3.6 dy_a]
        each = functools.partial(torch.repeat_interleave, repeats=self.layer.block_size, dim=1)
        inner = {"i": each(d["ig"]), "a": d["cell"], "o": each(d["og"]), "s": s}
        for out in ("y", "s"):  # [LSTM-97 3.6 dy_cell] [LSTM-97 3.6 Q]
            terms = [p.unsqueeze(-1) * inner[name] for (o, name), p in self.partials.items() if o == out]
            units.append(functools.reduce(torch.add, terms))
        return torch.cat(units, 1)

    def pull(self, ds: Tensor, dy: Tensor | None = None) -> tuple[Tensor, Callable[[], Tensor]]:
        R, through_x = self.rows["cell"].stop, None
        if dy is not None:
            p = dy.shape[-1]
            y = self.activations.unsqueeze(0).repeat(p, 1, 1).flatten(0, 1).requires_grad_()
            x = self.x.unsqueeze(0).repeat(p, 1, 1).flatten(0, 1).requires_grad_()
            with torch.enable_grad():
                output = self._read_out(y, x)
            e, through_x = torch.autograd.grad(output, [y, x], dy.movedim(-1, 0).flatten(0, 1), materialize_grads=True)
            ds = torch.cat([ds[:, :R] + e.unflatten(0, (p, -1)).movedim(0, -1), ds[:, R:]], 1)
            through_x = through_x.unflatten(0, (p, -1)).movedim(0, -1)
        nets, s = self._errors(ds)
        before = times(self.w_y.t(), nets) if self.layer.recurrent else torch.zeros_like(nets)

        def errors_of_x() -> Tensor:
            dx = times(self.w[:, : self.layer.input_size].t(), nets)
            return dx if through_x is None else dx + through_x

        return torch.cat([before, s], 1), errors_of_x

    def _errors(self, ds: Tensor) -> tuple[Tensor, Tensor]:
        """Errors of the net inputs (B, R, p) and of s (B, C, p) before the step, from those of the new state."""
        d = {section: ds[:, rows] for section, rows in self.rows.items()}
        inner: dict[str, Tensor] = {}
        for (out, name), p in self.partials.items():
            term = p.unsqueeze(-1) * d["cell" if out == "y" else "s"]
            inner[name] = inner[name] + term if name in inner else term
        nets = {section: slope.unsqueeze(-1) * d[section] for section, slope in self.slopes.items()}
        for gate, section in (("i", "ig"), ("o", "og")):
            if gate in inner:  # a gate serves all cells of its block
                nets[section] = nets[section] + inner[gate].unflatten(
                    1, (self.layer.blocks, self.layer.block_size)
                ).sum(2)
        return torch.cat([*nets.values(), inner["a"]], 1), inner["s"]

    @property
    def w_y(self) -> Tensor:
        """The columns of the matrix that read the fed-back activations, (R, R)."""
        return self.w[:, self.layer.input_size :]  # [LSTM-97 3.6 dn]

    # ----------------------------------------------------------------------------------------------------- parameters
    def influence(self, wanted: Collection[str]) -> tuple[Tensor, list[Direct]]:
        eye = torch.eye(self.rows["cell"].stop, dtype=self.y.dtype, device=self.y.device).expand(len(self.y), -1, -1)
        C = self._changes(eye, eye.new_zeros(len(eye), self.layer.cells, eye.shape[-1]))  # ∂(y, s)/∂net
        blocks = []
        for kind, source in (("weight", self.source), ("bias", None)):
            for section in self.layer.sections:
                path = f"{kind}_{section}"
                if path in wanted:
                    assign = functools.partial(self._assign, path)
                    piece = C[:, :, self.rows[section]]
                    on_output = functools.partial(self._on_output, piece)
                    blocks.append(Direct(path, piece, source, None, assign, on_output))
        return self.jacobian(), blocks

    def _on_output(self, ds: Tensor) -> Tensor:
        """Changes of the output (B, O, p) from those of the new state."""
        with torch.enable_grad():
            y = self.activations.detach().requires_grad_()
            output = self._read_out(y)
            rows = [torch.autograd.grad(one, y, retain_graph=True)[0] for one in output.sum(0)]
        return torch.stack(rows, 1) @ ds[:, : self.activations.shape[1]]

    def _assign(self, path: str, gradient: Tensor) -> Gradients:
        return {path: gradient.view(getattr(self.layer, path).shape)}

    def gradients(self, dy: Tensor, wanted: Collection[str]) -> tuple[Tensor, Gradients]:
        outer = {name: getattr(self.layer, name) for name in ("weight_out", "bias_out") if name in wanted}
        y = self.activations.detach().requires_grad_()
        with torch.enable_grad():
            output = self._read_out(y)
        e, *found = torch.autograd.grad(output, [y, *outer.values()], dy, materialize_grads=True)
        e = torch.nn.functional.pad(e, (0, self.layer.cells))  # errors of (y, s); those of s and of the gates are 0
        nets, ds = self._errors(e.unsqueeze(-1))
        before = times(self.w_y.t(), nets) if self.layer.recurrent else torch.zeros_like(nets)
        nets = nets.squeeze(-1)
        grads = dict(zip(outer, found))
        for section, at in ((section, self.rows[section]) for section in self.layer.sections):
            if f"weight_{section}" in wanted:
                grads[f"weight_{section}"] = nets[:, at].t() @ self.source
            if f"bias_{section}" in wanted:
                grads[f"bias_{section}"] = nets[:, at].sum(0)
        return torch.cat([before, ds], 1).squeeze(-1), grads

    @property
    def gates(self) -> dict[str, Tensor]:
        found = {section: self.activations[:, self.rows[section]] for section in ("ig", "og")}
        return {section: value for section, value in found.items() if value.numel()}


class Units97(UnitGroup):
    """Conventional units of an `LSTM97`: its hidden (``"hid"``) or its output units (``"out"``)."""

    def __init__(self, layer: LSTM97, section: str, reads: tuple[str, ...]) -> None:
        self.layer, self.section = layer, section
        names = [f"weight_{section}", f"bias_{section}"]
        units, width = getattr(layer, names[0]).shape
        linear = section == "out" and layer.output == "linear"
        paths = [name for name in names if hasattr(layer, name)]
        super().__init__(section, linear_unit() if linear else cells.rnn97, units, reads, width, paths)

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        values = [getattr(self.layer, path) for path in self.paths]
        return values[0], values[1] if len(values) > 1 else None, ()

    def gradients(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.paths, (dW, db) if db is not None else (dW,)))


class Cells97(UnitGroup):
    """The memory cells of an `LSTM97`; each has its block's gates, whose gradients are summed over the block."""

    def __init__(self, layer: LSTM97, reads: tuple[str, ...]) -> None:
        self.layer, self.shared = layer, layer.block_size
        self.sections = ("ig", "cell", "og") if layer.output_gates else ("ig", "cell")  # gates i, a, o
        self.rows = [layer.sections[section] for section in self.sections]
        names = [f"{kind}_{section}" for kind in ("weight", "bias") for section in self.sections]
        paths = [name for name in names if hasattr(layer, name)]
        cell = cells.memory_cell(layer.g, layer.h, layer.output_gates)
        super().__init__("cell", cell, layer.cells, reads, getattr(layer, "weight_ig").shape[1], paths)  # noqa: B009

    def weights(self) -> tuple[Tensor, Tensor | None, Parts]:
        weights = [getattr(self.layer, f"weight_{section}") for section in self.sections]
        if not self.biased:
            return torch.cat(weights), None, ()
        found = [getattr(self.layer, f"bias_{section}", None) for section in self.sections]
        biases = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, found)]
        return torch.cat(weights), torch.cat(biases), ()

    def gates(self, net: Tensor) -> tuple[Tensor, ...]:
        """A block's gates serve each of its cells."""
        parts = net.split(self.rows, -1)
        if (size := self.layer.block_size) == 1:
            return parts
        return tuple(p if k == "cell" else p.repeat_interleave(size, -1) for k, p in zip(self.sections, parts))

    def gradients(self, dW: Tensor, db: Tensor | None, dparams: dict[str, Tensor]) -> dict[str, Tensor]:
        grads = {}
        for kind, gradient in (("weight", dW), ("bias", db)):
            for section, rows in zip(self.sections, gradient.split(self.units) if gradient is not None else ()):
                shared = rows if section == "cell" else rows.unflatten(0, (-1, self.layer.block_size)).sum(1)
                grads[f"{kind}_{section}"] = shared
        return {path: grads[path] for path in self.paths}


class CutLSTM97(UnitGraph):
    """An `LSTM97` without the influence that passes through the fed-back activations. [LSTM-97 3.1]"""

    def __init__(self, layer: LSTM97) -> None:
        self.block_size = layer.block_size
        reads = (INPUT, FED_BACK) if layer.recurrent else (INPUT,)  # [LSTM-97 2 x̃]
        groups: list[UnitGroup] = [Units97(layer, "hid", reads)] if layer.hidden_units else []
        groups += [Cells97(layer, reads)] if layer.blocks else []
        inner = tuple(group.name for group in groups)
        if layer.output_size is not None:
            groups.append(Units97(layer, "out", (*([INPUT] if layer.input_to_output else []), *inner)))
        super().__init__(groups, inner if layer.output_size is None else ("out",))
        pieces = [("hid", "y", 1)] if layer.hidden_units else []
        if layer.blocks:
            pieces += [("cell", gate, self.block_size) for gate in ("i", "o")[: 1 + layer.output_gates]]
            pieces += [("cell", "y", 1)]
        self.fed_back_pieces = tuple(pieces)
        if layer.recurrent and layer.hidden_units:  # y_hid comes first among the fed-back activations
            self.dense_loops["hid"] = slice(layer.input_size, layer.input_size + layer.hidden_units)

    def split(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        y, s = parts
        return {group.name: (s,) if group.name == "cell" else () for group in self.groups}, y

    def join(self, results: Results) -> Parts:
        empty = next(iter(results.values()))["a"][:, :0]
        hidden = results["hid"]["y"] if "hid" in results else empty
        if "cell" not in results:
            return hidden, empty
        cell, every = results["cell"], self.block_size  # the cells of a block have the same gates
        gates = [torch.sigmoid(cell[gate][:, ::every]) for gate in ("i", "o") if gate in cell]
        return torch.cat([hidden, *gates, cell["y"]], -1), cell["s"]
