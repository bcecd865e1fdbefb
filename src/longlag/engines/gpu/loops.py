"""The time loops around a cell as text of Triton kernels: forward and backward.

A program owns BM sequences and BH units and keeps their state in registers. Three kinds of loop share this text:

``"local"``     a unit reads only itself: programs over sequences and units; every ``UNROLL`` steps are loaded together
``"resident"``  U y inside the kernel: a program has all units, and U stays in its registers or shared memory
``"stepwise"``  U y by a matrix product between launches of one step each; the state lies in memory

Arrays: net (T, B, Gx, H); saved (T, B, G, H), net inputs before the norm; rec (B, Gy, H) = U y; source (T, B, H), what
U reads; states (T, B, H); work, the state or its gradient at one step (B, H), float32.
"""

from __future__ import annotations

from longlag.engines.gpu.equations import Equations

UNROLL = 8  # steps of a local cell whose loads are in flight together
STAGES = 1  # chunks of steps whose loads are in flight together


class Lines:
    """Lines of code with a depth."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = 0

    def __call__(self, *lines: str) -> None:
        self.text += ["    " * self.depth + line for line in lines if line]

    def block(self, head: str) -> Lines:
        """Open a block; close it with ``depth -= 1``."""
        self(head)
        self.depth += 1
        return self


def names(kind: str, e: Equations, norm: bool, which: str) -> list[str]:
    """The pointers that a kernel takes, in order: ``which`` is ``"forward"`` or ``"backward"``."""
    cell, dense, resident = e.cell, e.cell.dense, kind == "resident"
    fed = list(cell.fed_back)
    found = ["lengths", "reset", "mask", *(f"param_{p}" for p in cell.params)]
    found += ["gamma", "beta"] * norm + ["U"] * resident + ["rec"] * (kind == "stepwise")
    if which == "forward":
        found += ["net", "bias"] + ["saved", "source"] * dense + [f"work_{v}" for v in fed]
        return [*found, "out", *(f"all_{s}" for s in cell.states)]
    found += ["saved"] + [f"first_{v}" for v in fed] + [f"work_{v}" for v in fed] + ["out", "d_out"]
    found += [f"all_{s}" for s in cell.states] + ["d_net"] + ["d_rec"] * (dense and not e.shared)
    return found + [f"d_{p}" for p in cell.params] + ["d_gamma", "d_beta"] * norm


SIZES = ("T", "B", "H", "start", "stop", "eps")
FLAGS = ("MASK", "LENGTHS", "RESET", "REVERSE", "SAVE", "BM", "BH", "PRECISION", "FACTOR")


def _open(write: Lines, e: Equations, which: str, pointers: list[str]) -> None:
    flags = [f"{flag}: tl.constexpr" for flag in FLAGS]
    write('@triton.jit(do_not_specialize=["T", "B", "start", "stop"])')
    write.block(f"def {which}({', '.join([*pointers, *SIZES, *flags])}):")
    write("rows = tl.program_id(0) * BM + tl.arange(0, BM)")
    write("cols = tl.program_id(1) * BH + tl.arange(0, BH)")
    write("in_b, in_h = rows < B, cols < H")
    write("inside = in_b[:, None] & in_h[None, :]")
    write("here = rows[:, None] * H + cols[None, :]")
    counts = {"x": len(e.cell.input_gates), "y": len(e.cell.recurrent_gates), "all": len(e.gates)}
    write(*(f"at_{name} = rows[:, None] * ({count} * H) + cols[None, :]" for name, count in counts.items()))
    write("nothing = tl.zeros([BM, BH], tl.float32)")
    write.block("if LENGTHS:")("length = tl.load(lengths + rows, in_b, 0)")
    write.depth -= 1
    write.block("if MASK:")("keep = tl.load(mask + here, inside, 0.0).to(tl.float32)")
    write.depth -= 1


def _range(K: int) -> str:
    return f"tl.range(start, stop, {K}, num_stages={STAGES})" if K > 1 else "range(start, stop)"


def _params(write: Lines, e: Equations, norm: bool) -> None:
    for p in e.cell.params:
        write(f"p_{p} = tl.load(param_{p} + cols, in_h, 1.0).to(tl.float32)[None, :]")
    for k, _ in enumerate(e.gates if norm else ()):
        write(f"gamma_{k} = tl.load(gamma + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")
        write(f"beta_{k} = tl.load(beta + {k} * H + cols, in_h, 0.0).to(tl.float32)[None, :]")


def _times(write: Lines, k: int, unrolled: bool, step: str) -> None:
    """t_k and what holds at that step: which sequences are active, which begin anew."""
    write(f"n_{k} = {step}")
    write(f"count_{k} = n_{k} + 0 * rows")  # comparisons of scalars are not masks in Triton's interpreter
    write(f"t_{k} = T - 1 - n_{k} if REVERSE else n_{k}")
    write(f"s_{k} = t_{k} * B.to(tl.int64)")  # offsets of a step are scalars, those of a program's tile do not change
    write(f"valid_{k} = {f'(count_{k} < T) & (count_{k} >= 0) & ' if unrolled else ''}in_b")
    write.block("if LENGTHS:")(f"valid_{k} = valid_{k} & (t_{k} < length)")
    write.depth -= 1
    write(f"active_{k} = valid_{k}[:, None] & in_h[None, :]")
    write(f"stored_{k} = inside{f' & ((count_{k} < T) & (count_{k} >= 0))[:, None]' if unrolled else ''}")
    write.block("if RESET:")(f"fresh_{k} = (tl.load(reset + s_{k} + rows, valid_{k}, 0) != 0)[:, None]")
    write.depth -= 1


def _normalise(write: Lines, a: str, k: int) -> None:
    """Layer normalisation of a row [LN-RNN 5 LN]: unit_k = (a − μ)/σ, then γ unit + β in place of a."""
    write(f"mean_{k} = tl.sum(tl.where(in_h[None, :], {a}, 0.0), 1)[:, None] / H")
    write(f"unit_{k} = tl.where(in_h[None, :], {a} - mean_{k}, 0.0)")
    write(f"scale_{k} = 1.0 / tl.sqrt(tl.sum(unit_{k} * unit_{k}, 1)[:, None] / H + eps)")
    write(f"unit_{k} = unit_{k} * scale_{k}")
    write(f"{a} = gamma_{k} * unit_{k} + beta_{k}")


def _recurrent(write: Lines, e: Equations, of: str) -> None:
    """U resident: one block per gate, kept for the whole loop."""
    write("all_units = tl.arange(0, BH)")
    for _, _, in_U in e.gates:
        if in_U >= 0:
            at = {
                "forward": "cols[None, :] * H + all_units[:, None]",
                "backward": "all_units[:, None] * H + cols[None, :]",
            }
            write(
                f"U_{in_U} = tl.load(U + {in_U} * H * H + {at[of]}, in_h[None, :] & (all_units < H)[:, None], 0.0)",
                f"U_{in_U} = U_{in_U}.to(FACTOR)",
            )


def forward(kind: str, e: Equations, norm: bool) -> str:
    """The forward kernel."""
    cell, write, K = e.cell, Lines(), UNROLL if kind == "local" else 1
    unrolled, Gx, G = K > 1, len(cell.input_gates), len(e.gates)
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
        _times(write, k, unrolled, f"n + {k}")
        for gate, in_W, in_U in e.gates:
            if in_W >= 0:
                at = f"(s_{k} * {Gx} + {in_W}) * H + at_x"
                write(f"a_{gate}_{k} = tl.load(net + {at}, active_{k}, 0.0).to(tl.float32)")
            if kind == "stepwise" and in_U >= 0:
                at = f"{in_U} * H + at_y"
                write(f"r_{gate}_{k} = tl.load(rec + {at}, inside, 0.0).to(tl.float32)")
    for k in range(K):
        for v in fed:
            write(f"b_{v} = v_{v}")
            write.block("if RESET:")(f"b_{v} = tl.where(fresh_{k}, 0.0, b_{v})")
            write.depth -= 1
            if not cell.dense:
                write.block("if MASK:")(f"b_{v} = b_{v} * keep")
                write.depth -= 1
        if kind == "resident":
            write("read = b_y")
            write.block("if MASK:")("read = read * keep")
            write.depth -= 1
            write("read = read.to(out.dtype.element_ty)")
            write.block("if SAVE:")(f"tl.store(source + s_{k} * H + here, read, inside)")
            write.depth -= 1
        for i, (gate, in_W, in_U) in enumerate(e.gates):
            a = f"a_{gate}_{k}"
            if in_U >= 0:
                product = (
                    f"tl.dot(read.to(FACTOR), U_{in_U}, input_precision=PRECISION)"
                    if kind == "resident"
                    else f"r_{gate}_{k}"
                )
                write(f"{a} = {f'{a} + ' if in_W >= 0 else f'bias_{in_U} + '}{product}")
            if cell.dense:
                at = f"(s_{k} * {G} + {i}) * H + at_all"
                write.block("if SAVE:")(f"tl.store(saved + {at}, {a}, inside)")
                write.depth -= 1
            if norm:
                _normalise(write, a, i)
        given = [*(f"a_{gate}_{k}" for gate, _, _ in e.gates)]
        given += [f"b_{v}" for v in fed if v != "y" or cell.reads_y] + [f"p_{p}" for p in cell.params]
        write(f"{', '.join(f'new_{v}' for v in cell.outputs)} = step({', '.join(given)})")
        for v in fed:
            write(f"v_{v} = tl.where(active_{k}, new_{v}, v_{v})")
        write(f"tl.store(out + s_{k} * H + here, tl.where(active_{k}, new_y, 0.0), stored_{k})")
        for s in cell.states:
            write.block("if SAVE:")(f"tl.store(all_{s} + s_{k} * H + here, v_{s}, stored_{k})")
            write.depth -= 1
        if kind == "stepwise":
            write("then = t_0 - 1 if REVERSE else t_0 + 1")
            write("read = v_y")
            write.block("if RESET:")("anew = tl.load(reset + then * B + rows, in_b & (count_0 + 1 < T), 0) != 0")
            write("read = tl.where(anew[:, None], 0.0, read)")
            write.depth -= 1
            write.block("if MASK:")("read = read * keep")
            write.depth -= 1
            write("then_at = (s_0 - B if REVERSE else s_0 + B) * H")
            write("tl.store(source + then_at + here, read, inside & (count_0 + 1 < T)[:, None])")
    write.depth -= 1
    for v in fed:
        write(f"tl.store(work_{v} + here, v_{v}, inside)")
    return "\n".join(write.text) + "\n"


def backward(kind: str, e: Equations, norm: bool) -> str:
    """The backward kernel; ``start`` and ``stop`` count steps from the end."""
    cell, write, K = e.cell, Lines(), UNROLL if kind == "local" else 1
    unrolled, Gx, Gy, G = K > 1, len(cell.input_gates), len(cell.recurrent_gates), len(e.gates)
    fed, read = list(cell.fed_back), [v for v in cell.fed_back if v != "y" or cell.reads_y]
    _open(write, e, "backward", names(kind, e, norm, "backward"))
    _params(write, e, norm)
    for v in fed:
        write(f"d_{v} = tl.load(work_{v} + here, inside, 0.0)")
        if v in read:
            write(f"f_{v} = tl.load(first_{v} + here, inside, 0.0).to(tl.float32)")
    for p in cell.params:
        write(f"sum_{p} = tl.load(d_{p} + tl.program_id(0) * H + cols, in_h, 0.0)")
    for k in range(G if norm else 0):
        for what in ("gamma", "beta"):
            at = f"d_{what} + (tl.program_id(0) * {G} + {k}) * H + cols"
            write(f"sum_{what}_{k} = tl.load({at}, in_h, 0.0)")
    if kind == "resident":
        _recurrent(write, e, "backward")
    write.block(f"for m in {_range(K)}:")
    for k in range(K):
        _times(write, k, unrolled, f"T - 1 - m - {k}")
        write(f"before_{k} = s_{k} + B if REVERSE else s_{k} - B")
        for i, (gate, _, _) in enumerate(e.gates):
            at = f"(s_{k} * {G} + {i}) * H + at_all"
            write(f"a_{gate}_{k} = tl.load(saved + {at}, active_{k}, 0.0).to(tl.float32)")
        for v in read:
            past = "out" if v == "y" else f"all_{v}"
            where = f"active_{k} & (count_{k} > 0)[:, None]"
            write(f"b_{v}_{k} = tl.load({past} + before_{k} * H + here, {where}, 0.0).to(tl.float32)")
        write(f"e_{k} = tl.load(d_out + s_{k} * H + here, active_{k}, 0.0).to(tl.float32)")
    for k in range(K):
        if kind == "stepwise":
            _product_of_the_step_after(write)
        for v in read:
            write(f"begins = count_{k} == 0")
            if v == "y":
                write.block("if REVERSE and LENGTHS:")(f"begins = begins | (t_{k} == length - 1)")
                write.depth -= 1
            write(f"b_{v}_{k} = tl.where(begins[:, None], f_{v}, b_{v}_{k})")
            write.block("if RESET:")(f"b_{v}_{k} = tl.where(fresh_{k}, 0.0, b_{v}_{k})")
            write.depth -= 1
            if not cell.dense:
                write.block("if MASK:")(f"b_{v}_{k} = b_{v}_{k} * keep")
                write.depth -= 1
        for i, (gate, _, _) in enumerate(e.gates):
            if norm:
                _normalise(write, f"a_{gate}_{k}", i)
        given = [*(f"a_{gate}_{k}" for gate, _, _ in e.gates), *(f"b_{v}_{k}" for v in read)]
        given += [f"p_{p}" for p in cell.params]
        given += [f"e_{k} + d_y" if "y" in fed else f"e_{k}", *(f"d_{s}" for s in cell.states)]
        found = [f"da_{gate}" for gate, _, _ in e.gates] + [f"db_{v}" for v in read] + [f"dp_{p}" for p in cell.params]
        write(f"{', '.join(found)} = step_back({', '.join(given)})")
        for p in cell.params:
            write(f"sum_{p} += tl.sum(tl.where(active_{k}, dp_{p}, 0.0), 0)")
        for i, (gate, in_W, in_U) in enumerate(e.gates):
            write(f"da_{gate} = tl.where(active_{k}, da_{gate}, 0.0)")
            if norm:
                write(f"sum_gamma_{i} += tl.sum(da_{gate} * unit_{i}, 0)", f"sum_beta_{i} += tl.sum(da_{gate}, 0)")
                write(f"da_{gate} = da_{gate} * gamma_{i}")
                write(f"level = tl.sum(da_{gate}, 1)[:, None] / H")
                write(f"along = unit_{i} * (tl.sum(da_{gate} * unit_{i}, 1)[:, None] / H)")
                write(f"da_{gate} = tl.where(active_{k}, scale_{i} * (da_{gate} - level - along), 0.0)")
            if in_W >= 0:
                at = f"(s_{k} * {Gx} + {in_W}) * H + at_x"
                write(f"tl.store(d_net + {at}, da_{gate}, stored_{k})")
            if in_U >= 0 and not e.shared:
                at = f"(s_{k} * {Gy} + {in_U}) * H + at_y"
                write(f"tl.store(d_rec + {at}, da_{gate}, stored_{k})")
        if "y" in fed and "y" not in read:
            write("db_y = nothing")
        if kind == "resident":
            write("d_read = nothing")
            for gate, _, in_U in e.gates:
                if in_U >= 0:
                    product = (
                        f"tl.dot(da_{gate}.to(out.dtype.element_ty).to(FACTOR), U_{in_U}, input_precision=PRECISION)"
                    )
                    write(f"d_read += {product}")
            write.block("if MASK:")("d_read = d_read * keep")
            write.depth -= 1
            write("db_y = db_y + d_read")
        for v in fed:
            if not cell.dense:
                write.block("if MASK:")(f"db_{v} = db_{v} * keep")
                write.depth -= 1
            write.block("if RESET:")(f"db_{v} = tl.where(fresh_{k}, 0.0, db_{v})")
            write.depth -= 1
            write(f"d_{v} = tl.where(active_{k}, db_{v}, d_{v})")
    write.depth -= 1
    for v in fed:
        write(f"tl.store(work_{v} + here, d_{v}, inside)")
    for p in cell.params:
        write(f"tl.store(d_{p} + tl.program_id(0) * H + cols, sum_{p}, in_h)")
    for k in range(G if norm else 0):
        for what in ("gamma", "beta"):
            write(f"tl.store(d_{what} + (tl.program_id(0) * {G} + {k}) * H + cols, sum_{what}_{k}, in_h)")
    return "\n".join(write.text) + "\n"


def _product_of_the_step_after(write: Lines) -> None:
    """What y received through U at the step after this one; rec holds it, zero before the first call."""
    write("passed = tl.load(rec + here, inside, 0.0).to(tl.float32)")
    write.block("if MASK:")("passed = passed * keep")
    write.depth -= 1
    write.block("if RESET:")
    write("after = t_0 - 1 if REVERSE else t_0 + 1")
    write("anew = tl.load(reset + after * B + rows, in_b & (count_0 + 1 < T), 0) != 0")
    write("passed = tl.where(anew[:, None], 0.0, passed)")
    write.depth -= 1
    write("d_y += passed")
