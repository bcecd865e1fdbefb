"""The choice of an engine for a call."""

from __future__ import annotations

import torch
from torch import Tensor

from longlag.engines import _exporting, _private

NAMES = ("reference", "cpu")
CPU_DTYPES = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)  # the CPU engine computes them in float32


def check(owner: str, request: str) -> None:
    """Refuse an engine that does not exist."""
    if request not in ("auto", *NAMES):
        raise ValueError(f"{owner}: engine must be one of 'auto', {', '.join(map(repr, NAMES))}, got {request!r}")


def choose(request: str, x: Tensor, *others: Tensor | None, name: str = "the input") -> tuple[str, str]:
    """The engine for an input like x, and the reason.

    Args:
        request: ``"auto"``, or the name of an engine. If it cannot run the call, a ValueError gives the reason.
        others: weights and other tensors that the engine reads.
        name: the name of x in messages.

    >>> choose("auto", torch.zeros(1))
    ('cpu', 'compiled kernels for float32 and float64 on the CPU')
    """
    obstacle = None if request == "reference" else _obstacle(x, others, name)
    if request == "cpu" and obstacle:
        raise ValueError(f"engine 'cpu' cannot serve this call: {obstacle}; engine='reference' can")
    if request != "auto":
        return request, "asked for by name"
    if obstacle:
        return "reference", obstacle
    if x.dtype in HALVES:
        return "cpu", "compiled kernels, which compute half precision in float32"
    return "cpu", "compiled kernels for float32 and float64 on the CPU"


def is_plain(x: Tensor) -> bool:
    """Whether the CPU engine can read x itself, outside of all modes of torch: the usual case."""
    usual = x.is_cpu and x.dtype in CPU_DTYPES and type(x) is Tensor
    return usual and _private.nothing_active()  # which an export is not


def as_operator() -> bool:
    """Whether torch must see an operator instead of a kernel call: torch.compile, or a dispatch mode, is active."""
    return torch.compiler.is_compiling() or _private.modes_active()


def _obstacle(x: Tensor, others: tuple[Tensor | None, ...], name: str) -> str | None:
    """The reason why the CPU engine cannot run the call; None if it can."""
    if _exporting.to_onnx():
        return "ONNX has no operator of longlag's"
    if not x.is_cpu:
        return f"{name} {_is(name)} on {x.device}"
    if x.dtype not in CPU_DTYPES and x.dtype not in HALVES:
        return f"{name} {_is(name)} {x.dtype}"
    if _private.transforms_active():
        return "torch.func transforms need operations they can transform"
    if _private.forward_mode_active():
        return "forward-mode derivatives need operations that have them"
    if (type(x) is Tensor and not others) or torch.compiler.is_compiling():
        return None
    for tensor in (x, *others):
        if tensor is not None and _private.has_own_operations(tensor) and not _private.modes_active():
            what = name if tensor is x else "a weight or state"
            return f"{what} is a {type(tensor).__name__}, which has operations of its own"
    return None


def _is(name: str) -> str:
    return "are" if name.endswith("s") else "is"
