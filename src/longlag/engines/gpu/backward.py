"""The backward kernel of a time loop: see `loops`. ``start`` and ``stop`` count steps from the end."""

from __future__ import annotations

from collections.abc import Iterable

from longlag.engines.gpu import loops
from longlag.engines.gpu.equations import Equations, Gate, Source
from longlag.engines.gpu.lines import Lines, names


def backward(kind: str, e: Equations, norm: bool) -> str:
    """The backward kernel."""
    cell, write, K = e.cell, Lines(), loops.UNROLL if kind == "local" else 1
    fed, needed = list(cell.fed_back), [v for v in cell.fed_back if v in e.values]
    loops.opened(write, e, "backward", names(kind, e, norm, "backward"))
    for k in range(len(e.gates) if norm and kind == "resident" else 0):
        loops.norm_of(write, k)
    for v in fed:
        write(f"dv_{v} = tl.load(work_{v} + here, inside, 0.0)")
        if v in needed:
            write(f"f_{v} = tl.load(first_{v} + here, inside, 0.0).to(tl.float32)")
    sums = [(f"sum_{p}", f"at_param_{p} + tl.program_id(0) * H + cols") for p in cell.params]
    for k in range(len(e.gates) if norm and kind == "resident" else 0):
        sums += [(f"{what}_{k}", _place_of(what, e, k)) for what in ("norm_weight", "norm_bias")]
    write(*(f"{name} = tl.load({at}, in_h, 0.0)" for name, at in sums))
    if kind == "resident":
        loops.matrix(write, e, "backward")
    write.block(f"for m in {loops.steps_in(K)}:")
    for k in range(K):
        loops.times(write, k, kind, f"T - 1 - m - {k}")
        write(f"before_{k} = s_{k} + wide if REVERSE else s_{k} - wide")
        for gate in e.gates:
            at = f"(s_{k} * {len(e.gates)} + {gate.place}) * H + tile_g"
            write(f"a_{gate.name}_{k} = tl.load(saved + {at}, active_{k}, 0.0).to(tl.float32)")
        for v in needed:
            where = f"active_{k} & (count_{k} > 0)[:, None]"
            write(f"was_{v}_{k} = tl.load({_past(v)} + before_{k} * H + here, {where}, 0.0).to(tl.float32)")
        loops.numbers(write, e, f"s_{k}", f"active_{k}", f"_{k}")
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
                loops.normalise(write, f"a_{gate.name}_{k}", gate.place, kind)
        _step_back(write, e, k)
        divided = kind == "stepwise" and e.late
        if divided:
            write.block("if EARLY:")
            _gates_back(write, e, [gate for source in e.late for gate in source.gates], k, norm, kind)
            write.depth -= 1
            write.block("else:")
        for source in reversed(e.sources):
            _gates_back(write, e, source.gates, k, norm, kind)
            if kind == "resident" or source.late:
                _product_back(write, source, kind)
                _source_back(write, e, source, f"_{k}", "db_")
        _gates_back(write, e, [gate for gate in e.gates if gate.in_U < 0], k, norm, kind)
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


def _place_of(what: str, e: Equations, k: int) -> str:
    """Where the sum of gate k for the norm lies: every program has its own."""
    return f"to_{what} + (tl.program_id(0) * {len(e.gates)} + {k}) * H + cols"


def _gates_back(write: Lines, e: Equations, gates: Iterable[Gate], k: int, norm: bool, kind: str) -> None:
    """Gradients of net inputs, through the norm, to the arrays of both products."""
    for gate in gates:
        i, da, unit = gate.place, f"da_{gate.name}", f"unit_{gate.place}"
        write(f"{da} = tl.where(active_{k}, {da}, 0.0)")
        if norm:
            for what, term in (("norm_weight", f"{da} * {unit}"), ("norm_bias", da)):
                if kind == "resident":
                    write(f"{what}_{i} += tl.sum({term}, 0)")
                else:  # in memory: a launch of one step has no registers for the sums of all gates
                    at = _place_of(what, e, i)
                    write.when("not EARLY", f"tl.store({at}, tl.load({at}, in_h, 0.0) + tl.sum({term}, 0), in_h)")
            if kind == "stepwise":
                loops.norm_of(write, i, "gamma")
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
            write(f"received += {loops.DOT.format(rounded, gate.in_U)}")
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
    given = [*loops.named(e, source, "b_", end), "received"]
    write(f"{', '.join(found)} = reads_back_{source.number}({', '.join(given)})")
    write(*(f"{name} += {part}" for name, part in zip(to, found)))


def _received_by_the_step_after(write: Lines, e: Equations) -> None:
    """What the sources of step n+1 received, to the values after step n; rec is zero before the first launch."""
    cell = e.cell
    used = loops.step_after(write, e)
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
