"""The layers that ``torch.nn`` has too: Elman's network, LSTM with a forget gate, GRU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from longlag.layers import validation
from longlag.layers._stack import Options
from longlag.layers.recurrent import Recurrent


class Elman(Recurrent):
    """Elman network; weights are interchangeable with ``torch.nn.RNN``.

    y(t) = tanh(W x(t) + b_ih + U y(t−1) + b_hh) [ELMAN 1], or relu in place of tanh.

    Args:
        nonlinearity: ``"tanh"`` or ``"relu"``. The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> theirs, ours = torch.nn.RNN(3, 5), ll.Elman(3, 5)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(7, 2, 3)
    >>> torch.allclose(theirs(x)[0], ours(x)[0], atol=1e-6)
    True
    """

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]: ...

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        validation.one_of("Elman", "nonlinearity", nonlinearity, ("tanh", "relu"))
        cell = cells.elman if nonlinearity == "tanh" else cells.elman_relu
        super().__init__(
            cell, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options
        )


class LSTM(Recurrent):
    """LSTM with a forget gate; weights are interchangeable with ``torch.nn.LSTM``.

    i, f, g, o = rows of W x(t) + b_ih + U y(t−1) + b_hh;
    c(t) = σ(f) c(t−1) + σ(i) tanh(g); y(t) = σ(o) tanh(c(t)) [LSTM-FG 25.24] [LSTM-FG 25.25].

    Args:
        forget_bias: if given, the initial bias of the forget gates (1 keeps memories from the start).
            The rest as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> y, (h, c) = ll.LSTM(3, 5, norm="layer", batch_first=True)(torch.randn(2, 7, 3), lengths=[7, 4])
    >>> bool((y[1, 4:] == 0).all()), torch.equal(h[0, 1], y[1, 3])
    (True, True)
    """

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...

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
        forget_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        if forget_bias is not None and not bias:
            raise ValueError("LSTM: forget_bias needs bias=True")
        self.forget_bias = forget_bias
        super().__init__(
            cells.lstm,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As `Recurrent`; the forget gate's two biases then sum to ``forget_bias``."""
        super().reset_parameters()
        if self.forget_bias is not None:
            names = ["bias_ih", "bias_hh"] if self.cell.dense else ["bias_ih"]
            forget = slice(self.hidden_size, 2 * self.hidden_size)
            for k in range(self.num_layers * self.directions):
                for name, value in zip(names, (self.forget_bias, 0.0)):
                    getattr(self, name + self.suffix(k))[forget] = value


class GRU(Recurrent):
    """Gated recurrent units; weights are interchangeable with ``torch.nn.GRU``.

    y(t) = (1 − σ(z)) tanh(n + σ(r) m) + σ(z) y(t−1); n reads x(t) only, m reads y(t−1) only [GRU 1].

    Args: as in `Recurrent`.

    >>> import torch, longlag as ll
    >>> theirs, ours = torch.nn.GRU(3, 5, 2, bidirectional=True), ll.GRU(3, 5, 2, bidirectional=True)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(7, 2, 3)
    >>> torch.allclose(theirs(x)[0], ours(x)[0], atol=1e-6)
    True
    """

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]: ...

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        from longlag import cells

        super().__init__(
            cells.gru,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            **options,
        )
