"""The choice of an engine for a run of a cell, among all engines; `_choose` knows `reference` and `cpu` only."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _choose, _exporting
from longlag.engines._arguments import Weights

NAMES = ("reference", "cpu", "torch", "gpu")


def check_for_cells(owner: str, request: str) -> None:
    """Refuse an engine that does not exist."""
    if request not in ("auto", *NAMES):
        raise ValueError(f"{owner}: engine must be one of 'auto', {', '.join(map(repr, NAMES))}, got {request!r}")


def choose_for_cell(
    request: str,
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None] = (),
    *,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[str, str]:
    """The engine for a run of a cell, and the reason; arguments as in `longlag.engines.run`.

    Args:
        state: all tensors besides x and the weights: the state, the numbers of each step.
        request: ``"auto"``, or the name of an engine. If it cannot run the call, a ValueError gives the reason.
    """
    if request in ("reference", "cpu") or (request == "auto" and (x.is_cpu or _exporting.to_onnx())):
        return _choose.choose(request, x)
    found: dict[str, str | None] = {}
    for engine in ("torch", "gpu") if request == "auto" else (request,):
        found[engine] = _obstacle(engine, cell, x, w, state, mask, reset)
        if found[engine] is None:
            return engine, "; ".join([_WHY[engine], *_passed(found)]) if request == "auto" else "asked for by name"
    if request != "auto":
        raise ValueError(f"engine '{request}' cannot serve this call: {found[request]}; engine='reference' can")
    return "reference", "; ".join(_passed(found))


def _passed(found: dict[str, str | None]) -> list[str]:
    """Why the automatic choice passed an engine by."""
    return [f"engine '{engine}': {why}" for engine, why in found.items() if why is not None]


_WHY = {
    "torch": "torch's own kernels compute this cell",
    "gpu": "Triton kernels printed from the cell's equations",
}


def _obstacle(
    engine: str,
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    mask: Tensor | None,
    reset: Tensor | None,
) -> str | None:
    for tensor in (x, *w.tensors(), *state, mask):
        if tensor is not None and (tensor.dtype is not x.dtype or tensor.device != x.device):
            what = f"{x.dtype} on {x.device} and {tensor.dtype} on {tensor.device}"
            return f"all tensors must have one dtype and device, got {what}"
    if engine == "torch":
        from longlag.engines.builtin import run as builtin

        return builtin.obstacle(cell, x, w, mask, reset)
    from longlag.engines.gpu.obstacles import obstacle

    return obstacle(cell, x, w.W.shape[0] // len(cell.input_gates), w.norm is not None, (*w.tensors(), *state, mask))
