"""Local cells whose state moves linearly, v(t) = A v(t−1) + B: an associative scan over chunks of time.

A program owns one sequence and BH units. It computes the A and B of ``BT`` steps at once, combines them along time, and
carries the state from chunk to chunk. The backward pass is the same recurrence from the end,
D(t) = e(t) + A(t+1) D(t+1) with e the error that enters v(t) through y(t), followed by the cell's own adjoint.
Arrays are those of `loops`; the flags, too.
"""

from __future__ import annotations

from longlag.engines.gpu.equations import Equations
from longlag.engines.gpu.lines import Lines, names

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
    write(f"tile, tile_x = forth * H + here[None, :], forth * ({G} * H) + row * ({G} * H) + cols[None, :]")
    write("nothing = tl.zeros([BT, BH], tl.float32)")
    write.when("LENGTHS", "length = tl.load(lengths + row)")
    write.when("MASK", "keep = tl.load(mask + here, in_h, 0.0).to(tl.float32)[None, :]")
    for p in e.cell.params:
        write(f"p_{p} = tl.load(param_{p} + cols, in_h, 1.0).to(tl.float32)[None, :]")


def _gates(write: Lines, e: Equations, first: str, x: str, source: str) -> None:
    """Gates ``a_…``, numbers ``i_…``, ``A_…`` and ``B_…`` at the steps n from ``first`` on; ``x`` begins names."""
    cell, G = e.cell, len(e.gates)
    write(f"{x}s = (T - 1 - ({first}) if REVERSE else {first}) * B.to(tl.int64)")
    write(f"{x}n = {first} + steps")
    write(f"{x}t = T - 1 - {x}n if REVERSE else {x}n")
    write(f"{x}valid = ({x}n < T) & ({x}n >= 0)")
    write(f"{x}stored = {x}valid[:, None] & in_h[None, :]")
    write.when("LENGTHS", f"{x}valid = {x}valid & ({x}t < length)")
    write(f"{x}active = {x}valid[:, None] & in_h[None, :]")
    for gate in e.gates:
        at = f"({x}s * {G} + {gate.place}) * H + tile_x"
        write(f"{x}a_{gate.name} = tl.load({source} + {at}, {x}active, 0.0).to(tl.float32)")
    for m in cell.per_step:
        write(f"{x}i_{m} = tl.load(number_{m} + {x}s * H + tile, {x}active, 0.0).to(tl.float32)")
    found = ", ".join(f"{x}A_{v}, {x}B_{v}" for v in cell.fed_back)
    write(f"{found} = coefficients({', '.join(_given(e, x))})")
    write.when(
        "RESET",
        f"fresh = (tl.load(reset + {x}t.to(tl.int64) * B + row, {x}valid, 0) != 0)[:, None]",
        *(f"{x}A_{v} = tl.where(fresh, 0.0, {x}A_{v} + nothing)" for v in cell.fed_back),
    )
    write.when("MASK", *(f"{x}A_{v} = {x}A_{v} * keep" for v in cell.fed_back))
    for v in cell.fed_back:
        write(f"{x}A_{v} = tl.where({x}active, {x}A_{v}, 1.0)")
        write(f"{x}B_{v} = tl.where({x}active, {x}B_{v}, 0.0)")


def _given(e: Equations, x: str = "", *values: str) -> list[str]:
    """What a function of the cell takes: gates, some values, numbers, params."""
    cell = e.cell
    gates, numbers = (f"{x}a_{gate}" for gate in cell.gates), (f"{x}i_{m}" for m in cell.per_step)
    return [*gates, *values, *numbers, *(f"p_{p}" for p in cell.params)]


def forward(e: Equations) -> str:
    """The forward kernel."""
    cell, write, fed = e.cell, Lines(), list(e.cell.fed_back)
    _open(write, "forward", e)
    for v in fed:
        write(f"v_{v} = tl.load(work_{v} + here, in_h, 0.0)")
    write.block(f"for n0 in tl.range(0, T, BT, num_stages={STAGES}):")
    _gates(write, e, "n0", "", "net")
    for v in fed:
        write(f"gain, through = tl.associative_scan((A_{v}, B_{v}), 0, _affine)")
        write(f"new_{v} = gain * v_{v}[None, :] + through")
        write(f"v_{v} = tl.sum(tl.where(steps[:, None] == BT - 1, new_{v}, 0.0), 0)")
    write(f"result = output({', '.join(_given(e, '', *(f'new_{v}' for v in fed)))})")
    write("tl.store(out + s * H + tile, tl.where(active, result, 0.0), stored)")
    write.when("SAVE", *(f"tl.store(all_{v} + s * H + tile, new_{v}, stored)" for v in cell.states))
    write.depth -= 1
    write(*(f"tl.store(work_{v} + here, v_{v}, in_h)" for v in fed))
    return "\n".join(write.text) + "\n"


def backward(e: Equations) -> str:
    """The backward kernel."""
    cell, write, fed = e.cell, Lines(), list(e.cell.fed_back)
    _open(write, "backward", e)
    for v in fed:
        write(f"dv_{v} = tl.load(work_{v} + here, in_h, 0.0)")
        write(f"f_{v} = tl.load(first_{v} + here, in_h, 0.0).to(tl.float32)[None, :]")
    write(*(f"sum_{p} = tl.zeros([BH], tl.float32)" for p in cell.params))
    # up to n = −1, whose D is the gradient of the initial state
    write.block(f"for m in tl.range(0, T + 1, BT, num_stages={STAGES}):")
    write("n0 = T - m - BT")
    _gates(write, e, "n0 + 1", "then_", "saved")  # beyond the end A is 1: the gradient of the final state passes
    _gates(write, e, "n0", "", "saved")
    write("error = tl.load(errors + s * H + tile, active, 0.0).to(tl.float32)")
    for v in fed:
        past = "out" if v == "y" else f"all_{v}"
        write(f"new_{v} = tl.load({past} + s * H + tile, active, 0.0).to(tl.float32)")
        before, where = "(s + B if REVERSE else s - B) * H", "active & (n > 0)[:, None]"
        write(f"b_{v} = tl.load({past} + {before} + tile, {where}, 0.0).to(tl.float32)")
        write("begins = n == 0")
        if v == "y":
            write.when("REVERSE and LENGTHS", "begins = begins | (t == length - 1)")
        write(f"b_{v} = tl.where(begins[:, None], f_{v}, b_{v})")
        write.when("RESET", f"b_{v} = tl.where(fresh, 0.0, b_{v})")
        write.when("MASK", f"b_{v} = b_{v} * keep")
    write(f"{', '.join(f'e_{v}' for v in fed)} = slopes({', '.join(_given(e, '', *(f'new_{v}' for v in fed)))})")
    for v in fed:
        write(f"e_{v} = tl.where(active, e_{v} * error, 0.0)")
        write(f"gain, through = tl.associative_scan((then_A_{v}, e_{v}), 0, _affine, reverse=True)")
        write(f"D_{v} = gain * dv_{v}[None, :] + through")
        write(f"dv_{v} = tl.sum(tl.where(steps[:, None] == 0, D_{v}, 0.0), 0)")
    given = _given(e, "", *(f"b_{v}" for v in fed))
    given += ["D_y" if "y" in fed else "error", *(f"D_{s} - e_{s}" for s in cell.states)]
    found = [*(f"da_{gate}" for gate in cell.gates), *(f"db_{v}" for v in fed)]
    found += [*(f"di_{m}" for m in cell.per_step), *(f"dp_{p}" for p in cell.params)]
    write(f"{', '.join(found)} = step_back({', '.join(given)})")
    write(*(f"sum_{p} += tl.sum(tl.where(active, dp_{p}, 0.0), 0)" for p in cell.params))
    for gate in e.gates:
        at = f"(s * {len(e.gates)} + {gate.place}) * H + tile_x"
        write(f"tl.store(to_net + {at}, tl.where(active, da_{gate.name}, 0.0), stored)")
    for m in cell.per_step:
        write(f"tl.store(at_number_{m} + s * H + tile, tl.where(active, di_{m}, 0.0), stored)")
    write.depth -= 1
    write(*(f"tl.store(work_{v} + here, dv_{v}, in_h)" for v in fed))
    write(*(f"tl.store(at_param_{p} + row * H + cols, sum_{p}, in_h)" for p in cell.params))
    return "\n".join(write.text) + "\n"
