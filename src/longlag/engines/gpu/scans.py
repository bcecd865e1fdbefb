"""Local cells whose state moves linearly, v(t) = A v(t−1) + B: an associative scan over chunks of time.

A program owns one sequence and BH units. It computes the A and B of ``BT`` steps at once, combines them along time, and
carries the state from chunk to chunk. The backward pass is the same recurrence from the end,
D(t) = e(t) + A(t+1) D(t+1) with e the error that enters v(t) through y(t), followed by the cell's own adjoint.
Arrays are those of `loops`; the flags, too.
"""

from __future__ import annotations

from longlag.engines.gpu.equations import Equations
from longlag.engines.gpu.loops import Lines, names

SIZES = ("T", "B", "H")
STAGES = 1  # chunks whose loads are in flight together
FLAGS = ("MASK", "LENGTHS", "RESET", "REVERSE", "SAVE", "BT", "BH")


def _open(write: Lines, which: str, e: Equations) -> None:
    flags = [f"{flag}: tl.constexpr" for flag in FLAGS]
    write('@triton.jit(do_not_specialize=["T", "B"])')
    write.block(f"def {which}({', '.join([*names('local', e, False, which), *SIZES, *flags])}):")
    write("row = tl.program_id(0)")
    write("cols = tl.program_id(1) * BH + tl.arange(0, BH)")
    write("steps, in_h = tl.arange(0, BT), cols < H")
    write("here = row * H + cols")
    G = len(e.gates)
    write("forth = (-1 if REVERSE else 1) * steps[:, None].to(tl.int64) * B")  # offsets of a tile do not change
    write(f"tile_at, gates_at = forth * H + here[None, :], forth * ({G} * H) + row * ({G} * H) + cols[None, :]")
    write("tile = tl.zeros([BT, BH], tl.float32)")
    write.block("if LENGTHS:")("length = tl.load(lengths + row)")
    write.depth -= 1
    write.block("if MASK:")("keep = tl.load(mask + here, in_h, 0.0).to(tl.float32)[None, :]")
    write.depth -= 1
    for p in e.cell.params:
        write(f"p_{p} = tl.load(param_{p} + cols, in_h, 1.0).to(tl.float32)[None, :]")


def _gates(write: Lines, e: Equations, first: str, end: str, source: str) -> None:
    """Gates ``a_…`` and gains ``A_…``, ``B_…`` at the steps n from ``first`` on; ``end`` ends every name."""
    cell, G = e.cell, len(e.gates)
    write(f"s{end} = (T - 1 - ({first}) if REVERSE else {first}) * B.to(tl.int64)")
    write(f"n{end} = {first} + steps")
    write(f"t{end} = T - 1 - n{end} if REVERSE else n{end}")
    write(f"valid{end} = (n{end} < T) & (n{end} >= 0)")
    write(f"stored{end} = valid{end}[:, None] & in_h[None, :]")
    write.block("if LENGTHS:")(f"valid{end} = valid{end} & (t{end} < length)")
    write.depth -= 1
    write(f"active{end} = valid{end}[:, None] & in_h[None, :]")
    for i, (gate, _, _) in enumerate(e.gates):
        at = f"(s{end} * {G} + {i}) * H + gates_at"
        write(f"a_{gate}{end} = tl.load({source} + {at}, active{end}, 0.0).to(tl.float32)")
    given = [f"a_{gate}{end}" for gate, _, _ in e.gates] + [f"p_{p}" for p in cell.params]
    write(f"{', '.join(f'A_{v}{end}, B_{v}{end}' for v in cell.fed_back)} = coefficients({', '.join(given)})")
    write.block("if RESET:")(f"fresh = (tl.load(reset + t{end}.to(tl.int64) * B + row, valid{end}, 0) != 0)[:, None]")
    write(*(f"A_{v}{end} = tl.where(fresh, 0.0, A_{v}{end} + tile)" for v in cell.fed_back))
    write.depth -= 1
    write.block("if MASK:")(*(f"A_{v}{end} = A_{v}{end} * keep" for v in cell.fed_back))
    write.depth -= 1
    for v in cell.fed_back:
        write(f"A_{v}{end} = tl.where(active{end}, A_{v}{end}, 1.0)")
        write(f"B_{v}{end} = tl.where(active{end}, B_{v}{end}, 0.0)")


def forward(e: Equations) -> str:
    """The forward kernel."""
    cell, write, fed = e.cell, Lines(), list(e.cell.fed_back)
    _open(write, "forward", e)
    for v in fed:
        write(f"v_{v} = tl.load(work_{v} + here, in_h, 0.0)")
    write.block(f"for n0 in tl.range(0, T, BT, num_stages={STAGES}):")
    _gates(write, e, "n0", "", "net")
    for v in fed:
        write(f"gain, new = tl.associative_scan((A_{v}, B_{v}), 0, _affine)")
        write(f"new_{v} = gain * v_{v}[None, :] + new")
        write(f"v_{v} = tl.sum(tl.where(steps[:, None] == BT - 1, new_{v}, 0.0), 0)")
    given = [f"a_{gate}" for gate, _, _ in e.gates] + [f"new_{v}" for v in fed] + [f"p_{p}" for p in cell.params]
    write(f"y = output({', '.join(given)})")
    write("tl.store(out + s * H + tile_at, tl.where(active, y, 0.0), stored)")
    write.block("if SAVE:")(*(f"tl.store(all_{s} + s * H + tile_at, new_{s}, stored)" for s in cell.states))
    if not cell.states:
        write("pass")
    write.depth -= 2
    for v in fed:
        write(f"tl.store(work_{v} + here, v_{v}, in_h)")
    return "\n".join(write.text) + "\n"


def backward(e: Equations) -> str:
    """The backward kernel."""
    cell, write, fed = e.cell, Lines(), list(e.cell.fed_back)
    gates, params = [gate for gate, _, _ in e.gates], list(cell.params)
    _open(write, "backward", e)
    for v in fed:
        write(f"d_{v} = tl.load(work_{v} + here, in_h, 0.0)")
        write(f"f_{v} = tl.load(first_{v} + here, in_h, 0.0).to(tl.float32)[None, :]")
    for p in params:
        write(f"sum_{p} = tl.zeros([BH], tl.float32)")
    write.block(
        f"for m in tl.range(0, T + 1, BT, num_stages={STAGES}):"
    )  # up to n = -1, whose D is the gradient of the initial state
    write("n0 = T - m - BT")
    _gates(write, e, "n0 + 1", "_after", "saved")  # beyond the end A is 1: the gradient of the final state passes
    _gates(write, e, "n0", "", "saved")
    write("error = tl.load(d_out + s * H + tile_at, active, 0.0).to(tl.float32)")
    for v in fed:
        past = "out" if v == "y" else f"all_{v}"
        write(f"new_{v} = tl.load({past} + s * H + tile_at, active, 0.0).to(tl.float32)")
        before, where = "(s + B if REVERSE else s - B) * H", "active & (n > 0)[:, None]"
        write(f"b_{v} = tl.load({past} + {before} + tile_at, {where}, 0.0).to(tl.float32)")
        write("begins = n == 0")
        if v == "y":
            write.block("if REVERSE and LENGTHS:")("begins = begins | (t == length - 1)")
            write.depth -= 1
        write(f"b_{v} = tl.where(begins[:, None], f_{v}, b_{v})")
        write.block("if RESET:")(f"b_{v} = tl.where(fresh, 0.0, b_{v})")
        write.depth -= 1
        write.block("if MASK:")(f"b_{v} = b_{v} * keep")
        write.depth -= 1
    given = [f"a_{gate}" for gate in gates] + [f"new_{v}" for v in fed] + [f"p_{p}" for p in params]
    write(f"{', '.join(f'e_{v}' for v in fed)} = slopes({', '.join(given)})")
    for v in fed:
        write(f"e_{v} = tl.where(active, e_{v} * error, 0.0)")
        write(f"gain, through = tl.associative_scan((A_{v}_after, e_{v}), 0, _affine, reverse=True)")
        write(f"D_{v} = gain * d_{v}[None, :] + through")
        write(f"d_{v} = tl.sum(tl.where(steps[:, None] == 0, D_{v}, 0.0), 0)")
    given = [f"a_{gate}" for gate in gates] + [f"b_{v}" for v in fed] + [f"p_{p}" for p in params]
    given += ["D_y" if "y" in fed else "error", *(f"D_{s} - e_{s}" for s in cell.states)]
    found = [f"da_{gate}" for gate in gates] + [f"unused_{v}" for v in fed] + [f"dp_{p}" for p in params]
    write(f"{', '.join(found)} = step_back({', '.join(given)})")
    for p in params:
        write(f"sum_{p} += tl.sum(tl.where(active, dp_{p}, 0.0), 0)")
    for i, gate in enumerate(gates):
        at = f"(s * {len(gates)} + {i}) * H + gates_at"
        write(f"tl.store(d_net + {at}, tl.where(active, da_{gate}, 0.0), stored)")
    write.depth -= 1
    for v in fed:
        write(f"tl.store(work_{v} + here, d_{v}, in_h)")
    for p in params:
        write(f"tl.store(d_{p} + row * H + cols, sum_{p}, in_h)")
    return "\n".join(write.text) + "\n"
