"""LSTM as published in 1997: memory-cell blocks, no forget gate; all units except the outputs are fed back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longlag import engines
from longlag.engines import reference
from longlag.layers import validation
from longlag.layers.linear97 import CutLSTM97, LSTM97Step
from longlag.layers.state import Parts, State
from longlag.layers.step_layer import Step, StepLayer
from longlag.layers.units import NotLocal

SQUASH = ("4s-2", "2s-1", "logistic", "tanh", "identity")
BIASES = ("hidden", "gates", "cells", "output")


class LSTM97(StepLayer):
    """The network of Hochreiter and Schmidhuber (1997).

    x̃ = [x(t); y_hid; y_ig; y_og; y_cell] of the step before; for block k and its cells j:
    y_hid = σ(w_hid x̃), y_ig = σ(w_ig x̃), y_og = σ(w_og x̃);
    s_kj ← s_kj + y_ig,k g(w_cell x̃)_kj; y_cell,kj = y_og,k h(s_kj);
    output = f_out(w_out [x(t) if wired; y_hid; y_cell]), from the new activations [LSTM-97 2].

    Args:
        input_size: d_in.
        blocks, block_size: memory-cell blocks and cells in each; the cells of a block share their gates.
        hidden_units: conventional hidden units.
        output_size: output units; None returns [y_hid; y_cell] instead.
        input_gate_bias, output_gate_bias: initial biases, one per block or one for all; None: random.
        output_gates: False leaves every cell open (y_og = 1).
        recurrent: False: hidden units, gates and cells read x only.
        input_to_output: wire inputs to the output units.
        bias: which groups have biases: True (all), False, or some of ``"hidden", "gates", "cells", "output"``.
        g, h: squashing functions: ``"4s-2"``, ``"2s-1"``, ``"logistic"``, ``"tanh"``, ``"identity"``.
        output: ``"logistic"`` or ``"linear"`` output units.
        init_range: weights start uniform in (−init_range, init_range).

    State: ``(y, s)`` with y = [y_hid; y_ig; y_og; y_cell] (B, R) and s (B, cells).

    >>> import torch, longlag as ll
    >>> net = ll.LSTM97(2, blocks=2, block_size=2, output_size=1, input_gate_bias=[-3, -6])  # experiment 4
    >>> sum(p.numel() for p in net.parameters())
    93
    >>> out, (y, s) = net(torch.randn(100, 5, 2))
    >>> out.shape, y.shape, s.shape
    (torch.Size([100, 5, 1]), torch.Size([5, 8]), torch.Size([5, 4]))
    """

    has_partials = True
    weight_out: Tensor

    def __init__(
        self,
        input_size: int,
        blocks: int,
        block_size: int = 1,
        hidden_units: int = 0,
        output_size: int | None = None,
        *,
        input_gate_bias: float | Sequence[float] | None = None,
        output_gate_bias: float | Sequence[float] | None = None,
        output_gates: bool = True,
        recurrent: bool = True,
        input_to_output: bool = False,
        bias: bool | Iterable[str] = True,
        g: str = "4s-2",
        h: str = "2s-1",
        output: str = "logistic",
        init_range: float = 0.1,
        batch_first: bool = False,
        recurrent_dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, batch_first=batch_first)
        self.blocks = validation.positive("LSTM97", "blocks", blocks, least=0)
        self.block_size = validation.positive("LSTM97", "block_size", block_size)
        self.hidden_units = validation.positive("LSTM97", "hidden_units", hidden_units, least=0)
        self.output_size = None if output_size is None else validation.positive("LSTM97", "output_size", output_size)
        if output_size is None and blocks == hidden_units == 0:
            raise ValueError("LSTM97: blocks, hidden_units and output_size give a network without units")
        self.g = validation.one_of("LSTM97", "g", g, SQUASH)
        self.h = validation.one_of("LSTM97", "h", h, SQUASH)
        self.output = validation.one_of("LSTM97", "output", output, ("logistic", "linear"))
        self.biased = self._groups(bias)
        if not init_range > 0:
            raise ValueError(f"LSTM97: init_range must be positive, got {init_range!r}")
        self.init_range = init_range
        self.output_gates, self.recurrent, self.input_to_output = output_gates, recurrent, input_to_output
        self.recurrent_dropout = validation.probability("LSTM97", "recurrent_dropout", recurrent_dropout)
        engines.check("LSTM97", engine)
        self.engine = engine
        self.input_gate_bias = self._gate_bias("input_gate_bias", input_gate_bias)
        self.output_gate_bias = self._gate_bias("output_gate_bias", output_gate_bias)
        for name, shape in self._shapes().items():
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    # --------------------------------------------------------------------------------------------- structure
    @property
    def cells(self) -> int:
        """Number of memory cells."""
        return self.blocks * self.block_size

    @property
    def sections(self) -> dict[str, int]:
        """The fed-back activations in their order in y: group -> number of units."""
        og = self.blocks if self.output_gates else 0
        return {"hid": self.hidden_units, "ig": self.blocks, "og": og, "cell": self.cells}

    @property
    def state_sizes(self) -> dict[str, int]:
        return {"y": sum(self.sections.values()), "s": self.cells}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        D = self.input_size + (sum(self.sections.values()) if self.recurrent else 0)  # [LSTM-97 2 D]
        shapes: dict[str, tuple[int, ...]] = {f"weight_{k}": (n, D) for k, n in self.sections.items() if n}
        group = {"hid": "hidden", "ig": "gates", "og": "gates", "cell": "cells"}
        shapes |= {f"bias_{k}": (n,) for k, n in self.sections.items() if n and group[k] in self.biased}
        if self.output_size is not None:
            seen = (self.input_size if self.input_to_output else 0) + self.hidden_units + self.cells
            shapes["weight_out"] = (self.output_size, seen)
            if "output" in self.biased:
                shapes["bias_out"] = (self.output_size,)
        return shapes

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Uniform in the initial range; then the gate biases given to the constructor."""
        for parameter in self.parameters():
            parameter.uniform_(-self.init_range, self.init_range)
        for name, values in (("bias_ig", self.input_gate_bias), ("bias_og", self.output_gate_bias)):
            if values is not None:
                getattr(self, name).copy_(torch.as_tensor(values, dtype=torch.float64))

    @torch.no_grad()
    def add_block(self, *, input_gate_bias: float | None = None, output_gate_bias: float | None = None) -> None:
        """Add one block with its gates; existing weights stay, new ones are uniform in the initial range.

        Parameters are replaced by larger ones: create a new optimiser, and start from a new state.

        >>> import longlag as ll
        >>> net = ll.LSTM97(3, blocks=0, output_size=2, input_to_output=True)
        >>> net.add_block(input_gate_bias=-1.0)
        >>> net.blocks, net.weight_out.shape
        (1, torch.Size([2, 4]))
        """
        biases = {"bias_ig": input_gate_bias, "bias_og": output_gate_bias}
        self._gate_bias("input_gate_bias", input_gate_bias)
        self._gate_bias("output_gate_bias", output_gate_bias)
        old, names = self.sections, dict(self.named_parameters())
        like = next(self.parameters())
        self.blocks += 1  # [LSTM-97 4]
        for name, shape in self._shapes().items():
            new = like.new_empty(shape).uniform_(-self.init_range, self.init_range)
            if name in names:
                value = names[name]
                if value.dim() == 1:
                    new[: len(value)] = value
                else:
                    new[: len(value), self._old_columns(name, old)] = value
            if (bias := biases.get(name)) is not None:
                new[-1] = bias
            self.register_parameter(name, nn.Parameter(new))
        self.input_gate_bias = self.output_gate_bias = None

    def _old_columns(self, name: str, old: dict[str, int]) -> list[int]:
        """The new positions of a matrix's columns after the sections grew from ``old`` to their present sizes."""
        if name == "weight_out":
            return list(range((self.input_size if self.input_to_output else 0) + old["hid"] + old["cell"]))
        columns = list(range(self.input_size))
        start = self.input_size
        for section, n in self.sections.items() if self.recurrent else ():
            columns += range(start, start + old[section])
            start += n
        return columns

    # ------------------------------------------------------------------------------------------------- forward
    @property
    def any_weight(self) -> Tensor:
        return next(self.parameters())

    def weights(self) -> tuple[Tensor, Tensor | None]:
        """All rows of [w_hid; w_ig; w_og; w_cell] as one matrix (R, D) and one bias (R,), 0 for groups without bias."""
        parts = [(k, n) for k, n in self.sections.items() if n]
        if not parts:
            return self.any_weight.new_empty(0, self.input_size), None
        w = torch.cat([getattr(self, f"weight_{k}") for k, _ in parts])
        biases = [getattr(self, f"bias_{k}", None) for k, _ in parts]
        if all(b is None for b in biases):
            return w, None
        return w, torch.cat([w.new_zeros(n) if b is None else b for (_, n), b in zip(parts, biases)])

    def _run(self, s: validation.Sequences, state: Parts) -> tuple[Tensor, Parts]:
        w, b = self.weights()
        mask, n = self._dropout_mask(s.batch), self.input_size
        engine, _ = engines.choose(self.engine, s.x, w, b, *state, mask)
        if engine == "cpu" and self.blocks:
            layout = (self.hidden_units, self.blocks, self.block_size, self.output_gates)
            U, mask = (w[:, n:], mask) if self.recurrent else (None, None)
            weights = engines.Weights(w[:, :n], b, U)
            y, final = engines.run_blocks(
                self.g, self.h, layout, s.x, weights, state, mask=mask, lengths=s.lengths, reset=s.reset
            )
        else:
            step = self._stepper(w[:, n:] if self.recurrent else None, mask)
            y, final = reference.scan(step, (linear(s.x, w[:, :n], b),), state, lengths=s.lengths, reset=s.reset)
        y_hid, _, _, y_cell = y.split(list(self.sections.values()), -1)
        output = self.read_out(s.x, y_hid, y_cell)
        if s.lengths is not None:
            active = torch.arange(s.steps, device=y.device)[:, None] < s.lengths
            output = torch.where(active.unsqueeze(-1), output, torch.zeros_like(output))
        return output, final

    def engine_for(self, x: Tensor) -> str:
        if not self.blocks:
            return "reference: a network without memory cells has no kernel"
        return ": ".join(engines.choose(self.engine, x))

    def _stepper(self, w_y: Tensor | None, mask: Tensor | None) -> Step:
        from longlag.cells import memory_cell

        cell = memory_cell(self.g, self.h, self.output_gates)
        sizes = list(self.sections.values())

        def step(net_x: Parts, before: Parts) -> tuple[Tensor, Parts]:
            y, s = before
            net = net_x[0]
            if w_y is not None:
                net = net + linear(y if mask is None else y * mask, w_y)  # [LSTM-97 2 x̃]
            hid, ig, og, a = net.split(sizes, -1)
            each = lambda gate: gate.repeat_interleave(self.block_size, -1)  # noqa: E731  (gates serve a block)
            y_cell, s = cell.step(each(ig), a, *([each(og)] if self.output_gates else []), s)
            y = torch.cat([torch.sigmoid(torch.cat([hid, ig, og], -1)), y_cell], -1)  # [LSTM-97 2 hid]
            return y, (y, s)

        return step

    def read_out(self, x: Tensor, y_hid: Tensor, y_cell: Tensor) -> Tensor:
        """The output units, from inputs and new activations (…, n)."""
        seen = torch.cat([*([x] if self.input_to_output else []), y_hid, y_cell], -1)
        if self.output_size is None:
            return torch.cat([y_hid, y_cell], -1)
        z = linear(seen, self.weight_out, getattr(self, "bias_out", None))
        return torch.sigmoid(z) if self.output == "logistic" else z  # [LSTM-97 2 out]

    # --------------------------------------------------------------------------------------------- derivatives
    def linearise(self, x_t: Tensor, state: State | None = None, *, teacher: Tensor | None = None) -> LSTM97Step:
        """One step of a batch together with its exact derivatives; see `Layer.linearise`."""
        return LSTM97Step(self, x_t, self.validate_state(state, len(x_t)))

    def state_parameters(self) -> list[str]:
        """All parameters except those of the output units."""
        return [name for name in self._shapes() if not name.endswith("_out")]

    def local_units(self, *, cut: bool = False) -> CutLSTM97:
        """The units under the truncation of 1997; without it the fed-back activations couple the units."""
        if not cut and self.recurrent:
            raise NotLocal("feeds units back to each other")
        return CutLSTM97(self)

    # ------------------------------------------------------------------------------------------------- checks
    def _groups(self, bias: bool | Iterable[str]) -> tuple[str, ...]:
        if isinstance(bias, bool):
            return BIASES if bias else ()
        groups = tuple(bias)
        for group in groups:
            validation.one_of("LSTM97", "bias", group, BIASES)
        return groups

    def _gate_bias(self, name: str, value: float | Sequence[float] | None) -> list[float] | None:
        if value is None:
            return None
        if "gates" not in self.biased or (name == "output_gate_bias" and not self.output_gates):
            got = f"bias={self.biased}, output_gates={self.output_gates}"
            raise ValueError(f"LSTM97: {name} needs gates with biases, got {got}")
        values = [float(value)] * self.blocks if isinstance(value, int | float) else [float(v) for v in value]
        if len(values) != self.blocks:
            raise ValueError(f"LSTM97: {name} must give one value per block ({self.blocks}), got {len(values)}")
        return values

    def extra_repr(self) -> str:
        out = "" if self.output_size is None else f", output_size={self.output_size}"
        units = f"blocks={self.blocks}, block_size={self.block_size}, hidden_units={self.hidden_units}"
        return f"{self.input_size}, {units}{out}"
