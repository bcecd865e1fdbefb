"""One step of an `LSTM97` and its derivatives. [LSTM-97 3.6]"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import linear

from longlag import cells
from longlag.layers import LSTM97
from longlag.learn._linear import Block, Errors, Linearised, Step
from longlag.learn._state import Parts, Values


class LSTM97Step(Step):
    """Rows of s: y_hid, y_ig, y_og, y_cell, then the cells' internal states s."""

    layer: LSTM97

    def __init__(self, layer: LSTM97) -> None:
        names = [f"{kind}_{section}" for kind in ("weight", "bias") for section in layer.sections]
        super().__init__(layer, {name: 0 for name in names if hasattr(layer, name)})
        self.at: dict[str, slice] = {}
        end = 0
        for section, size in {**layer.sections, "s": layer.cells}.items():
            self.at[section] = slice(end, end := end + size)

    def read_by(self, key: str) -> list[str]:
        return [key]

    def effective(self, key: str, gradient: Tensor) -> dict[str, Tensor]:
        return {key: gradient.view(getattr(self.layer, key).shape)}

    def linear(self, x: Tensor, state: Parts) -> Linearised:
        layer, at, (past, s) = self.layer, self.at, state
        w, b = layer.weights()
        source = torch.cat([x, past], -1) if layer.recurrent else x  # x̃ [LSTM-97 2]
        net = dict(zip(layer.sections, linear(source, w, b).split(list(layer.sections.values()), -1)))
        y = {section: torch.sigmoid(net[section]) for section in ("hid", "ig", "og")}
        gates = [self._each(net["ig"]), net["cell"], *([self._each(net["og"])] if layer.output_gates else [])]
        cell = cells.memory_cell(layer.g, layer.h, layer.output_gates)
        new, p = cell.with_partials(cell.outputs)(*gates, s)

        C = x.new_zeros(len(x), at["s"].stop, at["cell"].stop)  # ∂(y, s)/∂net
        for section, value in y.items():
            C[:, at[section], at[section]] = torch.diag_embed(value * (1 - value))  # [LSTM-97 3.6 dy_a]
        J = x.new_zeros(len(x), at["s"].stop, at["s"].stop)
        cell_of = torch.eye(layer.blocks, dtype=x.dtype, device=x.device).repeat_interleave(layer.block_size, 0)
        for out, rows in (("y", at["cell"]), ("s", at["s"])):  # [LSTM-97 3.6 dy_cell, Q]
            d = {v: torch.as_tensor(p[out, v], dtype=x.dtype, device=x.device).expand_as(s) for o, v in p if o == out}
            C[:, rows, at["cell"]] = torch.diag_embed(d["a"])
            for gate, section in (("i", "ig"), ("o", "og")):
                if gate in d:
                    C[:, rows, at[section]] = d[gate].unsqueeze(-1) * cell_of
            J[:, rows, at["s"]] = torch.diag_embed(d["s"])
        if layer.recurrent:
            J[:, :, : at["cell"].stop] = C @ w[:, layer.input_size :]  # [LSTM-97 3.6 dn]
        sections = {key: key.partition("_")[2] for key in self.firsts}
        blocks = [Block(k, C[:, :, at[of]], source if k.startswith("weight") else None) for k, of in sections.items()]
        seen = {"x": x.clone(), "y": torch.cat([*y.values(), new["y"]], -1)}
        return Linearised(self._read_out(seen), (seen["y"].clone(), new["s"]), J, blocks, seen)

    def _read_out(self, seen: Values) -> Tensor:
        y = seen["y"]
        return self.layer.read_out(seen["x"], y[:, self.at["hid"]], y[:, self.at["cell"]])

    def _each(self, gate: Tensor) -> Tensor:
        """A gate for every cell of its block."""
        return gate.repeat_interleave(self.layer.block_size, -1)

    def back(self, seen: Values, dy: Tensor, outer: Mapping[str, Tensor]) -> tuple[Errors, dict[str, Tensor]]:
        y = seen["y"].detach().requires_grad_()
        with torch.enable_grad():
            output = self._read_out({**seen, "y": y})
        e, *found = torch.autograd.grad(output, [y, *outer.values()], dy, materialize_grads=True)
        return [(slice(0, self.at["cell"].stop), e)], dict(zip(outer, found))  # e_hid, e_cell; 0 for the gates
