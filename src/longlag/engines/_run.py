"""How layers run on an engine: cells, units in blocks (LSTM97) and Jordan's network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from longlag.cells import Cell
from longlag.engines import _exporting, _onnx, reference
from longlag.engines._arguments import Weights, in_float32
from longlag.engines._choose import HALVES, as_operator, choose, is_plain
from longlag.engines._for_cells import choose_for_cell

_loaded: list[Any] = []  # the CPU engine, after its first use


def run(
    request: str,
    cell: Cell,
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor | None],
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    numbers: Sequence[Tensor] = (),
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over time on the requested engine.

    Args:
        x: inputs (T, B, I).
        w: the weights.
        state: the initial state, each part (B, H) or None for zeros; an empty sequence for all zeros.
        mask, lengths, reset, reverse, numbers: see `reference.run`.

    Returns:
        outputs (T, B, H) and the final state, each part (1, B, H): a layer's share of a stack's state.
    """
    plain = request in ("auto", "cpu") and is_plain(x)
    engine = "cpu" if plain else choose_for_cell(request, cell, x, w, (*state, *numbers), mask=mask, reset=reset)[0]
    if engine == "cpu" and x.dtype in HALVES:
        given = {"mask": mask, "lengths": lengths, "reset": reset, "reverse": reverse, "numbers": numbers}
        return in_float32(run, x.dtype, request, cell, x, w, state, **given)
    if engine == "cpu":
        results = _cpu().run(cell, x, w, state, mask, lengths, reset, reverse, numbers, not plain and as_operator())
        if results is not None:
            return results
        # raises with the reason if the CPU engine was requested by name
        choose(request, x, *w.tensors(), *state, mask, *numbers)
    elif engine == "torch":
        from longlag.engines.builtin import run as builtin

        return builtin.run(cell, x, w, state, lengths, reverse)
    elif engine == "gpu":
        from longlag.engines.gpu import operators  # loads Triton

        return operators.run(cell, x, w, state, mask, lengths, reset, reverse, numbers)
    if _exporting.to_onnx() and _onnx.same(cell, x, w, mask, reset):
        return _onnx.run(cell, x, w, state, lengths, reverse)
    return reference.run_weights(
        cell, x, w, state, mask=mask, lengths=lengths, reset=reset, reverse=reverse, numbers=numbers
    )


def join(weights: Sequence[Tensor]) -> None:
    """Move W, U and biases into one block of memory, in order, as torch's own kernels want them; values stay."""
    from longlag.engines.builtin import run as builtin

    builtin.join(weights)


def run_blocks(
    g: str,
    h: str,
    layout: tuple[int, int, int, bool],
    x: Tensor,
    w: Weights,
    state: Sequence[Tensor],
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the units of LSTM-1997 over time on the CPU engine; `choose` must have chosen it.

    Args:
        g, h: squashing functions, keys of `longlag.cells.lstm97.SQUASH`.
        layout: hidden units, blocks, cells per block, whether there are output gates. A row holds
            [hidden units; input gates; output gates; cells].
        w: W (R, I), b (R,) and, if units are fed back, U (R, R).
        state: activations (B, R) and internal states (B, cells).

    Returns:
        activations (T, B, R) and the final state, like ``state``.
    """
    if x.dtype in HALVES:
        given = {"mask": mask, "lengths": lengths, "reset": reset}
        return in_float32(run_blocks, x.dtype, g, h, layout, x, w, state, **given)
    from longlag.engines.cpu.codegen.lstm97 import Blocks

    hidden, blocks, size, gated = layout
    units = Blocks(g, h, (hidden, blocks, size, int(gated)), dense=w.U is not None)
    y, final = _cpu().run(units, x, w, state, mask, lengths, reset, False, (), as_operator())
    return y, tuple(part.squeeze(0) for part in final)


def run_jordan(
    x: Tensor,
    weights: tuple[Tensor | None, ...],
    state: tuple[Tensor, Tensor],
    rest: Tensor,
    *,
    targets: Tensor | None = None,
    tau: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    logits: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run Jordan's network over time on the CPU engine; `choose` must have chosen it.

    Args:
        x: inputs (T, B, n).
        weights: W (m, n), b (m,), U (m, l), R (m, m), V (l, m), c_out (l,); b, R and c_out may be None.
        state: fb (B, l) and h (B, m).
        rest: fb (l,) after a reset.
        targets, tau: fed back in place of the output, (T, B, l), and their share (T, B); see `longlag.layers.Jordan`.
        logits: feed back z instead of softmax z.

    Returns:
        logits (T, B, l) and the final state.
    """
    if x.dtype in HALVES:
        given = {"targets": targets, "tau": tau, "lengths": lengths, "reset": reset, "logits": logits}
        return in_float32(run_jordan, x.dtype, x, weights, state, rest, **given)
    from longlag.engines.cpu.runtime import jordan  # loads Numba

    z, fb, h = jordan.run(x, weights, state, rest, targets, tau, lengths, reset, logits)
    return z, (fb, h)


def _cpu() -> Any:
    if not _loaded:
        from longlag.engines.cpu.runtime import run  # loads LLVM

        _loaded.append(run)
    return _loaded[0]
