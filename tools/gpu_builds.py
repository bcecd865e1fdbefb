"""Every kernel family of the GPU engine built ahead of time, without a GPU: registers, spills, shared memory.

    python tools/gpu_builds.py [target ...]          targets: sm_80 sm_90 sm_100 gfx942; without one: all

Prints a table in Markdown (docs/engines.md): the loop, the tile, its warps; then registers per thread and KiB of shared
memory, forward and backward. The exit status is the number of builds that spill or do not fit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from longlag import cells
from longlag.cells import Cell, cell, sigmoid, tanh
from longlag.engines.gpu import loops, scans
from longlag.engines.gpu.build import kernels
from longlag.engines.gpu.lines import names
from longlag.engines.gpu.plan import Plan, plan

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"sm_80": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KiB that one program may have
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@cell(gates="a z")
def two_gates(a, z, y):
    """A user's cell."""
    return sigmoid(z) * y + (1 - sigmoid(z)) * tanh(a)


class Case(NamedTuple):
    """A kernel family at its default configuration."""

    cell: Cell
    H: int
    dtype: torch.dtype = torch.float32
    norm: bool = False
    heads: int = 1

    def plan(self, target: str) -> Plan:
        """The default configuration on a GPU with the target's shared memory."""
        return plan(self.cell, self.H, self.dtype.itemsize, self.norm, self.heads, SHARED[target] * 1024)


CASES = [
    Case(cells.net_feedback, 1536),
    Case(cells.net_feedback, 1536, torch.bfloat16),
    Case(cells.activation_feedback, 256),
    Case(cells.activation_feedback, 256, torch.bfloat16),
    Case(cells.elman, 128),
    Case(cells.elman, 256, torch.bfloat16),
    Case(cells.lstm, 64),
    Case(cells.lstm, 64, torch.float32, True),
    Case(cells.lstm, 64, torch.bfloat16),
    Case(cells.lstm, 128, torch.bfloat16),
    Case(cells.lstm, 512),
    Case(cells.lstm, 512, torch.float32, True),
    Case(cells.lstm, 512, torch.bfloat16),
    Case(cells.gru, 2048, torch.float32, True),
    Case(cells.min_gru, 1536),
    Case(cells.min_gru, 1536, torch.bfloat16),
]


class Built(NamedTuple):
    """What the compiler says of a kernel."""

    registers: int
    spills: int  # bytes (NVIDIA), registers (AMD)
    shared: int  # bytes


def build(case: Case, which: str, target: str) -> Built:
    """Compile ``"forward"`` or ``"backward"``, with all options of a call except ``reverse``."""
    kind, BM, BH, warps, units = case.plan(target)
    made = kernels(case.cell, kind, case.norm and case.cell.dense)
    number, scan = TYPES[case.dtype], kind == "scan"
    pointers = names(kind, made.equations, made.norm, which)
    wide = ("work_", "all_", "at_", "to_norm", *["saved"] * case.cell.dense)
    signature: dict[str, str] = {
        name: "*i64"
        if name == "lengths"
        else "*u8"
        if name == "reset"
        else f"*{'fp32' if name.startswith(wide) else number}"
        for name in pointers
    }
    sizes = scans.SIZES if scan else loops.SIZES
    signature |= {name: "fp32" if name == "eps" else "i32" for name in sizes}
    flags: dict[str, Any] = dict.fromkeys(("MASK", "LENGTHS", "RESET", "SAVE"), True) | {"REVERSE": False}
    factor = {torch.float32: triton.language.float32, torch.bfloat16: triton.language.bfloat16}[case.dtype]
    precision = "ieee" if target == "gfx942" else "tf32x3"
    flags |= (
        {"BT": BM, "BH": BH}
        if scan
        else {"EARLY": False, "BM": BM, "BH": BH, "UNITS": units, "PRECISION": precision, "FACTOR": factor}
    )
    signature |= dict.fromkeys(scans.FLAGS if scan else loops.FLAGS, "constexpr")
    order = list(signature)
    aligned = list(pointers) + ["H"] * (case.H % 16 == 0)
    attributes = {(order.index(name),): [["tt.divisibility", 16]] for name in aligned}
    constants = {(order.index(name),): value for name, value in flags.items()}
    source = ASTSource(getattr(made, which), signature, constants, attributes)
    compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": warps, "enable_fp_fusion": True})
    shared = compiled.metadata.shared
    if target == "gfx942":
        text = compiled.asm["amdgcn"]
        count = lambda name: int(re.findall(rf"\.{name}:\s*(\d+)", text)[0])  # noqa: E731
        return Built(count("vgpr_count"), count("vgpr_spill_count"), shared)
    return Built(*_ptxas(compiled.asm["ptx"]), shared)


def _ptxas(ptx: str) -> tuple[int, int]:
    """Registers and spilled bytes, by the assembler that Triton ships."""
    architecture = re.findall(r"\.target (sm_\w+)", ptx)[0]
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    name = "ptxas-blackwell" if (folder / "ptxas-blackwell").exists() else "ptxas"  # the newer one, for all targets
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "kernel.ptx"
        file.write_text(ptx)
        command = [str(folder / name), "-v", f"-arch={architecture}", str(file), "-o", f"{place}/kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return int(re.findall(r"Used (\d+) registers", said)[0]), sum(map(int, re.findall(r"(\d+) bytes spill", said)))


def described(case: Case) -> str:
    """A row's first cell."""
    return f"{case.cell.name}{' with layer norm' if case.norm else ''}, {case.H} units, {TYPES[case.dtype]}"


def main(targets: list[str]) -> int:
    """The table; returns the number of builds that fail the rules."""
    wrong = 0
    print(f"Triton {triton.__version__}\n")
    print("| cell | " + " | ".join(targets) + " |")
    print("|---|" + "---|" * len(targets))
    for case in CASES:
        row = []
        for target in targets:
            kind, BM, BH, warps, _ = case.plan(target)
            texts = [f"{kind} {BM} × {BH}, {warps}"]
            for which in ("forward", "backward"):
                built = build(case, which, target)
                fits = built.shared <= SHARED[target] * 1024 and built.spills == 0
                wrong += not fits
                spilled = f", **spills {built.spills}**" if built.spills else ""
                texts.append(f"{built.registers}, {built.shared / 1024:.0f}{spilled}")
            row.append("; ".join(texts))
        print(f"| {described(case)} | {' | '.join(row)} |", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(TARGETS)))
