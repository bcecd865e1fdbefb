"""ONNX models of layers: native operators where the cell is the same, a loop over the cell's step otherwise."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longlag import files
from longlag.export._check import ExportError, check_difference, check_target, translating
from longlag.export._subject import Subject, compare, subject

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def to_onnx(model: Any, path: str | Path, *, step: bool = False, force: bool = False) -> float:
    """Write an ONNX model with free batch and time; returns the largest difference from the reference engine.

    Inputs ``x``, ``lengths`` and the parts of the state (``y_in``, …), outputs ``output`` and the parts of the new
    state (``y_out``, …). Shapes are the layer's. A CRF becomes its decoding: ``emissions``, ``mask`` to ``paths`` and
    ``scores``. The file is written only if onnxruntime gives the numbers of the reference engine.

    Args:
        model: a layer, a `learn.Online` (its layer and its read-out), or a `CRF`.
        step: one step instead of whole sequences: ``x`` is (B, I), and there are no lengths.
        force: replace an existing file.

    >>> import tempfile, longlag as ll
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     largest = ll.export.to_onnx(ll.LSTM(3, 5), folder + "/lstm.onnx")
    >>> largest < 1e-5
    True
    """
    path = Path(path)
    check_target(path, force)
    what = subject(model, step)
    _check_packages()
    with translating(model, "an ONNX model"):
        data = model_bytes(what)
        largest = compare_runtime(what, data)
    found = check_difference("ONNX model", largest, what.dtype)
    files.replace(path, data)
    return found


def model_bytes(what: Subject) -> bytes:
    """The ONNX model."""
    arguments = what.example(5, 2, torch.Generator().manual_seed(0))
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            what,
            tuple(arguments),
            dynamic_shapes=what.dynamic_shapes(),
            input_names=what.inputs,
            output_names=what.outputs,
            verbose=False,
            external_data=False,
            custom_translation_table={torch.ops.aten.repeat_interleave.self_int: _repeated},
        )
    assert program is not None
    return program.model_proto.SerializeToString()


def _repeated(value: Any, repeats: int, dim: int, output_size: Any = None) -> Any:
    """``value.repeat_interleave(repeats, dim)`` in ONNX; torch's own translation fails where the dimension is empty."""
    from onnxscript import opset18

    op: Any = opset18
    places = torch.arange(int(value.shape[dim])).repeat_interleave(repeats)
    return op.Gather(value, op.Constant(value_ints=places.tolist()), axis=dim)


def compare_runtime(what: Subject, data: bytes) -> float:
    """The largest difference between onnxruntime and the reference engine on random sequences."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors only: torch leaves constants that nothing reads
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(arguments: list[Tensor]) -> list[Tensor]:
        given = {name: value.detach().numpy() for name, value in zip(what.inputs, arguments)}
        return [torch.as_tensor(value) for value in session.run(what.outputs, given)]

    return compare(what, run)


def _check_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f'export: ONNX needs {", ".join(missing)}: pip install "longlag[onnx]"')


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about packages that longlag does not use."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
