"""Learning rules by name: how a group's gradients are formed from the errors of a step.

A rule is a module of this package, named as in `Group.rule`, with ``sweep_for(plan, k)`` and ``clear_for(plan,
k)``, and an entry in `MEMORY`; `longlag.engines.cpu.realtime` explains them.
This module loads no compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from longlag.engines.cpu.cache.machine import VECTOR_BYTES
from longlag.engines.cpu.realtime import blocks
from longlag.engines.cpu.realtime.equations import Rows


def _traces(rows: Rows, tiles: int, D: int, lanes: int) -> int:
    return len(rows.group.loop) * tiles * lanes * (len(rows.group.traced) * D + len(rows.group.cell.params))


def _blocks(rows: Rows, tiles: int, D: int, lanes: int) -> int:
    group = rows.group
    return blocks.layout(group, D - group.units - group.ones, VECTOR_BYTES // lanes).sample


# rule -> f(rows, tiles, D, lanes): numbers that the rule keeps for a sample
MEMORY: dict[str, Callable[[Rows, int, int, int], int]] = {"traces": _traces, "snap": _traces, blocks.RULE: _blocks}


def memory(rule: str | None, rows: Rows, tiles: int, D: int, lanes: int) -> int:
    """Numbers that a rule keeps for a sample."""
    return 0 if rule is None else MEMORY[rule](rows, tiles, D, lanes)


def sweep_for(plan: Any, k: int) -> Any:
    """``sweep(table, v, scored)`` of group k's rule."""
    return _piece("sweep_for", plan, k)


def clear_for(plan: Any, k: int) -> Any:
    """``clear(table, v, _)``: forget the influence of the weights of group k."""
    return _piece("clear_for", plan, k)


def settle_for(plan: Any, k: int) -> Any:
    """``settle(table, v, _)``: gradients that group k's rule has put off, before an update."""
    return _piece("settle_for", plan, k)


def _piece(name: str, plan: Any, k: int) -> Any:
    from longlag.engines.cpu.realtime.view import nothing

    rule = plan.network.groups[k].rule
    file = {"snap": "traces"}.get(rule, rule)  # they differ in their equations only
    module = None if rule is None else importlib.import_module(f"{__package__}.{file}")
    maker = getattr(module, name, None)  # a rule may put nothing off
    return nothing if maker is None else maker(plan, k)
