"""Engines run a cell over time: plain torch (`reference`), compiled kernels (`cpu`)."""

from longlag.cells import Cell, register_printer
from longlag.engines._arguments import Norm as Norm
from longlag.engines._arguments import Weights as Weights
from longlag.engines._choose import check as check
from longlag.engines._choose import choose as choose
from longlag.engines._choose import intercepted as intercepted
from longlag.engines._run import run as run
from longlag.engines._threads import few_threads as few_threads


def _cpu_source(cell: Cell) -> str:
    from longlag.engines.cpu.codegen import generate

    return generate.source(cell, "float32", norm=False)


register_printer("cpu", _cpu_source)
