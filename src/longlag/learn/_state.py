"""States and parameters as rules handle them: parts per sample, masks, and gradients by parameter name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from longlag.layers import Layer, State
from longlag.layers.state import Parts

Values = dict[str, Any]


def begin(layer: Layer, state: State | None, batch: int, reset: Tensor | None) -> tuple[Parts, Parts]:
    """The parts of the given state, and the parts that the step starts from: initial values where ``reset``."""
    past = layer.validate_state(state, batch)
    if reset is None:
        return past, past
    return past, layer.state_spec.where(reset, layer.validate_state(None, batch), past)


def where(mask: Tensor, yes: Tensor, no: Tensor | float, dim: int = 0) -> Tensor:
    """Choose per sample: mask (B,), the samples of ``yes`` along ``dim``."""
    return torch.where(mask.view(*[1] * dim, -1, *[1] * (yes.dim() - dim - 1)), yes, no)


def mapped(function: Callable[[Tensor], Any], values: Any) -> Any:
    """Nested dicts, lists and tuples with a function applied to every tensor."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: mapped(function, value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(mapped(function, value) for value in values)
    return values


def copied(values: Any) -> Any:
    """Nested values with every tensor cloned."""
    return mapped(torch.clone, values)


def from_numpy(layer: Layer, *values: Any) -> tuple[Any, ...]:
    """NumPy arrays as tensors on the layer's device: floats in the layer's dtype, integers int64, bools as they are."""
    return tuple(_tensor(layer, v) if isinstance(v, np.ndarray | np.generic) else v for v in values)


def _tensor(layer: Layer, value: np.ndarray | np.generic) -> Tensor:
    kinds = {"f": layer.dtype, "i": torch.int64, "u": torch.int64, "b": torch.bool}
    if value.dtype.kind not in kinds:
        raise TypeError(f"{layer.class_name}: an array must hold numbers or bools, got dtype {value.dtype}")
    return torch.tensor(value, dtype=kinds[value.dtype.kind], device=layer.device)


def attribute_paths(layer: Layer) -> list[str]:
    """The attributes that the equations read: ``u_l0`` for the parameter ``parametrizations.u_l0.original``."""
    paths = [re.sub(r"(^|\.)parametrizations\.(\w+)\..+$", r"\1\2", name) for name, _ in layer.named_parameters()]
    return list(dict.fromkeys(paths))


def _parametrizations(owner: torch.nn.Module) -> torch.nn.ModuleDict:
    found = owner.parametrizations
    assert isinstance(found, torch.nn.ModuleDict)
    return found


class Parameters:
    """Converts gradients of attributes in the equations (``u_l0``) to gradients of parameters (``parametrizations.…``).

    Args:
        paths: the attributes the equations read, as ``layer.get_parameter`` would find them.
    """

    def __init__(self, layer: Layer, paths: Iterable[str]) -> None:
        names = {parameter: name for name, parameter in layer.named_parameters()}
        self.trained = {name: p for p, name in names.items() if p.requires_grad}
        self._read: dict[str, tuple[list[str], Sequence[Tensor], Any]] = {}
        for path in paths:
            prefix, _, attribute = path.rpartition(".")
            owner = layer.get_submodule(prefix)
            computed = parametrize.is_parametrized(owner, attribute)
            read = list(_parametrizations(owner)[attribute].parameters()) if computed else [getattr(owner, attribute)]
            read = [p for p in read if p.requires_grad]
            if read:
                value = functools.partial(getattr, owner, attribute) if computed else None
                self._read[path] = ([names[p] for p in read], read, value)
        known = {name for own, _, _ in self._read.values() for name in own}
        self.others = {name: p for name, p in self.trained.items() if name not in known}

    def __contains__(self, path: str) -> bool:
        """Whether the attribute, or a parameter it is computed from, is trained."""
        return path in self._read

    def pull_back(self, effective: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameter name -> gradient, from attribute -> gradient."""
        grads: dict[str, Tensor] = {}
        for path, (names, read, value) in self._read.items():
            pieces: Sequence[Tensor] = [effective[path]]
            if value is not None:
                with torch.enable_grad():
                    pieces = torch.autograd.grad(value(), read, effective[path], materialize_grads=True)
            for name, piece in zip(names, pieces):
                grads[name] = grads[name] + piece if name in grads else piece
        return grads
