"""Models for programs without Python: ONNX, C, and exported programs of torch."""

from longlag.export._c import to_c as to_c
from longlag.export._check import ExportError as ExportError
from longlag.export._onnx import to_onnx as to_onnx
from longlag.export._portable import portable as portable
from longlag.export._torch import to_torch as to_torch
