"""Which engine serves a call: one readable function, and what it refuses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

NAMES = ("reference", "cpu")
CPU_DTYPES = (torch.float32, torch.float64)


def check(owner: str, request: str) -> None:
    """Refuse an engine that does not exist."""
    if request not in ("auto", *NAMES):
        raise ValueError(f"{owner}: engine must be one of 'auto', {', '.join(map(repr, NAMES))}, got {request!r}")


def choose(request: str, x: Tensor) -> tuple[str, str]:
    """The engine that will serve an input like x, and why.

    >>> choose("auto", torch.zeros(1))
    ('cpu', 'compiled kernels for float32 and float64 on the CPU')
    """
    obstacle = _obstacle(x)
    if request == "cpu" and obstacle:
        raise ValueError(f"engine 'cpu' cannot serve this call: {obstacle}; engine='reference' can")
    if request != "auto":
        return request, "asked for by name"
    if obstacle:
        return "reference", obstacle
    return "cpu", "compiled kernels for float32 and float64 on the CPU"


def intercepted(x: Tensor) -> bool:
    """Whether torch hands operations on x to somebody else: fake tensors, say, have no numbers."""
    own = type(x).__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
    return own is not torch._C._disabled_torch_dispatch_impl or torch._C._len_torch_dispatch_stack() > 0


def _obstacle(x: Tensor) -> str | None:
    """Why the CPU engine cannot serve, if it cannot."""
    if not x.is_cpu:
        return f"the input is on {x.device}"
    if x.dtype not in CPU_DTYPES:
        return f"the input is {x.dtype}"
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms need operations they can transform"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives need operations that have them"
    return None
