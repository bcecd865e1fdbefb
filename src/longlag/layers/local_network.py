"""The whole local-feedback network of 1992."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longlag import engines
from longlag.layers import _door
from longlag.layers._network import Network, Parts
from longlag.layers.local import LocalFeedback

Kinds = tuple[int, int, int]
KINDS = ("static", "net", "activation")


class LocalFeedbackNetwork(Network):
    """Local Feedback Multilayered Network (Frasconi, Gori and Soda 1992).

    Hidden layers hold static, net-input-feedback and activation-feedback units, in this order. Static output
    units read the last hidden layer; output units with feedback read the input itself [LF-92 1].

    Args:
        input_size: n.
        hidden: numbers of (static, net, activation) hidden units; a list of such triples for several layers.
        output: numbers of (static, net, activation) output units.
        bias: the source has none.
        constrain: ``"forget"`` keeps |u| < 1 and |v| < 2; see `LocalFeedback`.
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
        constrain: str | None = None,
        time_constant: float = 100.0,
        recurrent_dropout: float = 0.0,
        batch_first: bool = False,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = _door.positive(self._name, "input_size", input_size)
        layers = [hidden] if hidden and isinstance(hidden[0], int) else list(hidden)
        self.hidden_sizes = [self._kinds("hidden", kinds) for kinds in layers]
        self.output_sizes = self._kinds("output", output)
        if not self.hidden_sizes and self.output_sizes[0]:
            raise ValueError(f"{self._name}: hidden must name a layer for the static outputs to read, got none")
        engines.check(self._name, engine)
        self.batch_first = batch_first
        self.recurrent_dropout = _door.probability(self._name, "recurrent_dropout", recurrent_dropout)
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
        """Groups of units that carry a state, in the order of the state."""
        return {name: group.hidden_size for name, group in self._groups() if group.feedback != "static"}

    def _run(self, s: _door.Sequences, state: Parts) -> tuple[Tensor, Parts]:
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

    def _groups(self) -> list[tuple[str, LocalFeedback]]:
        return [(name, group) for name, group in self.groups.items() if isinstance(group, LocalFeedback)]

    @property
    def _weight(self) -> Tensor:
        return next(self.parameters())

    def _kinds(self, argument: str, kinds: Any) -> Kinds:
        fine = isinstance(kinds, tuple | list) and len(kinds) == 3
        if not fine or not all(type(n) is int and n >= 0 for n in kinds) or sum(kinds) == 0:
            raise ValueError(
                f"{self._name}: {argument} must be three numbers of units (static, net, activation), got {kinds!r}"
            )
        return tuple(kinds)

    def extra_repr(self) -> str:
        return f"{self.input_size}, hidden={self.hidden_sizes}, output={self.output_sizes}"


def _units(layer: str, width: int, kinds: Kinds, options: dict[str, Any]) -> dict[str, LocalFeedback]:
    return {f"{layer}_{kind}": LocalFeedback(width, n, feedback=kind, **options) for kind, n in zip(KINDS, kinds) if n}
