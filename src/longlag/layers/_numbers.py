"""Numbers that enter a cell's equations besides its net inputs: per step, drawn as noise, or fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longlag.layers import validation
from longlag.layers.validation import ShapeError

if TYPE_CHECKING:
    from longlag.layers._cell_weights import CellWeights

HINT = "learning rules, flow and Online take ll.layers.Joined(layer), whose input holds the numbers as features"


def check_numbers(layer: CellWeights, given: dict[str, Any], s: validation.Sequences) -> dict[str, Tensor]:
    """The numbers per step that a call gives, each (T, B, H)."""
    owner, declared = layer.class_name, layer.cell.per_step
    for name in given:
        if name not in declared:
            known = f"the cell {layer.cell.name} has {', '.join(declared) or 'none'}"
            raise TypeError(f"{owner}: {name!r} is no argument of a call and no input per step; {known}")
    for name in declared:
        if name not in given and name not in layer.cell.noise:
            raise ValueError(f"{owner}: the input {name} of the cell {layer.cell.name} is missing; {HINT}")
    return {name: _number(layer, name, value, s) for name, value in given.items()}


def _number(layer: CellWeights, name: str, value: Any, s: validation.Sequences) -> Tensor:
    T, B, H, what = s.steps, s.batch, layer.hidden_size, f"the input {name}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = s.x.new_full((), value).expand((T, B) if not s.batch_first or not s.batched else (B, T))
        value = value if s.batched else value[:, 0]
    value = validation.like(layer.class_name, what, validation.autocast(value, layer.any_weight), layer.any_weight)
    shape = ((B, T) if s.batch_first else (T, B)) if s.batched else (T,)
    if value.shape != shape and value.shape != (*shape, H):  # `in` does not compare symbolic sizes
        got = tuple(value.shape)
        raise ShapeError(f"{layer.class_name}: {what} must have shape {shape} or {(*shape, H)}, got {got}")
    if not s.batched:
        value = value.unsqueeze(1)
    elif s.batch_first:
        value = value.transpose(0, 1)
    value = (value if value.dim() == 3 else value.unsqueeze(-1)).expand(T, B, H)
    if s.lengths is not None:  # padding may hold anything; a number of the same sequence is in the equations' domain
        beyond = torch.arange(T, device=value.device)[:, None] >= s.lengths
        value = torch.where(beyond.unsqueeze(-1), value[:1].detach(), value)
    if value.is_cpu and not torch.compiler.is_compiling() and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{layer.class_name}: {what} must be finite, got NaN or infinity")
    return value


def level_numbers(layer: CellWeights, s: validation.Sequences) -> tuple[Tensor, ...]:
    """All numbers per step for one level; noise that is not given is drawn while training, and 0 otherwise."""
    found = []
    for name in layer.cell.per_step:
        if name in s.numbers:
            found.append(s.numbers[name])
        elif layer.training:
            shape, like = (s.steps, s.batch, layer.hidden_size), s.x
            generator = layer.noise_generator(like.device)
            found.append(torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device))
        else:
            found.append(s.x.new_zeros(s.steps, s.batch, layer.hidden_size))
    return tuple(found)


def check_fixed(owner: str, cell: Any, hidden_size: int, given: dict[str, Any]) -> dict[str, Tensor]:
    """The values (H,) of a cell's fixed numbers, with those that a layer replaces."""
    for name in given:
        if name not in cell.fixed:
            raise TypeError(
                f"{owner}: unknown option {name!r}; the fixed numbers of the cell {cell.name} are "
                f"{', '.join(cell.fixed) or 'none'}"
            )
    found = {}
    for name in cell.fixed:
        value = torch.as_tensor(given.get(name, cell.initial_params[name]), dtype=torch.float64)
        if value.shape not in ((), (hidden_size,)):
            raise ShapeError(f"{owner}: {name} must be one number or ({hidden_size},), got shape {tuple(value.shape)}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{owner}: {name} must be finite, got NaN or infinity")
        found[name] = value.expand(hidden_size)
    return found
