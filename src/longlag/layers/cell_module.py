"""A layer as a module of one step, like ``torch.nn.LSTMCell``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from longlag.layers.recurrent import Recurrent
    from longlag.layers.state import State


class CellModule(nn.Module):
    """One step of a `Recurrent` layer of one level; see `Recurrent.as_cell`."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        owner = f"{layer.class_name}.as_cell"
        if layer.num_layers > 1 or layer.bidirectional:
            raise ValueError(f"{owner}: needs num_layers=1 and bidirectional=False; layer.step works for stacks")
        if layer.cell.fed_back[:1] != ("y",):
            raise ValueError(f"{owner}: the output of cell {layer.cell.name} is not in its state; use layer.step")
        if parametrize.is_parametrized(layer):
            raise ValueError(f"{owner}: {layer.class_name} has parametrised weights; use layer.step")
        self._layer = [layer]  # in a list: its parameters are registered here, under other names
        for name, parameter in layer.named_parameters():
            self.register_parameter(name.removesuffix("_l0"), parameter)

    def forward(self, x: Tensor, state: State | None = None) -> State:
        """x (B, I) or (I,) and the parts of the state, each (B, H) or (H,), to the new state; zeros by default."""
        layer = self._layer[0]
        spec = layer.state_spec
        before = None if state is None else spec.whole([part.unsqueeze(0) for part in spec.parts(state)])
        _, new = layer.step(x, before)
        return spec.whole([part.squeeze(0) for part in spec.parts(new)])

    def extra_repr(self) -> str:
        return f"{self._layer[0].input_size}, {self._layer[0].hidden_size}"
