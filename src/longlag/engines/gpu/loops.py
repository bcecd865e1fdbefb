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

from collections.abc import Iterable

from longlag.engines.gpu.equations import Equations, Gate, Source
from longlag.engines.gpu.lines import Lines, names

UNROLL = 8  # steps of a local cell whose loads are in flight together
STAGES = 1  # chunks of steps whose loads are in flight together

SIZES = ("T", "B", "H", "start", "stop", "eps")
FLAGS = ("MASK", "LENGTHS", "RESET", "REVERSE", "SAVE", "EARLY", "BM", "BH", "UNITS", "PRECISION", "FACTOR")
DOT = "tl.dot({}.to(FACTOR), U_{}, input_precision=PRECISION)"


def _open(write: Lines, e: Equations, which: str, pointers: list[str]) -> None:
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


def _range(K: int) -> str:
    return f"tl.range(start, stop, {K}, num_stages={STAGES})" if K > 1 else "range(start, stop)"


def _params(write: Lines, e: Equations, norm: bool) -> None:
    for p in e.cell.params:
        write(f"p_{p} = tl.load(param_{p} + cols, in_h, 1.0).to(tl.float32)[None, :]")
    for k, _ in enumerate(e.gates if norm else ()):
        for name, what in (("gamma", "norm_weight"), ("beta", "norm_bias")):
            write(f"{name}_{k} = tl.load({what} + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")


def _times(write: Lines, k: int, kind: str, step: str) -> None:
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


def _normalise(write: Lines, a: str, k: int) -> None:
    """Layer normalisation of a row [LN-RNN 5 LN]: unit_k = (a − μ)/σ, then γ unit + β in place of a."""
    write(f"mean_{k} = tl.sum(tl.where(in_h[None, :], {a}, 0.0), 1)[:, None] / H")
    write(f"unit_{k} = tl.where(in_h[None, :], {a} - mean_{k}, 0.0)")
    write(f"scale_{k} = 1.0 / tl.sqrt(tl.sum(unit_{k} * unit_{k}, 1)[:, None] / H + eps)")
    write(f"unit_{k} = unit_{k} * scale_{k}")
    write(f"{a} = gamma_{k} * unit_{k} + beta_{k}")


def _recurrent(write: Lines, e: Equations, of: str) -> None:
    """U resident: one block per gate, kept for the whole loop."""
    at = {"forward": "cols[None, :] * H + cols[:, None]", "backward": "cols[:, None] * H + cols[None, :]"}[of]
    for gate in e.gates:
        if gate.in_U >= 0:
            write(f"U_{gate.in_U} = tl.load(U + {gate.in_U} * H * H + {at}, in_h[None, :] & in_h[:, None], 0.0)")
            write(f"U_{gate.in_U} = U_{gate.in_U}.to(FACTOR)")


def _numbers(write: Lines, e: Equations, step: str, where: str, end: str) -> None:
    for m in e.cell.per_step:
        write(f"i_{m}{end} = tl.load(number_{m} + {step} * H + here, {where}, 0.0).to(tl.float32)")


def _read(write: Lines, e: Equations, source: Source, values: str, end: str) -> None:
    """``read``: what U reads of a source; the values before the step have the prefix ``values``."""
    named = _named(e, source, values, end)
    write(f"read = {named[0]}" if source.plain else f"read = reads_{source.number}({', '.join(named)})")
    write.when("MASK", "read = read * keep")
    write("read = read.to(out.dtype.element_ty)")


def _named(e: Equations, source: Source, values: str, end: str) -> list[str]:
    """The values that a source is formed from."""
    cell = e.cell
    kinds = [(cell.gates, "a_", end), (cell.fed_back, values, ""), (cell.per_step, "i_", end), (cell.params, "p_", "")]
    return [next(f"{pre}{name}{post}" for group, pre, post in kinds if name in group) for name in source.names]


def forward(kind: str, e: Equations, norm: bool) -> str:
    """The forward kernel."""
    cell, write, K = e.cell, Lines(), UNROLL if kind == "local" else 1
    fed = list(cell.fed_back)
    _open(write, e, "forward", names(kind, e, norm, "forward"))
    _params(write, e, norm)
    for v in fed:
        write(f"v_{v} = tl.load(work_{v} + here, inside, 0.0)")
    for k, in_U in enumerate(e.only_U):
        write(f"bias_{in_U} = tl.load(bias + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")
    if kind == "resident":
        _recurrent(write, e, "forward")
    write.block(f"for n in {_range(K)}:")
    for k in range(K):
        _times(write, k, kind, f"n + {k}")
        for gate in e.gates:
            if gate.in_W >= 0:
                at = f"(s_{k} * {len(cell.input_gates)} + {gate.in_W}) * H + tile_x"
                write(f"a_{gate.name}_{k} = tl.load(net + {at}, active_{k}, 0.0).to(tl.float32)")
        if kind == "stepwise":
            for gate in [gate for source in e.sources if not source.late for gate in source.gates]:
                write(f"r_{gate.name}_{k} = tl.load(rec + {gate.in_U} * H + tile_y, inside, 0.0).to(tl.float32)")
        _numbers(write, e, f"s_{k}", f"active_{k}", f"_{k}")
    for k in range(K):
        for v in fed:
            write(f"b_{v} = v_{v}")
            write.when("RESET", f"b_{v} = tl.where(fresh_{k}, 0.0, b_{v})")
            if not cell.dense:
                write.when("MASK", f"b_{v} = b_{v} * keep")
        for gate in [gate for gate in e.gates if gate.in_U < 0]:
            _finish(write, e, gate, k, "", norm)
        for source in e.sources:
            if source.late and kind == "stepwise":
                continue
            if kind == "resident":
                _read(write, e, source, "b_", f"_{k}")
                write.when("SAVE", f"tl.store(source + ({source.number} * T * wide + s_{k}) * H + here, read, inside)")
            for gate in source.gates:
                product = DOT.format("read", gate.in_U) if kind == "resident" else f"r_{gate.name}_{k}"
                _finish(write, e, gate, k, product, norm)
        divided = kind == "stepwise" and e.late
        if divided:
            write.block("if EARLY:")
            for source in e.late:
                _read(write, e, source, "b_", f"_{k}")
                write(f"tl.store(source + ({source.number} * T * wide + s_{k}) * H + here, read, stored_{k})")
            write.depth -= 1
            write.block("else:")
            for gate in [gate for source in e.late for gate in source.gates]:
                write(f"r_{gate.name}_{k} = tl.load(rec + {gate.in_U} * H + tile_y, inside, 0.0).to(tl.float32)")
                _finish(write, e, gate, k, f"r_{gate.name}_{k}", norm)
        given = [*(f"a_{gate}_{k}" for gate in cell.gates), *["b_y"] * cell.reads_y, *(f"b_{s}" for s in cell.states)]
        given += [f"i_{m}_{k}" for m in cell.per_step] + [f"p_{p}" for p in cell.params]
        write(f"{', '.join(f'new_{v}' for v in cell.outputs)} = step({', '.join(given)})")
        for v in fed:
            write(f"v_{v} = tl.where(active_{k}, new_{v}, v_{v})")
        write(f"tl.store(out + s_{k} * H + here, tl.where(active_{k}, new_y, 0.0), stored_{k})")
        write.when("SAVE", *(f"tl.store(all_{s} + s_{k} * H + here, v_{s}, stored_{k})" for s in cell.states))
        if kind == "stepwise":
            _sources_of_the_next_step(write, e)
        write.depth -= bool(divided)
    write.depth -= 1
    done = [f"tl.store(work_{v} + here, v_{v}, inside)" for v in fed]
    write.when("not EARLY", *done) if kind == "stepwise" else write(*done)
    return "\n".join(write.text) + "\n"


def _finish(write: Lines, e: Equations, gate: Gate, k: int, product: str, norm: bool) -> None:
    """The net input of a gate, kept for the backward pass, then normalised."""
    a = f"a_{gate.name}_{k}"
    if product:
        write(f"{a} = {a if gate.in_W >= 0 else f'bias_{gate.in_U}'} + {product}")
    if e.cell.dense:
        write.when("SAVE", f"tl.store(saved + (s_{k} * {len(e.gates)} + {gate.place}) * H + tile_g, {a}, stored_{k})")
    if norm:
        _normalise(write, a, gate.place)


def _after(write: Lines, e: Equations) -> set[str]:
    """The step n+1 of a launch of step n; returns the values that its early sources are formed from."""
    write("exists = in_b & (count_0 + 1 < T)", "s_after = s_0 - wide if REVERSE else s_0 + wide")
    write.when("LENGTHS", "exists = exists & ((t_0 - 1 if REVERSE else t_0 + 1) < length)")
    write.when("RESET", "anew = (tl.load(reset + s_after + rows, exists, 0) != 0)[:, None]")
    used = {name for source in e.sources if not (source.plain or source.late) for name in source.names}
    if used.intersection(e.cell.per_step):
        _numbers(write, e, "s_after", "exists[:, None] & in_h[None, :]", "_after")
    return used


def _sources_of_the_next_step(write: Lines, e: Equations) -> None:
    _after(write, e)
    for v in e.cell.fed_back:
        write(f"b_{v} = v_{v}")
        write.when("RESET", f"b_{v} = tl.where(anew, 0.0, b_{v})")
    for source in e.sources:
        if not source.late:
            _read(write, e, source, "b_", "_after")
            at = f"({source.number} * T * wide + s_after) * H + here"
            write(f"tl.store(source + {at}, read, inside & (count_0 + 1 < T)[:, None])")


def backward(kind: str, e: Equations, norm: bool) -> str:
    """The backward kernel; ``start`` and ``stop`` count steps from the end."""
    cell, write, K = e.cell, Lines(), UNROLL if kind == "local" else 1
    fed, needed = list(cell.fed_back), [v for v in cell.fed_back if v in e.values]
    _open(write, e, "backward", names(kind, e, norm, "backward"))
    _params(write, e, norm)
    for v in fed:
        write(f"dv_{v} = tl.load(work_{v} + here, inside, 0.0)")
        if v in needed:
            write(f"f_{v} = tl.load(first_{v} + here, inside, 0.0).to(tl.float32)")
    sums = [(f"sum_{p}", f"at_param_{p} + tl.program_id(0) * H + cols") for p in cell.params]
    for k in range(len(e.gates) if norm else 0):
        for what in ("norm_weight", "norm_bias"):
            sums.append((f"{what}_{k}", f"to_{what} + (tl.program_id(0) * {len(e.gates)} + {k}) * H + cols"))
    write(*(f"{name} = tl.load({at}, in_h, 0.0)" for name, at in sums))
    if kind == "resident":
        _recurrent(write, e, "backward")
    write.block(f"for m in {_range(K)}:")
    for k in range(K):
        _times(write, k, kind, f"T - 1 - m - {k}")
        write(f"before_{k} = s_{k} + wide if REVERSE else s_{k} - wide")
        for gate in e.gates:
            at = f"(s_{k} * {len(e.gates)} + {gate.place}) * H + tile_g"
            write(f"a_{gate.name}_{k} = tl.load(saved + {at}, active_{k}, 0.0).to(tl.float32)")
        for v in needed:
            where = f"active_{k} & (count_{k} > 0)[:, None]"
            write(f"was_{v}_{k} = tl.load({_past(v)} + before_{k} * H + here, {where}, 0.0).to(tl.float32)")
        _numbers(write, e, f"s_{k}", f"active_{k}", f"_{k}")
        write(f"error_{k} = tl.load(errors + s_{k} * H + here, active_{k}, 0.0).to(tl.float32)")
    for k in range(K):
        if kind == "stepwise":
            _received_by_the_step_after(write, e)
        for v in needed:
            write(f"begins = count_{k} == 0")
            if v == "y":
                write.when("REVERSE and LENGTHS", f"begins = begins | (t_{k} == length - 1)")
            write(f"b_{v} = tl.where(begins[:, None], f_{v}, was_{v}_{k})")
            write.when("RESET", f"b_{v} = tl.where(fresh_{k}, 0.0, b_{v})")
            if not cell.dense:
                write.when("MASK", f"b_{v} = b_{v} * keep")
        if norm:
            for gate in e.gates:
                _normalise(write, f"a_{gate.name}_{k}", gate.place)
        _step_back(write, e, k)
        divided = kind == "stepwise" and e.late
        if divided:
            write.block("if EARLY:")
            _gates_back(write, e, [gate for source in e.late for gate in source.gates], k, norm)
            write.depth -= 1
            write.block("else:")
        for source in reversed(e.sources):
            _gates_back(write, e, source.gates, k, norm)
            if kind == "resident" or source.late:
                _product_back(write, source, kind)
                _source_back(write, e, source, f"_{k}", "db_")
        _gates_back(write, e, [gate for gate in e.gates if gate.in_U < 0], k, norm)
        for p in cell.params:
            write(f"sum_{p} += tl.sum(tl.where(active_{k}, dp_{p}, 0.0), 0)")
        for m in cell.per_step:
            at = f"at_number_{m} + s_{k} * H + here, tl.where(active_{k}, di_{m}, 0.0), stored_{k}"
            write(f"tl.store({at})")
        for v in fed:
            if not cell.dense:
                write.when("MASK", f"db_{v} = db_{v} * keep")
            write.when("RESET", f"db_{v} = tl.where(fresh_{k}, 0.0, db_{v})")
            write(f"dv_{v} = tl.where(active_{k}, db_{v}, dv_{v})")
        write.depth -= bool(divided)
    write.depth -= 1
    done = [f"tl.store(work_{v} + here, dv_{v}, inside)" for v in fed]
    done += [f"tl.store({at}, {name}, in_h)" for name, at in sums]
    write.when("not EARLY", *done) if kind == "stepwise" else write(*done)
    return "\n".join(write.text) + "\n"


def _past(v: str) -> str:
    return "out" if v == "y" else f"all_{v}"


def _step_back(write: Lines, e: Equations, k: int) -> None:
    """The adjoint of the cell's step: gradients of all that entered the step."""
    cell, fed = e.cell, e.cell.fed_back
    read = [*["y"] * cell.reads_y, *cell.states]
    given = [*(f"a_{gate}_{k}" for gate in cell.gates), *(f"b_{v}" for v in read)]
    given += [f"i_{m}_{k}" for m in cell.per_step] + [f"p_{p}" for p in cell.params]
    given += [f"error_{k} + dv_y" if "y" in fed else f"error_{k}", *(f"dv_{s}" for s in cell.states)]
    found = [*(f"da_{gate}" for gate in cell.gates), *(f"db_{v}" for v in read)]
    found += [f"di_{m}" for m in cell.per_step] + [f"dp_{p}" for p in cell.params]
    write(f"{', '.join(found)} = step_back({', '.join(given)})")
    if "y" in fed and not cell.reads_y:
        write("db_y = nothing")


def _gates_back(write: Lines, e: Equations, gates: Iterable[Gate], k: int, norm: bool) -> None:
    """Gradients of net inputs, through the norm, to the arrays of both products."""
    for gate in gates:
        i, da, unit = gate.place, f"da_{gate.name}", f"unit_{gate.place}"
        write(f"{da} = tl.where(active_{k}, {da}, 0.0)")
        if norm:
            write(f"norm_weight_{i} += tl.sum({da} * {unit}, 0)", f"norm_bias_{i} += tl.sum({da}, 0)")
            write(f"{da} = {da} * gamma_{i}")
            write(f"level = tl.sum({da}, 1)[:, None] / H")
            write(f"along = {unit} * (tl.sum({da} * {unit}, 1)[:, None] / H)")
            write(f"{da} = tl.where(active_{k}, scale_{i} * ({da} - level - along), 0.0)")
        if gate.in_W >= 0:
            at = f"(s_{k} * {len(e.cell.input_gates)} + {gate.in_W}) * H + tile_x"
            write(f"tl.store(to_net + {at}, {da}, stored_{k})")
        if gate.in_U >= 0 and not e.shared:
            at = f"(s_{k} * {len(e.cell.recurrent_gates)} + {gate.in_U}) * H + tile_y"
            write(f"tl.store(to_rec + {at}, {da}, stored_{k})")


def _product_back(write: Lines, source: Source, kind: str) -> None:
    """``received``: what a source received through U."""
    if kind == "resident":
        write("received = nothing")
        for gate in source.gates:
            rounded = f"da_{gate.name}.to(out.dtype.element_ty)"
            write(f"received += {DOT.format(rounded, gate.in_U)}")
    else:
        write(f"received = tl.load(rec + {source.number} * wide * H + here, inside, 0.0).to(tl.float32)")
    write.when("MASK", "received = received * keep")


def _source_back(write: Lines, e: Equations, source: Source, end: str, values: str) -> None:
    """``received`` to the values that the source is formed from; those before the step have the prefix ``values``."""
    cell = e.cell
    kinds = [(cell.gates, "da_"), (cell.fed_back, values), (cell.per_step, "di_"), (cell.params, "dp_")]
    to = [next(prefix + name for group, prefix in kinds if name in group) for name in source.names]
    if source.plain:
        write(f"{to[0]} += received")
        return
    found = [f"part_{j}" for j in range(len(to))]
    write(f"{', '.join(found)} = reads_back_{source.number}({', '.join([*_named(e, source, 'b_', end), 'received'])})")
    write(*(f"{name} += {part}" for name, part in zip(to, found)))


def _received_by_the_step_after(write: Lines, e: Equations) -> None:
    """What the sources of step n+1 received, to the values after step n; rec is zero before the first launch."""
    cell = e.cell
    used = _after(write, e)
    for v in [v for v in cell.fed_back if v in used]:
        write(f"b_{v} = tl.load({_past(v)} + s_0 * H + here, {'active_0' if v == 'y' else 'stored_0'}, 0.0)")
        write(f"b_{v} = tl.where({'active_0' if v == 'y' else 'stored_0'}, b_{v}.to(tl.float32), f_{v})")
        write.when("RESET", f"b_{v} = tl.where(anew, 0.0, b_{v})")
    numbers, params = ([name for name in group if name in used] for group in (cell.per_step, cell.params))
    write(*(f"{name} = nothing" for name in (*(f"di_{m}" for m in numbers), *(f"dp_{p}" for p in params))))
    write(*(f"back_{v} = nothing" for v in cell.fed_back))
    for source in [source for source in e.sources if not source.late]:
        _product_back(write, source, "stepwise")
        _source_back(write, e, source, "_after", "back_")
    for v in cell.fed_back:
        write.when("RESET", f"back_{v} = tl.where(anew, 0.0, back_{v})")
        write(f"dv_{v} += tl.where(exists[:, None], back_{v}, 0.0)")
    write(*(f"sum_{p} += tl.sum(tl.where(exists[:, None], dp_{p}, 0.0), 0)" for p in params))
    for m in numbers:
        at, where = f"at_number_{m} + s_after * H + here", "exists[:, None] & in_h[None, :]"
        write.when("not EARLY", f"tl.store({at}, tl.load({at}, {where}, 0.0) + di_{m}, {where})")
