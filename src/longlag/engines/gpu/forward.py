"""The forward kernel of a time loop: see `loops`."""

from __future__ import annotations

from longlag.engines.gpu import loops
from longlag.engines.gpu.equations import Equations, Gate
from longlag.engines.gpu.lines import Lines, names


def forward(kind: str, e: Equations, norm: bool) -> str:
    """The forward kernel."""
    cell, write, K = e.cell, Lines(), loops.UNROLL if kind == "local" else 1
    fed = list(cell.fed_back)
    loops.opened(write, e, "forward", names(kind, e, norm, "forward"))
    for k in range(len(e.gates) if norm and kind == "resident" else 0):
        loops.norm_of(write, k)
    for v in fed:
        write(f"v_{v} = tl.load(work_{v} + here, inside, 0.0)")
    for k, in_U in enumerate(e.only_U):
        write(f"bias_{in_U} = tl.load(bias + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")
    if kind == "resident":
        loops.matrix(write, e, "forward")
    write.block(f"for n in {loops.steps_in(K)}:")
    for k in range(K):
        loops.times(write, k, kind, f"n + {k}")
        for gate in e.gates:
            if gate.in_W >= 0:
                at = f"(s_{k} * {len(cell.input_gates)} + {gate.in_W}) * H + tile_x"
                write(f"a_{gate.name}_{k} = tl.load(net + {at}, active_{k}, 0.0).to(tl.float32)")
        if kind == "stepwise":
            for gate in [gate for source in e.sources if not source.late for gate in source.gates]:
                write(f"r_{gate.name}_{k} = tl.load(rec + {gate.in_U} * H + tile_y, inside, 0.0).to(tl.float32)")
        loops.numbers(write, e, f"s_{k}", f"active_{k}", f"_{k}")
    for k in range(K):
        for v in fed:
            write(f"b_{v} = v_{v}")
            write.when("RESET", f"b_{v} = tl.where(fresh_{k}, 0.0, b_{v})")
            if not cell.dense:
                write.when("MASK", f"b_{v} = b_{v} * keep")
        for gate in [gate for gate in e.gates if gate.in_U < 0]:
            _finish(write, e, gate, k, "", norm, kind)
        for source in e.sources:
            if source.late and kind == "stepwise":
                continue
            if kind == "resident":
                loops.read_by_U(write, e, source, "b_", f"_{k}")
                write.when("SAVE", f"tl.store(source + ({source.number} * T * wide + s_{k}) * H + here, read, inside)")
            for gate in source.gates:
                product = loops.DOT.format("read", gate.in_U) if kind == "resident" else f"r_{gate.name}_{k}"
                _finish(write, e, gate, k, product, norm, kind)
        divided = kind == "stepwise" and e.late
        if divided:
            write.block("if EARLY:")
            for source in e.late:
                loops.read_by_U(write, e, source, "b_", f"_{k}")
                write(f"tl.store(source + ({source.number} * T * wide + s_{k}) * H + here, read, stored_{k})")
            write.depth -= 1
            write.block("else:")
            for gate in [gate for source in e.late for gate in source.gates]:
                write(f"r_{gate.name}_{k} = tl.load(rec + {gate.in_U} * H + tile_y, inside, 0.0).to(tl.float32)")
                _finish(write, e, gate, k, f"r_{gate.name}_{k}", norm, kind)
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


def _finish(write: Lines, e: Equations, gate: Gate, k: int, product: str, norm: bool, kind: str) -> None:
    """The net input of a gate, kept for the backward pass, then normalised."""
    a = f"a_{gate.name}_{k}"
    if product:
        write(f"{a} = {a if gate.in_W >= 0 else f'bias_{gate.in_U}'} + {product}")
    if e.cell.dense:
        write.when("SAVE", f"tl.store(saved + (s_{k} * {len(e.gates)} + {gate.place}) * H + tile_g, {a}, stored_{k})")
    if norm:
        loops.normalise(write, a, gate.place, kind)


def _sources_of_the_next_step(write: Lines, e: Equations) -> None:
    loops.step_after(write, e)
    for v in e.cell.fed_back:
        write(f"b_{v} = v_{v}")
        write.when("RESET", f"b_{v} = tl.where(anew, 0.0, b_{v})")
    for source in e.sources:
        if not source.late:
            loops.read_by_U(write, e, source, "b_", "_after")
            at = f"({source.number} * T * wide + s_after) * H + here"
            write(f"tl.store(source + {at}, read, inside & (count_0 + 1 < T)[:, None])")
