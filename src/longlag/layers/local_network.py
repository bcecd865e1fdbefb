"""The whole local-feedback network of 1992."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longlag import engines
from longlag.layers import validation
from longlag.layers.local import LocalFeedback
from longlag.layers.state import Parts
from longlag.layers.step_layer import StepLayer
from longlag.layers.units import INPUT, LocalLevel, NotLocal, Results, UnitGraph

Kinds = tuple[int, int, int]
KINDS = ("static", "net", "activation")


class LocalFeedbackNetwork(StepLayer):
    """Local Feedback Multilayered Network (Frasconi, Gori and Soda 1992).

    Hidden layers hold static, net-input-feedback and activation-feedback units, in this order. Static output
    units read the last hidden layer; output units with feedback read the input itself [LF-92 1].

    Args:
        input_size: n.
        hidden: numbers of (static, net, activation) hidden units; a list of such triples for several layers.
        output: numbers of (static, net, activation) output units.
        bias: the source has none.
        constrain: ``"forget"`` keeps |u| < 1 and |v| < 2; None: the paper's free range; see `LocalFeedback`.
        time_constant: as in `LocalFeedback`. recurrent_dropout, batch_first, engine: as in `Recurrent`.

    State: one (B, units) tensor for every group with feedback, hidden layers first; see ``state_sizes``.

    >>> import torch, longlag as ll
    >>> net = ll.LocalFeedbackNetwork(3, hidden=(2, 3, 4), output=(1, 1, 1))
    >>> sum(p.numel() for p in net.parameters())  # m n + m_N + m_A + l_S m + (l_N + l_A)(n + 1)
    51
    >>> y, state = net(torch.randn(10, 5, 3))
    >>> y.shape, list(net.state_sizes)
    (torch.Size([10, 5, 3]), ['hidden_0_net', 'hidden_0_activation', 'output_net', 'output_activation'])
    """

    def __init__(
        self,
        input_size: int,
        hidden: Kinds | Sequence[Kinds],
        output: Kinds,
        *,
        bias: bool = False,
        constrain: str | None = "forget",
        time_constant: float = 100.0,
        recurrent_dropout: float = 0.0,
        batch_first: bool = False,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, batch_first=batch_first)
        layers = [hidden] if hidden and isinstance(hidden[0], int) else list(hidden)
        self.hidden_sizes = [self._kinds("hidden", kinds) for kinds in layers]
        self.output_sizes = self._kinds("output", output)
        if not self.hidden_sizes and self.output_sizes[0]:
            raise ValueError(f"{self.class_name}: hidden must name a layer for the static outputs to read, got none")
        engines.check_for_cells(self.class_name, engine)
        self.recurrent_dropout = validation.probability(self.class_name, "recurrent_dropout", recurrent_dropout)
        self.output_size = sum(self.output_sizes)
        options: dict[str, Any] = {
            "bias": bias,
            "constrain": constrain,
            "time_constant": time_constant,
            "recurrent_dropout": recurrent_dropout,
            "engine": engine,
            "device": device,
            "dtype": dtype,
        }
        groups: dict[str, LocalFeedback] = {}
        width = input_size
        for i, kinds in enumerate(self.hidden_sizes):
            groups |= _units(f"hidden_{i}", width, kinds, options)
            width = sum(kinds)
        groups |= _units("output", width, (self.output_sizes[0], 0, 0), options)
        groups |= _units("output", input_size, (0, *self.output_sizes[1:]), options)
        self.groups = nn.ModuleDict(groups)

    @property
    def state_sizes(self) -> dict[str, int]:
        """Groups of units with a state, in the order of the state."""
        return {name: group.hidden_size for name, group in self.unit_groups() if group.feedback != "static"}

    def _run(self, s: validation.Sequences, state: Parts) -> tuple[Tensor, Parts]:
        before, after = dict(zip(self.state_sizes, state)), {}

        def run(layer: str, below: Tensor, kinds: Iterable[str] = KINDS) -> list[Tensor]:
            outputs = []
            for name in (f"{layer}_{kind}" for kind in kinds):
                if name in self.groups:
                    given = before[name].unsqueeze(0) if name in before else ()
                    y, new = self.groups[name](below, given, lengths=s.lengths, reset=s.reset)
                    outputs.append(y)
                    if name in before:
                        after[name] = new.squeeze(0)
            return outputs

        h = s.x
        for i in range(len(self.hidden_sizes)):
            h = torch.cat(run(f"hidden_{i}", h), -1)  # [LF-92-ML 5]
        y = [*run("output", h, KINDS[:1]), *run("output", s.x, KINDS[1:])]  # [LF-92 1 out]
        return torch.cat(y, -1), tuple(after.values())

    # --------------------------------------------------------------------------------------------- derivatives
    def local_units(self, *, cut: bool = False) -> UnitGraph:
        """A chain of hidden layers; output units with feedback read x. [LF-92 1]"""
        if cut:
            raise NotLocal("feeds back nothing through a matrix, so there is nothing to cut (LocalForward is exact)")
        return LocalNetworkUnits(self)

    def gain_bound(self) -> tuple[float, str] | None:
        """The largest gain of a loop, for one hidden layer."""
        if len(self.hidden_sizes) > 1:
            return None
        found = [group.gain_bound() for name, group in self.unit_groups() if name in self.state_sizes]
        return max((f[0] for f in found if f is not None), default=0.0), "max(|u|, |v|/2)^q"

    def unit_groups(self) -> list[tuple[str, LocalFeedback]]:
        """The layers of units of one kind, by name, in the order in which a step computes them."""
        return [(name, group) for name, group in self.groups.items() if isinstance(group, LocalFeedback)]

    @property
    def any_weight(self) -> Tensor:
        return next(self.parameters())

    def _kinds(self, argument: str, kinds: Any) -> Kinds:
        fine = isinstance(kinds, tuple | list) and len(kinds) == 3
        if not fine or not all(type(n) is int and n >= 0 for n in kinds) or sum(kinds) == 0:
            raise ValueError(
                f"{self.class_name}: {argument} must be three numbers of units (static, net, activation), got {kinds!r}"
            )
        return tuple(kinds)

    def extra_repr(self) -> str:
        return f"{self.input_size}, hidden={self.hidden_sizes}, output={self.output_sizes}"


class LocalNetworkUnits(UnitGraph):
    """The groups of a `LocalFeedbackNetwork`."""

    def __init__(self, layer: LocalFeedbackNetwork) -> None:
        self.carried = list(layer.state_sizes)
        below: dict[str, tuple[str, ...]] = {}
        hidden: tuple[str, ...] = (INPUT,)
        for i in range(len(layer.hidden_sizes)):
            names = tuple(name for name in layer.groups if name.startswith(f"hidden_{i}_"))
            below |= dict.fromkeys(names, hidden)
            hidden = names
        below |= {"output_static": hidden, "output_net": (INPUT,), "output_activation": (INPUT,)}
        groups = [LocalLevel(group, 0, name, below[name], f"groups.{name}.") for name, group in layer.unit_groups()]
        super().__init__(groups, [group.name for group in groups if group.name.startswith("output_")])

    def split(self, parts: Parts) -> tuple[dict[str, Parts], Tensor | None]:
        loops = {name: (part,) for name, part in zip(self.carried, parts)}
        return {group.name: loops.get(group.name, ()) for group in self.groups}, None

    def join(self, results: Results) -> Parts:
        return tuple(results[group.name][group.loop[0]] for group in self.groups if group.loop)


def _units(layer: str, width: int, kinds: Kinds, options: dict[str, Any]) -> dict[str, LocalFeedback]:
    return {f"{layer}_{kind}": LocalFeedback(width, n, feedback=kind, **options) for kind, n in zip(KINDS, kinds) if n}
