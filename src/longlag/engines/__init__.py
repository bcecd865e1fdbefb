"""Engines run a cell over time: plain torch (`reference`), compiled (`cpu`), torch's (`torch`), Triton (`gpu`)."""

from longlag.cells import Cell, register_printer
from longlag.engines import _gpu as _gpu  # registers operators with torch
from longlag.engines import _operators as _operators  # the same
from longlag.engines._arguments import DtypeError as DtypeError
from longlag.engines._arguments import Norm as Norm
from longlag.engines._arguments import ShapeError as ShapeError
from longlag.engines._arguments import Weights as Weights
from longlag.engines._choose import as_operator as as_operator
from longlag.engines._choose import check as check
from longlag.engines._choose import choose as choose
from longlag.engines._exporting import right_inverse as right_inverse
from longlag.engines._for_cells import check_for_cells as check_for_cells
from longlag.engines._for_cells import choose_for_cell as choose_for_cell
from longlag.engines._operators import one_by_one as one_by_one
from longlag.engines._private import calls_forward as calls_forward
from longlag.engines._run import join as join
from longlag.engines._run import run as run
from longlag.engines._run import run_blocks as run_blocks
from longlag.engines._run import run_jordan as run_jordan
from longlag.engines._step import Steps as Steps
from longlag.engines._threads import few_threads as few_threads


def _cpu_source(cell: Cell) -> str:
    from longlag.engines.cpu.codegen import generate

    return generate.source(cell, "float32", norm=False)


register_printer("cpu", _cpu_source)


def _gpu_source(cell: Cell) -> str:
    from longlag.engines.gpu import build, plan

    return build.source(cell, plan.plan(cell, 64, 4, False).kind, norm=False)


register_printer("gpu", _gpu_source)
