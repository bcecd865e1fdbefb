"""Layers whose units have individual time constants: leaky integrators and local feedback."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longlag.layers import validation
from longlag.layers._stack import Options
from longlag.layers.bounds import AtLeastOne, Bounded
from longlag.layers.recurrent import Recurrent

MARGIN = 1e-3  # η of the papers' bounds: |u| ≤ 1 − η, |v| ≤ 2 (1 − η)


def _bind(layer: Recurrent, name: str, bound: nn.Module) -> None:
    for k in range(layer.num_layers * layer.directions):
        parametrize.register_parametrization(layer, name + layer.suffix(k), bound)


class Leaky(Recurrent):
    """Leaky integrator units.

    y(t) = (1 − 1/α) y(t−1) + tanh(W x(t) + b_ih + U y(t−1) + b_hh)/α [LEAKY 2]; α = 1 is Elman's network.

    Args:
        alpha: time constant in steps, at least 1; one number, or (H,) values.
        learn_alpha: train α, as α = 1 + softplus(α̂). The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> leaky, elman = ll.Leaky(3, 5, alpha=1.0), ll.Elman(3, 5)
    >>> _ = elman.load_state_dict({k: v for k, v in leaky.state_dict().items() if "alpha" not in k})
    >>> x = torch.randn(7, 2, 3)
    >>> torch.allclose(leaky(x)[0], elman(x)[0])
    True
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
        alpha: float | Tensor = 2.0,
        learn_alpha: bool = False,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        shape = tuple(torch.as_tensor(alpha).shape)
        if shape not in ((), (hidden_size,)):
            raise ValueError(f"Leaky: alpha must be one number or {hidden_size}, got shape {shape}")
        low = float(torch.as_tensor(alpha).min())
        if not low >= 1 or (learn_alpha and low == 1):
            raise ValueError(f"Leaky: alpha must be {'above' if learn_alpha else 'at least'} 1, got {low:g}")
        self._alpha = alpha
        super().__init__(
            cells.leaky,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )
        if learn_alpha:
            _bind(self, "alpha", AtLeastOne())
            self.reset_parameters()
        else:
            for k in range(self.num_layers * self.directions):
                getattr(self, "alpha" + self.suffix(k)).requires_grad_(False)

    def _initial_param(self, name: str) -> Tensor:
        return torch.as_tensor(self._alpha, dtype=torch.float64).expand(self.hidden_size)


class LocalFeedback(Recurrent):
    """Units that feed back only to themselves (Frasconi, Gori and Soda 1992); exact real-time learning costs O(w).

    f(a) = tanh(a/2), a = W x(t) + b;
    ``"net"``: n(t) = u n(t−1) + a, y(t) = f(n(t)) [LF-92 N];
    ``"activation"``: y(t) = f(v y(t−1) + a) [LF-92 A]; ``"static"``: y(t) = f(a) [LF-92 S].

    Args:
        feedback: ``"net"``, ``"activation"`` or ``"static"``.
        constrain: ``"forget"`` keeps |u| < 1 and |v| < 2 by u = (1−η) tanh û, v = 2 (1−η) tanh v̂: the influence
            of an input then provably fades, and no learning step can make the units diverge. The trained parameters
            are û and v̂ (``parametrizations.u_l0.original``); ``layer.u_l0 = value`` sets u, a write into
            ``layer.u_l0`` is lost. None: the paper's free range; the trained parameters are u and v (``u_l0``).
        time_constant: initial time constants τ are drawn log-uniformly from 1 to this many steps:
            u = e^(−1/τ), v = 2 e^(−1/τ). The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> layer = ll.LocalFeedback(3, 5, feedback="net")
    >>> bool((layer.u_l0.abs() < 1).all())
    True
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
        feedback: str = "net",
        constrain: str | None = "forget",
        time_constant: float = 100.0,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        kinds = {
            "net": cells.net_feedback,
            "activation": cells.activation_feedback,
            "static": cells.static,
        }
        validation.one_of("LocalFeedback", "feedback", feedback, tuple(kinds))
        validation.one_of("LocalFeedback", "constrain", constrain, (None, "forget"))
        if not time_constant >= 1:
            raise ValueError(f"LocalFeedback: time_constant must be at least 1 step, got {time_constant!r}")
        self.feedback, self.constrain, self.time_constant = feedback, constrain, time_constant
        super().__init__(
            kinds[feedback],
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )
        if constrain and self.cell.params:
            (name,) = self.cell.params
            _bind(self, name, Bounded((1 - MARGIN) * LIMIT[name]))  # [LF-92 4 u]
            self.reset_parameters()

    def _initial_param(self, name: str) -> Tensor:
        tau = torch.exp(torch.rand(self.hidden_size, dtype=torch.float64) * math.log(self.time_constant))
        return LIMIT[name] * torch.exp(-1 / tau)  # [LF-92 4 τ]

    def extra_repr(self) -> str:
        more: dict[str, Any] = {"feedback": self.feedback, "constrain": self.constrain}
        return super().extra_repr() + "".join(f", {k}={v!r}" for k, v in more.items() if v)


LIMIT = {"u": 1.0, "v": 2.0}  # 1/M, M the largest slope on the unit's own loop: 1 (identity), ½ (f)
