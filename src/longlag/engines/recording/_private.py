"""Recording by a dispatch mode, a private API of torch, with a self-test that detects a changed API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longlag.engines._private import _changed, _expecting


@dataclass(frozen=True)
class Operation:
    """One operation of torch.

    Attributes:
        name: as torch writes it: ``"add.Tensor"``.
        arguments: by the names of torch's schema; defaults included.
        written: names of the arguments that the operation writes into.
        results: the tensors it returned.
    """

    name: str
    arguments: Mapping[str, Any]
    written: frozenset[str]
    results: tuple[Tensor, ...]


def record(
    function: Callable[[], Any], known: Callable[[str], bool] = lambda name: True
) -> tuple[Any, list[Operation]]:
    """The result of ``function()`` and its operations, down to those that are ``known`` where torch can decompose.

    Tensors of the record must be kept while their memory identifies them: the operations do.
    """
    _check()
    return _record(function, known)


def _record(function: Callable[[], Any], known: Callable[[str], bool]) -> tuple[Any, list[Operation]]:
    with _expecting("torch", "utils._python_dispatch.TorchDispatchMode"):
        from torch.utils._python_dispatch import TorchDispatchMode
    found: list[Operation] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = str(func).removeprefix("aten.").removesuffix(".default")
            if not known(name) and (simpler := _decompositions().get(func)) is not None:
                with self:
                    return simpler(*args, **kwargs)
            result = func(*args, **kwargs)
            results = tuple(result) if isinstance(result, tuple | list) else (result,)
            schema = func._schema.arguments
            named = {a.name: v for a, v in zip(schema, args)} | kwargs
            named |= {a.name: a.default_value for a in schema if a.name not in named and a.has_default_value()}
            written = frozenset(a.name for a in schema if a.alias_info is not None and a.alias_info.is_write)
            found.append(Operation(name, named, written, tuple(r for r in results if isinstance(r, Tensor))))
            return result

    with Recorder():
        result = function()
    return result, found


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    return torch.export.default_decompositions()


@functools.cache
def _check() -> None:
    x = torch.ones(2)
    _, found = _record(lambda: x.view(1, 2).mul_(3), lambda name: True)
    seen = [(op.name, sorted(op.written)) for op in found]
    if seen != [("view", []), ("mul_.Tensor", ["self"])] or found[1].arguments["other"] is None:
        raise _changed("torch", "utils._python_dispatch.TorchDispatchMode", f"it showed {seen}")
