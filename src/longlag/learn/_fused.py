"""A cell's step together with some of its partials, as one piece of derived code: common subexpressions once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from longlag.cells import Cell, _code, _language

Partials = dict[tuple[str, str], Tensor | float]


@functools.cache
def with_partials(cell: Cell, rows: tuple[str, ...]) -> Callable[..., tuple[dict[str, Tensor], Partials]]:
    """``f(*cell.inputs) -> outputs by name, {(output, input): ∂output/∂input}`` for the outputs in ``rows``.

    >>> import torch
    >>> from longlag import cells
    >>> f = with_partials(cells.net_feedback, ("n",))
    >>> outputs, partials = f(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0.5))
    >>> outputs["n"], partials["n", "a"], partials["n", "u"]
    (tensor(2.), 1, tensor(2.))
    """
    keys = [key for key in cell.jacobian if key[0] in rows]
    lines = {"y_new": cell.output, **dict(zip(cell.new_states, cell.expressions[1:]))}
    results = [*lines, *(f"d_{out}_d_{name}" for out, name in keys)]
    lines |= {f"d_{out}_d_{name}": cell.jacobian[out, name] for out, name in keys}
    source = _code.function("step", list(cell.inputs), _code.Printer().assignments(lines), results)
    scope = {name: getattr(_language, name) for name in (*_language.NAMES, "step")}
    derived: dict[str, Any] = {}
    exec(compile(source, f"<longlag cell {cell.name}.with_partials>", "exec"), scope, derived)
    step, n = derived["step"], len(cell.outputs)

    def run(*inputs: Tensor) -> tuple[dict[str, Tensor], Partials]:
        values = step(*inputs)
        return dict(zip(cell.outputs, values)), dict(zip(keys, values[n:]))

    return run
