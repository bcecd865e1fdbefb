"""C code of layers and learners."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longlag import files
from longlag.export._c_file import CFile
from longlag.export._c_record import record_learning, record_step, twin
from longlag.export._check import ExportError, check_difference, check_target, difference
from longlag.export._portable import portable
from longlag.export._subject import parts_of
from longlag.learn import Online
from longlag.structured import CRF

STEPS = 40  # of the check


def to_c(model: Any, path: str | Path, *, learn: bool = False, force: bool = False) -> float:
    """Write a self-contained C99 file: a type, ``NAME_reset`` and ``NAME_step``, NAME from the name of the file.

    The weights are constants; nothing is allocated; only ``math.h`` is needed. The numbers are float or double, as the
    layer's. Before the file is written, a C compiler (``cc``) compiles the code, and its results are compared with the
    reference engine's. Returns the largest difference.

    Args:
        model: a layer, or a `learn.Online` (its layer and its read-out).
        learn: for an `Online` with a rule in real time (`LocalForward`, `TruncatedRTRL`, `RTRL`) and plain SGD:
            the weights are variables, and ``NAME_learn`` is a step and an update by the same rule.
        force: replace an existing file.

    >>> import tempfile, longlag as ll
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     largest = ll.export.to_c(ll.LSTM(3, 5), folder + "/lstm.c")
    >>> largest < 1e-5
    True
    """
    path = Path(path)
    check_target(path, force)
    if isinstance(model, CRF):
        raise ExportError("export: a CRF decodes from the end of a sequence and has no step in C; to_onnx serves it")
    name = re.sub(r"\W", "_", path.stem)
    if not re.match(r"[A-Za-z_]", name):
        raise ExportError(f"export: {path.name} must begin with a letter, which begins the names in C")
    text = source(model, name, learn)
    found = check_difference("C code", compare(model, name, text, learn), parts_of(model)[0].dtype)
    files.replace(path, text)
    return found


def source(model: Any, name: str, learn: bool = False) -> str:
    """The C code."""
    layer, readout = parts_of(model)
    recording = record_learning(model) if learn else record_step(layer, readout)
    title = f"{layer}" if readout is None else f"{layer}, read out by {readout}"
    if learn:
        title += f"; learns by {model.rule!r} and SGD"
    return CFile(recording, name, " ".join(title.split()).replace("*/", "")).text()


class Compiled:
    """A C file as a library: ``reset``, ``step``, ``learn`` on one object."""

    def __init__(self, name: str, text: str, dtype: torch.dtype, folder: str) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ExportError("export: C code is checked before it is written, which needs a C compiler named cc")
        file, library = Path(folder, f"{name}.c"), Path(folder, f"{name}.so")
        file.write_text(f"{text}\nunsigned long size_of_object(void) {{ return sizeof({name}); }}\n", encoding="utf-8")
        command = [compiler, "-std=c99", "-O2", "-shared", "-fPIC", str(file), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ExportError(f"export: {compiler} cannot compile the C code: {done.stderr.strip()}")
        self.library, self.name, self.dtype = ctypes.CDLL(str(library)), name, dtype
        self.library.size_of_object.restype = ctypes.c_ulong
        self.memory = ctypes.create_string_buffer(self.library.size_of_object())
        self.kind = np.float32 if dtype == torch.float32 else np.float64

    def call(self, function: str, *arguments: Any, outputs: int = 0) -> tuple[int, Tensor]:
        """A function's code and its output."""
        arrays = [np.ascontiguousarray(a, dtype=self.kind) for a in arguments]
        y = np.zeros(outputs, dtype=self.kind)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*arrays, *([y] if outputs else []))]
        code = getattr(self.library, f"{self.name}_{function}")(self.memory, *pointers)
        return code, torch.as_tensor(y)


def compare(model: Any, name: str, text: str, learn: bool) -> float:
    """The largest difference from the reference engine over some random steps."""
    layer, readout = parts_of(model)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, 1, layer.input_size, generator=generator, dtype=layer.dtype)
    with tempfile.TemporaryDirectory() as folder:
        compiled = Compiled(name, text, layer.dtype, folder)
        compiled.call("init" if learn else "reset")
        if learn:
            return _compare_learning(compiled, model, x, generator)
        own: Any = portable(layer)
        ours, wanted, state = [], [], None
        with torch.no_grad():
            for x_t in x:
                y, state = own.step(x_t, state)
                wanted.append((y if readout is None else readout(y)).reshape(-1))
                ours.append(compiled.call("step", x_t, outputs=wanted[-1].numel())[1])
    return difference(ours, wanted)


def _compare_learning(compiled: Compiled, learner: Online, x: Tensor, generator: torch.Generator) -> float:
    """Learning and predicting steps in turn."""
    reference = twin(learner)
    ours, wanted = [], []
    for t, x_t in enumerate(x):
        target = None
        if t % 4 != 3:
            size = wanted[-1].numel() if wanted else reference.step(x_t.clone()).numel()
            if not wanted:  # the size of the output was not known: begin again
                reference = twin(learner)
            target = torch.randn(1, size, generator=generator, dtype=x.dtype) / 10
        wanted.append(reference.step(x_t, target).reshape(-1))
        given = (x_t,) if target is None else (x_t, target)
        ours.append(compiled.call("step" if target is None else "learn", *given, outputs=wanted[-1].numel())[1])
    return difference(ours, wanted)
