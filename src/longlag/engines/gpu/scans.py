"""Local cells whose state moves linearly, v(t) = A v(t−1) + B: an associative scan over chunks of time.

A program owns one sequence and BH units. It computes the A and B of ``BT`` steps at once, combines them along time, and
carries the state from chunk to chunk. Only the state at the beginning of a chunk is kept: ``all_…`` (chunks, B, H). The
backward pass goes over the chunks from the last to the first and computes the states between again by the same scan.
The gradient is a scan, too: E(t), of the state before step t, is A(t) (e(t) + E(t+1)), where e is the error that enters
v(t) through y(t); then follows the cell's own adjoint at D(t) = e(t) + E(t+1).

So a pass reads and writes each array of the size of the inputs once. Other arrays are those of `loops`; the flags, too.
"""

from __future__ import annotations

from longlag.engines.gpu.equations import Equations
from longlag.engines.gpu.lines import Lines, names

SIZES = ("T", "B", "H")
STAGES = 3  # chunks whose loads are in flight together
FLAGS = ("MASK", "LENGTHS", "RESET", "REVERSE", "SAVE", "BT", "BH")
_CHUNK = "(n0 // BT) * (B.to(tl.int64) * H) + here"


def _open(write: Lines, which: str, e: Equations) -> None:
    flags = [f"{flag}: tl.constexpr" for flag in FLAGS]
    write('@triton.jit(do_not_specialize=["T", "B"])')
    write.block(f"def {which}({', '.join([*names('scan', e, False, which), *SIZES, *flags])}):")
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


def _gates(write: Lines, e: Equations, source: str) -> None:
    """Gates ``a_…``, numbers ``i_…``, ``A_…`` and ``B_…`` at the steps n from n0 on."""
    cell, G = e.cell, len(e.gates)
    write("s = (T - 1 - n0 if REVERSE else n0) * B.to(tl.int64)")
    write("n = n0 + steps")
    write("t = T - 1 - n if REVERSE else n")
    write("valid = n < T")
    write("stored = valid[:, None] & in_h[None, :]")
    write.when("LENGTHS", "valid = valid & (t < length)")
    write("active = valid[:, None] & in_h[None, :]")
    for gate in e.gates:
        at = f"(s * {G} + {gate.place}) * H + tile_x"
        write(f"a_{gate.name} = tl.load({source} + {at}, active, 0.0).to(tl.float32)")
    for m in cell.per_step:
        write(f"i_{m} = tl.load(number_{m} + s * H + tile, active, 0.0).to(tl.float32)")
    found = ", ".join(f"A_{v}, B_{v}" for v in cell.fed_back)
    write(f"{found} = coefficients({', '.join(_given(e))})")
    write.when(
        "RESET",
        "fresh = (tl.load(reset + t.to(tl.int64) * B + row, valid, 0) != 0)[:, None]",
        *(f"A_{v} = tl.where(fresh, 0.0, A_{v} + nothing)" for v in cell.fed_back),
    )
    write.when("MASK", *(f"A_{v} = A_{v} * keep" for v in cell.fed_back))
    for v in cell.fed_back:
        write(f"A_{v} = tl.where(active, A_{v}, 1.0)")
        write(f"B_{v} = tl.where(active, B_{v}, 0.0)")


def _given(e: Equations, *values: str) -> list[str]:
    """What a function of the cell takes: gates, some values, numbers, params."""
    cell = e.cell
    gates, numbers = (f"a_{gate}" for gate in cell.gates), (f"i_{m}" for m in cell.per_step)
    return [*gates, *values, *numbers, *(f"p_{p}" for p in cell.params)]


def forward(e: Equations) -> str:
    """The forward kernel."""
    write, fed = Lines(), list(e.cell.fed_back)
    _open(write, "forward", e)
    for v in fed:
        write(f"v_{v} = tl.load(work_{v} + here, in_h, 0.0)")
    write.block(f"for n0 in tl.range(0, T, BT, num_stages={STAGES}):")
    write.when("SAVE", *(f"tl.store(all_{v} + {_CHUNK}, v_{v}, in_h)" for v in fed))
    _gates(write, e, "net")
    for v in fed:
        write(f"gain, through = tl.associative_scan((A_{v}, B_{v}), 0, _affine)")
        write(f"new_{v} = gain * v_{v}[None, :] + through")
        write(f"v_{v} = tl.sum(tl.where(steps[:, None] == BT - 1, new_{v}, 0.0), 0)")
    write(f"result = output({', '.join(_given(e, *(f'new_{v}' for v in fed)))})")
    write("tl.store(out + s * H + tile, tl.where(active, result, 0.0), stored)")
    write.depth -= 1
    write(*(f"tl.store(work_{v} + here, v_{v}, in_h)" for v in fed))
    return "\n".join(write.text) + "\n"


def backward(e: Equations) -> str:
    """The backward kernel."""
    cell, write, fed = e.cell, Lines(), list(e.cell.fed_back)
    _open(write, "backward", e)
    for v in fed:
        write(f"dv_{v} = tl.load(work_{v} + here, in_h, 0.0)")
    write(*(f"sum_{p} = tl.zeros([BH], tl.float32)" for p in cell.params))
    write.block(f"for m in tl.range(0, T, BT, num_stages={STAGES}):")
    write("n0 = (T - 1) // BT * BT - m")
    _gates(write, e, "saved")
    write("error = tl.load(errors + s * H + tile, active, 0.0).to(tl.float32)")
    scan = "gain, through, gain_before, through_before = tl.associative_scan((A_{0}, {1}, nothing + 1.0, nothing), {2})"
    for v in fed:
        write(f"v_{v} = tl.load(all_{v} + {_CHUNK}, in_h, 0.0)[None, :]")
        write(scan.format(v, f"B_{v}", "0, _affine_before"))
        write(f"new_{v}, b_{v} = gain * v_{v} + through, gain_before * v_{v} + through_before")
        write.when("RESET", f"b_{v} = tl.where(fresh, 0.0, b_{v})")
        write.when("MASK", f"b_{v} = b_{v} * keep")
    write(f"{', '.join(f'e_{v}' for v in fed)} = slopes({', '.join(_given(e, *(f'new_{v}' for v in fed)))})")
    for v in fed:
        write(f"e_{v} = tl.where(active, e_{v} * error, 0.0)")
        write(scan.format(v, f"A_{v} * e_{v}", "0, _affine_before, reverse=True"))
        write(f"D_{v} = e_{v} + gain_before * dv_{v}[None, :] + through_before")
        write(f"dv_{v} = tl.sum(tl.where(steps[:, None] == 0, gain * dv_{v}[None, :] + through, 0.0), 0)")
    given = _given(e, *(f"b_{v}" for v in fed))
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
