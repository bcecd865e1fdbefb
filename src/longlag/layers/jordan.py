"""Jordan's network: the next step reads the output, not the hidden state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.linalg import matrix_norm
from torch.nn.functional import linear, one_hot

from longlag import engines
from longlag.engines import reference
from longlag.layers import validation
from longlag.layers.state import Parts, State
from longlag.layers.step_layer import StepLayer

FEEDBACK = ("soft", "logits", "argmax", "sample")
DRAWS = ("token", "sequence", "mix")


class Jordan(StepLayer):
    """Jordan network (Jordan 1986), with or without hidden feedback: design patterns III and IV.

    r(t) = W x(t) + U fb(t−1) + R h(t−1) + b; h(t) = tanh r(t); z(t) = V h(t) + c_out; p(t) = softmax z(t)
    [JORDAN 2]; R only if ``hidden_feedback``. fb is p, or the teacher's y: fb = τ y + (1−τ) q [TF-MIX 4].

    Args:
        input_size: n; 0 for a network that reads only its own output.
        hidden_size, output_size: m and l.
        hidden_feedback: R h(t−1) as well (pattern IV).
        feedback: q: ``"soft"`` p(t), ``"logits"`` z(t), ``"argmax"`` or ``"sample"`` one-hot (no gradient).
        start: fb before the first step: ``"uniform"`` 1/l or ``"zero"``.
        recurrent_dropout: probability that a fed-back output is dropped, one draw per sequence.

    Returns logits z, ready for ``cross_entropy``. State: fb (B, l), or (fb, h) with hidden feedback.

    >>> import torch, longlag as ll
    >>> net = ll.Jordan(3, 8, 4)
    >>> x, targets = torch.randn(10, 2, 3), torch.randint(4, (10, 2))
    >>> z, state = net(x, targets=targets)  # teacher forcing
    >>> z, state = net(x, targets=targets, teacher=0.5)  # scheduled sampling, a coin per token
    >>> z, state = net(x)  # free running
    >>> torch.allclose(state, z[-1].softmax(-1))
    True
    """

    _least_input_size = 0
    weight_ih: Tensor  # W
    weight_fb: Tensor  # U
    weight_ho: Tensor  # V

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        hidden_feedback: bool = False,
        feedback: str = "soft",
        start: str = "uniform",
        bias: bool = True,
        batch_first: bool = False,
        recurrent_dropout: float = 0.0,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, batch_first=batch_first)
        self.hidden_size = m = validation.positive("Jordan", "hidden_size", hidden_size)
        self.output_size = l = validation.positive("Jordan", "output_size", output_size)
        self.feedback = validation.one_of("Jordan", "feedback", feedback, FEEDBACK)
        self.start = validation.one_of("Jordan", "start", start, ("uniform", "zero"))
        self.recurrent_dropout = validation.probability("Jordan", "recurrent_dropout", recurrent_dropout)
        engines.check("Jordan", engine)
        self.hidden_feedback, self.engine = hidden_feedback, engine
        self.teacher_size, self.draws = output_size, feedback == "sample"
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (m, input_size), "weight_fb": (m, l)}  # W, U
        if hidden_feedback:
            shapes["weight_hh"] = (m, m)  # R
        shapes["weight_ho"] = (l, m)  # V
        if bias:
            shapes |= {"bias_h": (m,), "bias_o": (l,)}  # b, c_out
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """U(−1/√m, 1/√m)."""
        for parameter in self.parameters():
            parameter.uniform_(-(self.hidden_size**-0.5), self.hidden_size**-0.5)

    @property
    def state_sizes(self) -> dict[str, int]:
        hidden = {"h": self.hidden_size} if self.hidden_feedback else {}
        return {"fb": self.output_size, **hidden}

    @property
    def any_weight(self) -> Tensor:
        return self.weight_fb

    def initial_state(self, batch: int) -> State:
        """The feedback before the first step: uniform or zero, as ``start`` says; no hidden activity."""
        value = 1 / self.output_size if self.start == "uniform" else 0.0
        hidden = [self.any_weight.new_zeros(batch, self.hidden_size)] if self.hidden_feedback else []
        return self.state_spec.whole([self.any_weight.new_full((batch, self.output_size), value), *hidden])

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        targets: Tensor | None = None,
        teacher: float = 1.0,
        draw: str = "token",
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, State]:
        """Run over whole sequences.

        Args:
            x, state, lengths, reset: as in `Recurrent`.
            targets: fed back in place of the output: classes (T, B) or vectors (T, B, l); (B, T, …) if
                ``batch_first``. None: free running.
            teacher: ε, the probability (or weight) of the targets in the feedback; see `longlag.layers.schedules`.
            draw: ``"token"``: one coin flip per step and sequence; ``"sequence"``: one per sequence; ``"mix"``: no
                coin, fb = ε y + (1−ε) q.
        """
        s = validation.sequences(self, x, lengths, reset)
        before, y, tau = self.starting_state(state, s), None, None
        if targets is not None:
            y, tau = self._validated_targets(targets, s), self._tau(s, teacher, draw, generator)
        elif teacher != 1:
            raise ValueError(f"Jordan: teacher={teacher!r} needs targets to feed back, got none")
        if y is not None and teacher == 1 and not self.hidden_feedback:
            z, final = self._all_at_once(s, y, before)
        else:
            z, final = self._run(s, before, y, tau, generator)
        return s.restore(z), self._final(final, s)

    def _all_at_once(self, s: validation.Sequences, targets: Tensor, state: Parts) -> tuple[Tensor, Parts]:
        """Teacher forcing decouples the steps of pattern III: no loop over time is left. [PAT-III]"""
        fb = torch.cat([state[0].unsqueeze(0), targets[:-1]])  # the feedback that step t reads
        if s.reset is not None:
            fb = torch.where(s.reset.unsqueeze(-1), self.state_spec.parts(self.initial_state(s.batch))[0], fb)
        mask = self._dropout_mask(s.batch)
        r = linear(s.x, self.weight_ih, getattr(self, "bias_h", None))
        r = r + linear(fb if mask is None else fb * mask, self.weight_fb)
        z = linear(torch.tanh(r), self.weight_ho, getattr(self, "bias_o", None))  # [PAT-III]
        if s.lengths is None:
            return z, (targets[-1],)
        active = torch.arange(s.steps, device=z.device)[:, None] < s.lengths
        final = targets[(s.lengths - 1).clamp(0, s.steps - 1), torch.arange(s.batch, device=z.device)]
        return torch.where(active.unsqueeze(-1), z, torch.zeros_like(z)), (final,)

    def _run(
        self,
        s: validation.Sequences,
        state: Parts,
        targets: Tensor | None = None,
        tau: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Parts]:
        R, b, c_out = (getattr(self, name, None) for name in ("weight_hh", "bias_h", "bias_o"))
        mask, rest = self._dropout_mask(s.batch), self.state_spec.parts(self.initial_state(s.batch))
        if self._engine(s.x, mask, targets) == "cpu":
            h = state[1] if R is not None else s.x.new_zeros(s.batch, self.hidden_size)
            after_reset = self.state_spec.parts(self.initial_state(1))[0][0]  # fb (l,)
            z, final = engines.run_jordan(
                s.x, (self.weight_ih, b, self.weight_fb, R, self.weight_ho, c_out), (state[0], h), after_reset,
                targets=targets, tau=None if tau is None else tau.squeeze(-1), lengths=s.lengths, reset=s.reset,
                logits=self.feedback == "logits",
            )  # fmt: skip
            return z, final[: len(state)]
        taught = () if targets is None or tau is None else (tau, targets)

        def step(now: Parts, before: Parts) -> tuple[Tensor, Parts]:
            net_x, *given = now
            fb, *h = before
            r = net_x + linear(fb if mask is None else fb * mask, self.weight_fb)  # [JORDAN 2 r]
            if R is not None:
                r = r + linear(h[0], R)  # [PAT-IV]
            new_h = torch.tanh(r)  # [JORDAN 2 h]
            z = linear(new_h, self.weight_ho, c_out)  # [JORDAN 2 z]
            fb = self._fed_back(z, generator)
            if given:
                tau_t, y_t = given
                fb = tau_t * y_t + (1 - tau_t) * fb  # [TF-MIX 4 fb]
            return z, (fb, new_h) if R is not None else (fb,)

        net_x = linear(s.x, self.weight_ih, b)
        return reference.scan(step, (net_x, *taught), state, rest=rest, lengths=s.lengths, reset=s.reset)

    def _engine(self, x: Tensor, mask: Tensor | None, targets: Tensor | None) -> str:
        """The engine for this call; the CPU engine supports only soft or logits feedback and constant targets."""
        obstacles = {
            f"feedback={self.feedback!r}": self.feedback not in ("soft", "logits"),
            "recurrent_dropout": mask is not None,
            "torch.compile, or a mode that watches operations": engines.as_operator(),
            "targets with gradients": targets is not None and targets.requires_grad,
        }
        found = [text for text, there in obstacles.items() if there]
        if found and self.engine == "cpu":
            raise ValueError(f"Jordan: engine 'cpu' does not serve {found[0]}; engine='reference' does")
        return "reference" if found else engines.choose(self.engine, x, *self.parameters(), targets)[0]

    def engine_for(self, x: Tensor) -> str:
        if self._engine(x, None, None) == "reference" and self.feedback not in ("soft", "logits"):
            return f"reference: feedback={self.feedback!r} has no kernel"
        return ": ".join(engines.choose(self.engine, x))

    def gain_bound(self) -> tuple[float, str] | None:
        """‖diag p − p pᵀ‖₂ ≤ ½, so one step scales an error by at most ½ ‖V‖ ‖U‖; argmax feeds back no error."""
        if self.hidden_feedback:
            return None
        if self.feedback == "argmax":
            return 0.0, "0: argmax feeds back no error"
        product = float(matrix_norm(self.weight_ho.detach(), 2) * matrix_norm(self.weight_fb.detach(), 2))
        # [JORDAN 2 bound]
        return (product / 2, "(½ ‖V‖ ‖U‖)^q") if self.feedback == "soft" else (product, "(‖V‖ ‖U‖)^q")

    def _fed_back(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """q(t) from the logits."""
        if self.feedback == "logits":
            return z
        p = torch.softmax(z, -1)  # [JORDAN 2 p]
        if self.feedback == "soft":
            return p
        if self.feedback == "argmax":
            index = p.argmax(-1)
        else:
            index = torch.multinomial(p.detach(), 1, generator=generator).squeeze(-1)
        return one_hot(index, self.output_size).to(z.dtype)

    def _validated_targets(self, targets: Tensor, s: validation.Sequences) -> Tensor:
        """Targets as vectors (T, B, l)."""
        shape = (s.steps, s.batch)
        if not isinstance(targets, Tensor):
            raise TypeError(f"Jordan: targets must be a tensor, got {type(targets).__name__}")
        if not s.batched:
            targets = targets.unsqueeze(1)
        elif self.batch_first:
            targets = targets.transpose(0, 1)
        if targets.shape[:2] == shape and s.lengths is not None:  # padding (−100, say) is not read
            beyond = torch.arange(s.steps, device=s.lengths.device)[:, None] >= s.lengths
            targets = targets.masked_fill(beyond.view(*shape, *[1] * (targets.dim() - 2)), 0)
        if targets.shape == shape and targets.dtype == torch.long:
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= self.output_size:
                wrong = low if low < 0 else high
                raise ValueError(f"Jordan: targets must lie in 0..{self.output_size - 1}, got {wrong}")
            return one_hot(targets, self.output_size).to(self.any_weight.dtype)
        if targets.shape == (*shape, self.output_size):
            return validation.like("Jordan", "targets", targets, self.any_weight)
        raise ValueError(
            f"Jordan: targets must be int64 classes {shape} or vectors {(*shape, self.output_size)} (T, B, …), "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )

    def _tau(self, s: validation.Sequences, teacher: float, draw: str, generator: torch.Generator | None) -> Tensor:
        """τ (T, B, 1)."""
        validation.one_of("Jordan", "draw", draw, DRAWS)
        if not 0 <= teacher <= 1:
            raise ValueError(f"Jordan: teacher must be a number in [0, 1], got {teacher!r}")
        tau = self.any_weight.new_full((s.steps, s.batch, 1), teacher)
        if draw == "token":
            tau = torch.bernoulli(tau, generator=generator)
        elif draw == "sequence":
            tau = torch.bernoulli(tau[:1], generator=generator).expand_as(tau)
        return tau

    def extra_repr(self) -> str:
        hidden = ", hidden_feedback=True" if self.hidden_feedback else ""
        return f"{self.input_size}, {self.hidden_size}, {self.output_size}, feedback={self.feedback!r}{hidden}"
