"""The time loop of real-time learning, written once and compiled for each network.

A step has two parts. First every sample goes forward, and its loss is formed; where an input, a state or a loss is not
finite, the kernel stops, and weights, gradients and traces are those before the step. Then errors go back, gradients
are summed, traces advance, and the update follows where the flags of the step ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from longlag.engines.cpu.cache.compile import call
from longlag.engines.cpu.codegen.pointers import INLINE, address, pointer, row
from longlag.engines.cpu.realtime import pieces, rules
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.bounds import pull_back_for, refresh_for
from longlag.engines.cpu.realtime.equations import Rows
from longlag.engines.cpu.realtime.group import back_for, forward_for
from longlag.engines.cpu.realtime.losses import loss_for
from longlag.engines.cpu.realtime.network import Network, X
from longlag.engines.cpu.realtime.view import in_turn, nothing, sizes_for, view_for


@njit(**INLINE)
def note(symbols, symbol, I):
    """Add a symbol to a list: its length, the symbols, and for each of the I symbols whether it is in the list."""
    if symbols[1 + I + symbol] == 0:
        symbols[1 + I + symbol] = 1
        symbols[1 + symbols[0]] = symbol
        symbols[0] += 1


class Plan(NamedTuple):
    """What the pieces of a kernel are made from; lists have one entry per group."""

    network: Network
    number: Any
    rows: list[Rows]
    functions: list[dict[str, Any]]
    sizes: list[Any]
    lanes: Sequence[int]

    def reads_symbols(self, k: int) -> bool:
        """Whether group k reads an input that is a symbol."""
        return self.network.symbols and X in self.network.groups[k].reads


def plan_for(network: Network, constants: list[at.Sizes | None], lanes: Sequence[int]) -> Plan:
    """The plan of a network.

    Args:
        constants: sizes that the kernel is compiled for, None: read from the table.
        lanes: of every group's vectors.
    """
    rows = [Rows(group) for group in network.groups]
    functions = [each.functions(network.dtype) for each in rows]
    sizes = [sizes_for(k, fixed) for k, fixed in enumerate(constants)]
    return Plan(network, getattr(np, network.dtype), rows, functions, sizes, lanes)


def kernel_for(plan: Plan) -> Callable[..., None]:
    """``kernel(table, first, last, _)``: the steps first:last of the chunk; an update if there are none."""
    network, number, symbols = plan.network, plan.number, plan.network.symbols
    inner, every = network.inner, range(len(network.groups))
    lasting, late = network.lasting, [k for k in inner if k not in network.lasting]
    forward, forward_late = (in_turn([forward_for(plan, k) for k in some], nothing) for some in (lasting, late))
    forward_readout = forward_for(plan, every[-1]) if network.readout else nothing
    back = in_turn([back_for(plan, k) for k in reversed(inner)], nothing)
    back_readout = back_for(plan, every[-1]) if network.readout else nothing
    sweep = in_turn([rules.sweep_for(plan, k) for k in inner], nothing)
    sweep_readout = rules.sweep_for(plan, every[-1]) if network.readout else nothing
    silence = in_turn([pieces.silence(plan, k) for k in network.outputs], nothing)
    clear = in_turn([rules.clear_for(plan, k) for k in inner] + [pieces.rest(plan, k) for k in inner], nothing)
    settle = in_turn([rules.settle_for(plan, k) for k in inner], nothing)
    no_errors = in_turn([pieces.no_errors(plan, k) for k in every], nothing)
    keep = in_turn([pieces.keep(plan, k) for k in inner], nothing)
    finite = in_turn([pieces.check_finite(plan, k) for k in lasting], nothing)
    feed_back = in_turn(pieces.fed_back(plan), nothing)
    answers, errors = in_turn(pieces.answers(plan), nothing), in_turn(pieces.errors(plan), nothing)
    refresh, pull_back = refresh_for(plan), pull_back_for(plan)
    loss_of, view = loss_for(number), view_for(number, symbols)

    @njit(**INLINE)
    def begin(table, v, b, t):
        """Note the symbol, forget the past where the sample is reset; whether the input is fine."""
        if table[at.reset] != 0 and pointer(table[at.reset], np.uint8)[t * table[at.B] + b] != 0:
            clear(table, v, 0)
            for i in range(table[at.fed], table[at.fed] + table[at.R]):
                v.sample[i] = pointer(table[at.rest], number)[i]
            if symbols:
                for i in range(v.met[0]):
                    v.met[1 + table[at.I] + v.met[1 + i]] = 0
                v.met[0] = 0
        if symbols:
            note(v.met, v.symbol, table[at.I])
            return True
        total = number(0)
        for i in range(table[at.I]):
            total += v.x[i] * number(0)
        return total == number(0)

    @njit(**INLINE)
    def forward_and_loss(table, v, t, b, flags):
        """One sample up to its loss; returns a status and the loss."""
        inactive = table[at.active] != 0 and pointer(table[at.active], np.uint8)[t * table[at.B] + b] == 0
        if inactive:
            silence(table, v, 0)
        else:
            if not begin(table, v, b, t):
                return at.BAD_INPUT, 0.0
            forward(table, v, 0)
            fine = row(v.sample, table[at.answer] + 2 * table[at.O])
            fine[0] = number(0)
            finite(table, v, fine)
            if fine[0] != number(0):
                return at.BAD_STATE, 0.0
        if flags & (at.SCORED | at.KEPT) == 0:
            return at.DONE, 0.0
        if not inactive:
            forward_late(table, v, 0)
        forward_readout(table, v, 0)
        answer = row(v.sample, table[at.answer])
        answers(table, v, answer)
        O = table[at.O]
        if flags & at.KEPT != 0:
            kept = row(pointer(table[at.kept], number), (table[at.kept_used] * table[at.B] + b) * O)
            for o in range(O):
                kept[o] = answer[o]
        if flags & at.SCORED == 0:
            return at.DONE, 0.0
        k, m = table[at.targets_used] * table[at.B] + b, number(1)
        if table[at.mask] != 0:
            m = pointer(table[at.mask], number)[k]
        error = row(answer, O)
        if m == number(0):
            for o in range(O):
                error[o] = number(0)
            return at.DONE, 0.0
        return at.DONE, loss_of(table, answer, error, k, m)

    @njit(**INLINE)
    def learn(table, v, t, b, scored):
        """Errors back, gradients, traces, and what the next step reads."""
        active = table[at.active] == 0 or pointer(table[at.active], np.uint8)[t * table[at.B] + b] != 0
        if scored:
            no_errors(table, v, 0)
            errors(table, v, row(v.sample, table[at.answer] + table[at.O]))
            back_readout(table, v, active)
            sweep_readout(table, v, True)
        if active:
            if scored:
                back(table, v, True)
                if symbols:
                    mark(table, v)
            if table[at.frozen] == 0:
                sweep(table, v, scored)
            keep(table, v, 0)
            feed_back(table, v, 0)

    @njit(**INLINE)
    def mark(table, v):
        """Note the symbols whose weights have gradients: all that were met, or the present one."""
        traced, I = pointer(table[at.dirty], np.int64), table[at.I]
        direct = row(traced, 1 + 2 * I)
        for i in range(v.met[0]):
            note(traced, v.met[1 + i], I)
        note(direct, v.symbol, I)

    @njit(**INLINE)
    def end(table, flags, loss):
        """Count, and update."""
        if flags & at.SCORED != 0:
            table[at.targets_used] += 1
            table[at.pending] = 1
            table[at.scored] += 1
            numbers, n = pointer(table[at.numbers], np.float64), table[at.scored]
            weight = max(1 / n, 1 / numbers[at.HORIZON])
            numbers[at.LOSS] = loss
            numbers[at.RUNNING] = loss if n == 1 else numbers[at.RUNNING] + weight * (loss - numbers[at.RUNNING])
        if flags & at.KEPT != 0:
            table[at.kept_used] += 1
        if flags & at.UPDATE != 0 and table[at.pending] != 0:
            pull_back(table, 0, 0)
            call(table[at.update], (address(table, 0),))
            refresh(table, 0, 0)

    def kernel(table, first, last, _):
        refresh(table, 0, 0)
        table[at.done] = first
        if first == last:
            for b in range(table[at.B]):
                settle(table, view(table, 0, b), 0)
            end(table, at.UPDATE, 0.0)
        for t in range(first, last):
            flags = pointer(table[at.flags], np.uint8)[t]
            scored, loss = flags & at.SCORED != 0, 0.0
            for b in range(table[at.B]):
                status, found = forward_and_loss(table, view(table, t, b), t, b, flags)
                loss += found
                if status != at.DONE or found - found != 0.0:
                    table[at.status] = status if status != at.DONE else at.BAD_LOSS
                    table[at.failed_sample] = b
                    pointer(table[at.losses], np.float64)[t] = found
                    return
            if scored:
                pointer(table[at.losses], np.float64)[t] = loss
            for b in range(table[at.B]):
                learn(table, view(table, t, b), t, b, scored)
            if flags & at.UPDATE != 0:
                for b in range(table[at.B]):
                    settle(table, view(table, t, b), 0)
            end(table, flags, loss)
            table[at.done] = t + 1

    return kernel
