"""The small pieces of the time loop, each of one group of units: rows become 0, the past, what the next step reads.

Every function here takes a `loop.Plan` and the number of a group, and returns compiled ``piece(table, v, _)``.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from longlag.engines.cpu.codegen.pointers import INLINE, pointer, row
from longlag.engines.cpu.realtime import words as at
from longlag.engines.cpu.realtime.view import nothing


def silence(plan: Any, k: int) -> Any:
    """The output of a group becomes 0."""
    return _zero_rows(plan, k, [plan.rows[k].at["new y"]])


def no_errors(plan: Any, k: int) -> Any:
    return _zero_rows(plan, k, [plan.rows[k].at["d y"]])


def rest(plan: Any, k: int) -> Any:
    """The past of a group becomes that at rest."""
    rows, sizes, number, lanes = plan.rows[k], plan.sizes[k], plan.number, plan.lanes[k]
    if not rows.group.loop:
        return nothing
    first, count = rows.at[rows.group.loop[0]], len(rows.group.loop)

    @njit(**INLINE)
    def rest(table, v, _):
        z = sizes(table)
        S, start = z.tiles * lanes, pointer(table[at.rest], number)
        for j in range(first * S, (first + count) * S):
            v.sample[z.rows + j] = start[z.rows + j]

    return rest


def _zero_rows(plan: Any, k: int, rows: list[int]) -> Any:
    """The rows of group k become 0; they are neighbours."""
    sizes, number, lanes, count = plan.sizes[k], plan.number, plan.lanes[k], len(rows)
    first = rows[0] if rows else 0

    @njit(**INLINE)
    def zero(table, v, _):
        z = sizes(table)
        S = z.tiles * lanes
        values = row(v.sample, z.rows + first * S)
        for j in range(count * S):
            values[j] = number(0)

    return zero


def keep(plan: Any, k: int) -> Any:
    """The new values of a group become its past."""
    rows, sizes, lanes = plan.rows[k], plan.sizes[k], plan.lanes[k]
    if not rows.group.loop:
        return nothing
    old, new = rows.at[rows.group.loop[0]], rows.at[f"new {rows.group.loop[0]}"]
    count = len(rows.group.loop)  # both are in the order y, states

    @njit(**INLINE)
    def keep(table, v, _):
        z = sizes(table)
        S = z.tiles * lanes
        past, now = row(v.sample, z.rows + old * S), row(v.sample, z.rows + new * S)
        for j in range(count * S):
            past[j] = now[j]

    return keep


def check_finite(plan: Any, k: int) -> Any:
    """``check(table, v, sum)``: add a NaN to the sum if a value that the next step reads is not finite."""
    rows, sizes, lanes = plan.rows[k], plan.sizes[k], plan.lanes[k]
    parts = rows.group.loop or ("y",)
    new, count, number = rows.at[f"new {parts[0]}"], len(parts), plan.number

    @njit(**INLINE)
    def check(table, v, total):
        z = sizes(table)
        for part in range(count):
            values, found = row(v.sample, z.rows + (new + part) * z.tiles * lanes), number(0)
            for u in range(z.units):
                found += values[u] * number(0)
            total[0] += found

    return check


def fed_back(plan: Any) -> list[Any]:
    """Pieces that lay out the vector that the next step reads."""
    pieces = []
    for i in range(len(plan.network.fed_back)):
        earlier = [(plan.sizes[k], every) for k, _, every in plan.network.fed_back[:i]]
        k, name, every = plan.network.fed_back[i]
        pieces.append(_feed(plan, k, name, every, _total(earlier)))
    return pieces


def _feed(plan: Any, k: int, name: str, every: int, start: Any) -> Any:
    sizes, lanes = plan.sizes[k], plan.lanes[k]
    at_row = plan.rows[k].at["new y" if name == "y" else f"echo {name}"]

    @njit(**INLINE)
    def feed(table, v, _):
        z, first = sizes(table), start(table)
        values = row(v.sample, z.rows + at_row * z.tiles * lanes)
        for i in range(z.units // every):
            v.sample[table[at.fed] + first + i] = values[i * every]

    return feed


def _total(pieces: list[tuple[Any, int]]) -> Any:
    """``total(table)``: the sum of units // every."""

    @njit(**INLINE)
    def zero(table):
        return 0

    if not pieces:
        return zero
    (sizes, every), rest = pieces[-1], _total(pieces[:-1])

    @njit(**INLINE)
    def total(table):
        return rest(table) + sizes(table).units // every

    return total


def answers(plan: Any) -> list[Any]:
    """Pieces ``copy(table, v, answer)`` from the groups that answer."""
    return _with_answers(plan, "new y", into_answer=True)


def errors(plan: Any) -> list[Any]:
    """Pieces ``copy(table, v, errors)`` to the groups that answer."""
    return _with_answers(plan, "d y", into_answer=False)


def _with_answers(plan: Any, name: str, into_answer: bool) -> list[Any]:
    pieces, answers = [], plan.network.answers
    for i, k in enumerate(answers):
        start = _total([(plan.sizes[j], 1) for j in answers[:i]])
        pieces.append(_copy(plan.sizes[k], plan.rows[k].at[name], start, plan.lanes[k], into_answer))
    return pieces


def _copy(sizes: Any, at_row: int, start: Any, lanes: int, into_answer: bool) -> Any:
    @njit(**INLINE)
    def copy(table, v, answer):
        z, first = sizes(table), start(table)
        values = row(v.sample, z.rows + at_row * z.tiles * lanes)
        for u in range(z.units):
            if into_answer:
                answer[first + u] = values[u]
            else:
                values[u] = answer[first + u]

    return copy
