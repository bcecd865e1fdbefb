"""Recurrent links that skip over time steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longlag import engines
from longlag.engines import reference
from longlag.layers import validation
from longlag.layers._stack import OPTION_DEFAULTS, Options, Stack


class Skip(Stack):
    """Elman network with additional recurrent links of delay d.

    y(t) = tanh(W x(t) + b_ih + U y(t−1) + b_hh + Σ_d S_d y(t−d)) [SKIP 3]; a path over τ steps has ⌈τ/d⌉ links.

    Args:
        delays: the delays d, each at least 2; none gives `Elman`. ``weight_skip`` holds S_d for each delay in order.
            The rest as in `Recurrent`; ``norm`` is not offered.

    State: the last max(d) outputs, newest first: (num_layers · directions, B, max d, H).

    >>> import torch, longlag as ll
    >>> y, state = ll.Skip(3, 5, delays=(4, 10))(torch.randn(20, 2, 3))
    >>> state.shape
    torch.Size([1, 2, 10, 5])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        delays: Iterable[int] = (2,),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            options.get("recurrent_dropout", 0.0),
        )
        for name in options.keys() - Options.__annotations__.keys():
            raise TypeError(f"Skip: unknown option {name!r}")
        if options.get("norm") is not None:
            raise ValueError(f"Skip: norm must be None, got {options.get('norm')!r}")
        for name in ("recurrent", "recurrent_mask", "recurrent_signs", "learn_initial_state"):
            if (got := options.get(name, OPTION_DEFAULTS[name])) is not OPTION_DEFAULTS[name] and got != "dense":
                raise ValueError(f"Skip: {name} is not offered, got {got!r}")
        engines.check("Skip", options.get("engine", "auto"))
        if options.get("engine") == "cpu":
            raise ValueError("Skip: engine 'cpu' does not know delays; engine='reference' does")
        self.delays = tuple(validation.positive("Skip", "delays", d, least=2) for d in delays)
        if len(set(self.delays)) != len(self.delays):
            raise ValueError(f"Skip: delays must differ from each other, got {self.delays}")
        H, factory = hidden_size, {"device": options.get("device"), "dtype": options.get("dtype")}
        for k, size in enumerate(self.input_sizes()):
            shapes = {"weight_ih": (H, size), "weight_hh": (H, H), "weight_skip": (len(self.delays), H, H)}
            if bias:
                shapes |= {"bias_ih": (H,), "bias_hh": (H,)}
            for name, shape in shapes.items():
                self.register_parameter(name + self.suffix(k), nn.Parameter(torch.empty(shape, **factory)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−1/√H, 1/√H), as in torch."""
        for parameter in self.parameters():
            parameter.uniform_(-(self.hidden_size**-0.5), self.hidden_size**-0.5)

    @property
    def any_weight(self) -> Tensor:
        return next(self.parameters())

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"y": (max((1, *self.delays)), self.hidden_size)}

    def _run(
        self, k: int, x: Tensor, state: tuple[Tensor, ...] | None, sequences: validation.Sequences, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        assert state is not None
        W, U, S, b_ih, b_hh = (
            getattr(self, name + self.suffix(k), None)
            for name in ("weight_ih", "weight_hh", "weight_skip", "bias_ih", "bias_hh")
        )
        assert W is not None
        assert U is not None
        assert S is not None
        net = linear(x, W, None if b_ih is None else b_ih + b_hh)
        lags = [0, *(d - 1 for d in self.delays)]
        # one product for all links: [y(t−1), y(t−d₁), …] against [U, S_d₁, …]
        links = torch.cat([U, *S.unbind(0)], -1)

        def step(net_t: tuple[Tensor, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            (past,) = before  # (B, max d, H), newest first
            read = [past[:, k] if mask is None else past[:, k] * mask for k in lags]
            y = torch.tanh(net_t[0] + linear(torch.cat(read, -1), links))  # [SKIP 3]
            return y, (torch.cat([y.unsqueeze(1), past[:, :-1]], 1),)

        y, (past,) = reference.scan(
            step,
            (net,),
            state,
            lengths=sequences.lengths,
            reset=sequences.reset,
            reverse=self._runs_backwards(k),
        )
        return y, (past.unsqueeze(0),)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, delays={self.delays}"
