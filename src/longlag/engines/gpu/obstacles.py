"""Why the GPU engine cannot run a call; nothing here imports Triton."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _private
from longlag.engines.gpu.equations import TRITON, equations
from longlag.engines.gpu.plan import WIDEST

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST = (8, 0)  # compute capability: Ampere
THERE = importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU: Triton's own variable for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def obstacle(cell: Cell, x: Tensor, H: int, norm: bool, others: Sequence[Tensor | None]) -> str | None:
    """The reason why the engine cannot run a cell on x (T, B, I); None if it can."""
    if not THERE:
        return "Triton is not installed"
    if not (x.is_cuda or (x.is_cpu and interpreted())):
        return f"the input is on {x.device}, not on a CUDA device"
    if x.is_cuda and (reason := _too_old(x.device)):
        return reason
    if x.dtype not in DTYPES:
        return f"the input is {x.dtype}, not one of {', '.join(map(str, DTYPES))}"
    if not x.shape[1]:
        return "its kernels need at least one sequence"
    if x.shape[1] * H * len(cell.gates) >= 2**31:
        return f"its kernels count the values of one step in 32 bits, and {x.shape[1]} sequences have more"
    if norm and cell.dense and H > WIDEST:
        return f"one program normalises at most {WIDEST} units, got {H}"
    if torch.compiler.is_compiling():  # the operator looks at the rest when it runs
        return None
    if _private.transforms_active() or _private.forward_mode_active():
        return "its kernels have no rules for torch.func transforms and forward-mode derivatives"
    for tensor in (x, *others):
        if tensor is not None and _private.has_own_operations(tensor) and not _private.modes_active():
            return f"a tensor is a {type(tensor).__name__}, which has operations of its own"
    return _unprintable(cell)


def _too_old(device: torch.device) -> str | None:
    found = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and found < OLDEST:
        wanted, got = (".".join(map(str, version)) for version in (OLDEST, found))
        return f"the GPU has compute capability {got}, and the kernels need {wanted}"
    return None


def _unprintable(cell: Cell) -> str | None:
    """The function of the cell that has no Triton form; remembered, since the equations do not change."""
    if "unprintable" not in cell.engine_memory:
        try:
            formed = [form for source in equations(cell).sources for form in source.forms]
            for form in (cell.assignments("step"), cell.assignments("step_back"), *formed):
                TRITON.lines(form)
            cell.engine_memory["unprintable"] = None
        except ValueError as error:
            cell.engine_memory["unprintable"] = str(error).removeprefix("engine 'gpu' ").partition(";")[0]
    return cell.engine_memory["unprintable"]
