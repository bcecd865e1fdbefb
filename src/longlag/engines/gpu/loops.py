"""The time loops around a cell as text of Triton kernels: forward and backward.

A program owns BM sequences and UNITS units, in a tile of BM by BH, and keeps their state in registers. Three kinds of
loop share this text:

``"local"``     a unit reads only itself: programs over sequences and units; every ``UNROLL`` steps are loaded together
``"resident"``  U y inside the kernel: a program has all units, or those of a head, and U stays on chip
``"stepwise"``  U y by a matrix product between launches of one step each; the state lies in memory

Arrays: net (T, B, Gx, H); saved (T, B, G, H), net inputs before the norm; rec (B, Gy, H) = U y; source (S, T, B, H),
what U reads, S sources; states (T, B, H); work, the state or its gradient at one step (B, H), float32.

Stepwise, forward: the launch of step n leaves the sources of step n+1; the launch of step −1 those of the first step.
A source that is formed from gates of its own step needs one more launch (EARLY), which ends with this source. Backward:
the launch of step n finds in rec (S, B, H) what the sources of step n+1 received; an EARLY launch leaves the gradients
of the gates that read the late sources, whose product then lies in rec. The launch of step −1 is the last.
"""

from __future__ import annotations

from longlag.engines.gpu.equations import Equations, Source
from longlag.engines.gpu.lines import Lines

UNROLL = 8  # steps of a local cell whose loads are in flight together
STAGES = 1  # chunks of steps whose loads are in flight together

SIZES = ("T", "B", "H", "start", "stop", "eps")
FLAGS = ("MASK", "LENGTHS", "RESET", "REVERSE", "SAVE", "EARLY", "BM", "BH", "UNITS", "PRECISION", "FACTOR")
DOT = "tl.dot({}.to(FACTOR), U_{}, input_precision=PRECISION)"


def opened(write: Lines, e: Equations, which: str, pointers: list[str]) -> None:
    """The head of a kernel: its place, and the params."""
    flags = [f"{flag}: tl.constexpr" for flag in FLAGS]
    write('@triton.jit(do_not_specialize=["T", "B", "start", "stop"])')
    write.block(f"def {which}({', '.join([*pointers, *SIZES, *flags])}):")
    write("rows = tl.program_id(0) * BM + tl.arange(0, BM)")
    write("cols = tl.program_id(1) * UNITS + tl.arange(0, BH)")
    write("in_b, in_h = rows < B, (tl.arange(0, BH) < UNITS) & (cols < H)")
    write("inside = in_b[:, None] & in_h[None, :]")
    write("here = rows[:, None] * H + cols[None, :]")
    counts = {"x": len(e.cell.input_gates), "y": len(e.cell.recurrent_gates), "g": len(e.gates)}
    write(*(f"tile_{name} = rows[:, None] * ({count} * H) + cols[None, :]" for name, count in counts.items()))
    write("nothing = tl.zeros([BM, BH], tl.float32)", "wide = B.to(tl.int64)")
    write.when("LENGTHS", "length = tl.load(lengths + rows, in_b, 0)")
    write.when("MASK", "keep = tl.load(mask + here, inside, 0.0).to(tl.float32)")
    for p in e.cell.params:
        write(f"p_{p} = tl.load(param_{p} + cols, in_h, 1.0).to(tl.float32)[None, :]")


def steps_in(K: int) -> str:
    """The head of the loop over time, K steps at once."""
    return f"tl.range(start, stop, {K}, num_stages={STAGES})" if K > 1 else "range(start, stop)"


def norm_of(write: Lines, k: int, *what: str) -> None:
    """``gamma_k`` and ``beta_k``. A launch of one step loads them where it needs them: registers are few."""
    for name in what or ("gamma", "beta"):
        tensor = {"gamma": "norm_weight", "beta": "norm_bias"}[name]
        write(f"{name}_{k} = tl.load({tensor} + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")


def times(write: Lines, k: int, kind: str, step: str) -> None:
    """t_k and what holds at that step: which sequences are active, which begin anew."""
    there = f"(count_{k} < T) & (count_{k} >= 0)"  # not so beyond an unrolled loop, and at the step −1
    partly = kind in ("local", "stepwise")
    write(f"n_{k} = {step}")
    write(f"count_{k} = n_{k} + 0 * rows")  # comparisons of scalars are not masks in Triton's interpreter
    write(f"t_{k} = T - 1 - n_{k} if REVERSE else n_{k}")
    write(f"s_{k} = t_{k} * wide")  # offsets of a step are scalars, those of a program's tile do not change
    write(f"valid_{k} = {there} & in_b" if partly else f"valid_{k} = in_b")
    write.when("LENGTHS", f"valid_{k} = valid_{k} & (t_{k} < length)")
    write(f"active_{k} = valid_{k}[:, None] & in_h[None, :]")
    write(f"stored_{k} = inside & ({there})[:, None]" if partly else f"stored_{k} = inside")
    write.when("RESET", f"fresh_{k} = (tl.load(reset + s_{k} + rows, valid_{k}, 0) != 0)[:, None]")


def normalise(write: Lines, a: str, k: int, kind: str) -> None:
    """Layer normalisation of a row [LN-RNN 5 LN]: unit_k = (a − μ)/σ, then γ unit + β in place of a."""
    if kind == "stepwise":
        norm_of(write, k)
    write(f"mean_{k} = tl.sum(tl.where(in_h[None, :], {a}, 0.0), 1)[:, None] / H")
    write(f"unit_{k} = tl.where(in_h[None, :], {a} - mean_{k}, 0.0)")
    write(f"scale_{k} = 1.0 / tl.sqrt(tl.sum(unit_{k} * unit_{k}, 1)[:, None] / H + eps)")
    write(f"unit_{k} = unit_{k} * scale_{k}")
    write(f"{a} = gamma_{k} * unit_{k} + beta_{k}")


def matrix(write: Lines, e: Equations, of: str) -> None:
    """U resident: one block per gate, kept for the whole loop."""
    at = {"forward": "cols[None, :] * H + cols[:, None]", "backward": "cols[:, None] * H + cols[None, :]"}[of]
    for gate in e.gates:
        if gate.in_U >= 0:
            write(f"U_{gate.in_U} = tl.load(U + {gate.in_U} * H * H + {at}, in_h[None, :] & in_h[:, None], 0.0)")
            write(f"U_{gate.in_U} = U_{gate.in_U}.to(FACTOR)")


def numbers(write: Lines, e: Equations, step: str, where: str, end: str) -> None:
    for m in e.cell.per_step:
        write(f"i_{m}{end} = tl.load(number_{m} + {step} * H + here, {where}, 0.0).to(tl.float32)")


def read_by_U(write: Lines, e: Equations, source: Source, values: str, end: str) -> None:
    """``read``: what U reads of a source; the values before the step have the prefix ``values``."""
    given = named(e, source, values, end)
    write(f"read = {given[0]}" if source.plain else f"read = reads_{source.number}({', '.join(given)})")
    write.when("MASK", "read = read * keep")
    write("read = read.to(out.dtype.element_ty)")


def named(e: Equations, source: Source, values: str, end: str) -> list[str]:
    """The values that a source is formed from."""
    cell = e.cell
    kinds = [(cell.gates, "a_", end), (cell.fed_back, values, ""), (cell.per_step, "i_", end), (cell.params, "p_", "")]
    return [next(f"{pre}{name}{post}" for group, pre, post in kinds if name in group) for name in source.names]


def step_after(write: Lines, e: Equations) -> set[str]:
    """The step n+1 of a launch of step n; returns the values that its early sources are formed from."""
    write("exists = in_b & (count_0 + 1 < T)", "s_after = s_0 - wide if REVERSE else s_0 + wide")
    write.when("LENGTHS", "exists = exists & ((t_0 - 1 if REVERSE else t_0 + 1) < length)")
    write.when("RESET", "anew = (tl.load(reset + s_after + rows, exists, 0) != 0)[:, None]")
    used = {name for source in e.sources if not (source.plain or source.late) for name in source.names}
    if used.intersection(e.cell.per_step):
        numbers(write, e, "s_after", "exists[:, None] & in_h[None, :]", "_after")
    return used
