"""Exported programs of torch, which run where longlag is not installed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from longlag import files
from longlag.export._check import check_difference, check_target, translating
from longlag.export._subject import compare, subject


def to_torch(model: Any, path: str | Path, *, step: bool = False, force: bool = False) -> float:
    """Write a program of ``torch.export`` with free batch and time; to run the program, torch is enough.

    Arguments, inputs and outputs as in `to_onnx`. Returns the largest difference from the reference engine.

    >>> import tempfile, torch, longlag as ll
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     largest = ll.export.to_torch(ll.GRU(3, 5), folder + "/gru.pt2")
    ...     run = torch.export.load(folder + "/gru.pt2").module()
    >>> y, h = run(torch.randn(9, 2, 3), torch.tensor([9, 4]), torch.zeros(1, 2, 5))
    >>> y.shape, bool((y[4:, 1] == 0).all())
    (torch.Size([9, 2, 5]), True)
    """
    path = Path(path)
    check_target(path, force)
    what = subject(model, step)
    arguments = tuple(what.example(5, 2, torch.Generator().manual_seed(0)))
    with torch.no_grad(), translating(model, "a program of torch"):
        program = torch.export.export(what, arguments, dynamic_shapes=what.dynamic_shapes(), strict=False)
    memory = io.BytesIO()
    torch.export.save(program, memory)
    memory.seek(0)
    run = torch.export.load(memory).module()
    found = check_difference("exported program", compare(what, lambda given: run(*given)), what.dtype)
    files.replace(path, memory.getvalue())
    return found
