"""Writes the CPU kernels of a cell: its equations, printed as a Numba module that a person can read.

The module has two functions, ``forward`` and ``backward``, which run the rows first:last of a batch over all time
steps. ``table`` holds sizes and addresses, in the order of `forward_names` and `backward_names`; the address of what
is not given (no lengths, no reset, …) is 0. What a call needs for itself stands in two blocks, ``kept`` until the
backward pass and ``memory``, and the table says where in them.

Arrays are flat. Shapes: x (T, B, I); a (T, B, Gx, H), the net inputs W x + b, with U y added where both have the same
gates; rec (T, B, Gy, H), U y where they have not; states and outputs (T, B, H), initial and final ones (B, H). PW and
PU are packed matrices. Net inputs are computed for ``chunk`` steps at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longlag.cells import Cell
from longlag.cells._code import Printer
from longlag.engines.cpu.codegen.templates import (
    BACK_THROUGH_U,
    BACK_THROUGH_W,
    FIRST_STEP,
    HEAD,
    NET,
    NORMALISE,
    RECURRENT,
    SPAN,
    SUM_OF_U,
    SUM_OF_W,
)

KNOWN = {"sigmoid", "tanh", "relu", "exp"}
CLEAR = ("for j in range(H):", "    zero[j] = number(0)")  # only where rows are run: sums may have more pieces
LAYOUT = ("hid", "blocks", "per_block", "gated")  # of units in blocks (see `lstm97`)
PACK, ROWS, SUM_W, SUM_U = 1, 2, 4, 8  # stages of a kernel; the last two are those of ``backward``
SIZES = ("T", "B", "I", "H", "chunk", "reverse", "stage", "multiply", "pack", "scratch_size", "kept", "memory")
WORDS = ("W", "U", "eps", "save", "outer_W", "tiles_W", "outer_U", "tiles_U", "dW", "db", "db_too", "dU")
IN_MEMORY = ("PW", "PU", "outer_scratch")
OPTIONAL = ("mask", "lengths", "reset", "b_x", "b_too", "dx", "dOut")


def scratch(cell: Any, norm: bool) -> int:
    """Rows of H numbers that each piece of the batch needs, beside (H + tile width) for each of its rows."""
    return 1 + (2 * len(cell.gates) + 1) * norm + len(cell.fed_back) + len(cell.input_gates)


def writer(cell: Any, dtype: str, norm: bool) -> Writer:
    """Writes the kernels of a cell, or of units in blocks."""
    return Writer(cell, dtype, norm) if isinstance(cell, Cell) else cell.writer(dtype)


def source(cell: Any, dtype: str, norm: bool) -> str:
    """The module's text."""
    for expression in (cell.output, *cell.expressions) if isinstance(cell, Cell) else ():
        for unknown in sorted({type(f).__name__ for f in expression.atoms(_function_class())} - KNOWN):
            raise ValueError(f"engine 'cpu' cannot print {unknown}(…) of cell {cell.name}; engine='reference' can")
    return writer(cell, dtype, norm).module()


class Writer:
    extra: tuple[str, ...] = ()  # further words of the table, handed to the units
    sizes: tuple[str, ...] = ()  # lines that compute from them

    def __init__(self, cell: Any, dtype: str, norm: bool) -> None:
        self.cell, self.dtype, self.norm = cell, dtype, norm
        self.only_y = [g for g in cell.gates if g not in cell.input_gates]
        self.same_gates = cell.input_gates == cell.recurrent_gates  # then U y is added into a
        self.own_rec = cell.dense and not self.same_gates
        self.y_back = "y" in cell.fed_back

    def module(self) -> str:
        head = HEAD.format(name=self.cell.name, dtype=self.dtype, norm=" with layer norm" if self.norm else "")
        parts = [head, NORMALISE if self.norm else "", self.units(), self.units_back(), self.forward(), self.backward()]
        return "\n".join(part for part in parts if part)

    # ------------------------------------------------------------------------------------ one row, all units
    def gate_terms(self, g: str) -> list[str]:
        """Names of the rows a gate's net input is the sum of."""
        if self.norm:
            return [f"n_{g}"]
        return self.raw_terms(g)

    def raw_terms(self, g: str) -> list[str]:
        terms = [f"a_{g}"] * (g in self.cell.input_gates)
        terms += [f"u_{g}"] * (self.own_rec and g in self.cell.recurrent_gates)
        return terms + [f"b_{g}"] * (g in self.only_y)

    def rows_in(self) -> list[str]:
        gates = [term for g in self.cell.gates for term in self.gate_terms(g)]
        return gates + [f"{name}_row" for name in self.cell.inputs[len(self.cell.gates) :]]

    def loops(self, body: list[str]) -> list[str]:
        """The body for whole vectors of units, then for the units that are left, one by one."""
        plain = [line.replace("LOAD(", "").replace(")@", "[unit]").replace("STORE ", "") for line in body]
        if any("**" in line for line in body):  # vectors have no general power
            return ["for unit in range(size):", *_indent(plain)]
        vector = []
        for line in body:
            if line.startswith("STORE "):
                target, _, value = line.removeprefix("STORE ").partition("[unit] = ")
                vector.append(f"store({target}, unit, {value})")
            else:
                vector.append(line.replace("LOAD(", "load(").replace(")@", ", unit)"))
        return [
            "for unit in range(0, size // lanes * lanes, lanes):",
            *_indent(vector),
            "for unit in range(size // lanes * lanes, size):",
            *_indent(plain),
        ]

    def loads(self) -> list[str]:
        gates = [f"{g} = {' + '.join(f'LOAD({term})@' for term in self.gate_terms(g))}" for g in self.cell.gates]
        return gates + [f"{name} = LOAD({name}_row)@" for name in self.cell.inputs[len(self.cell.gates) :]]

    def units(self) -> str:
        cell = self.cell
        lines = {**dict(zip(cell.new_states, cell.expressions[1:])), "y_new": cell.output}
        stores = [f"STORE {o}_new_row[unit] = {o}_new" for o in cell.outputs]
        arguments = ["size", *self.rows_in(), *(f"{o}_new_row" for o in cell.outputs)]
        return _function("units", arguments, self.loops([*self.loads(), *_print(lines), *stores]))

    def units_back(self) -> str:
        cell = self.cell
        known = {cell.output: _symbol("y_new")} if cell.output.args else {}
        lines = {name: value.xreplace(known) for name, value in cell.adjoint.items()}
        names = set().union(*(map(str, value.free_symbols) for value in lines.values()))
        new = [s for s in ("y_new", *cell.new_states) if s in names]
        body = [line for line in self.loads() if line.partition(" = ")[0] in names]
        body += [f"{s} = LOAD({s}_row)@" for s in new]
        body += ["d_y = LOAD(dOut_row)@ + LOAD(d_y_row)@" if self.y_back else "d_y = LOAD(dOut_row)@"]
        body += [f"d_{s} = LOAD(d_{s}_row)@" for s in cell.states]
        body += _print(lines)
        body += [f"STORE d_{name}_row[unit] = d_{name}_" for name in (*cell.gates, *cell.states)]
        if self.y_back:
            body += [f"STORE d_y_row[unit] = {'d_y_' if cell.reads_y else 'd_y * number(0)'}"]
        for p in cell.params:
            body += [f"sum_{p} = LOAD(d_{p}_row)@ + d_{p}_", f"STORE d_{p}_row[unit] = sum_{p}"]
        arguments = ["size", *self.rows_in(), *(f"{s}_row" for s in ("y_new", *cell.new_states)), "dOut_row"]
        arguments += [f"d_{o}_row" for o in cell.outputs if o != "y" or self.y_back]
        arguments += [f"d_{name}_row" for name in (*cell.gates, *cell.params)]
        return _function("units_back", arguments, self.loops(body))

    # ---------------------------------------------------------------------------------------------- over time
    def wide(self, state: str) -> str:
        """Numbers per row of a state."""
        return "H"

    def shared_names(self) -> list[str]:
        cell = self.cell
        names = [*SIZES, *self.extra, "PW", "scratch", "a", *(["PU", "source"] if cell.dense else [])]
        names += ["rec"] * self.own_rec + [f"{s}_all" for s in cell.states] + ["x", "W", *["U"] * cell.dense]
        names += ["b_too"] * cell.dense + [f"{s}_0" for s in cell.fed_back]
        names += [f"{p}_all" for p in cell.params]
        names += ["gamma", "beta", "eps"] if self.norm else []
        return [*names, "mask", "lengths", "reset", "out"]

    def forward_names(self) -> list[str]:
        """What stands in the table of ``forward``."""
        return [*self.shared_names(), "b_x", *(f"{s}_end" for s in self.cell.fed_back), "save"]

    def backward_names(self) -> list[str]:
        """What stands in the table of ``backward``."""
        fed_back, params = self.cell.fed_back, self.cell.params
        names = ["dOut", *(f"d_{s}_end" for s in fed_back), *(f"d_{s}_{w}" for s in fed_back for w in ("own", "0"))]
        names += ["dA", *["dRec"] * self.own_rec, "dx", *(f"d_{p}_sum" for p in params)]
        names += ["dGamma", "dBeta"] if self.norm else []
        return [*self.shared_names(), *names, "outer_scratch", *WORDS[4:]]

    def prologue(self, names: list[str]) -> list[str]:
        """Names for what stands in the table, and for the scratch memory of this piece."""
        kinds = {"lengths": "np.int64", "reset": "np.uint8"}
        in_kept = {"a", "rec", "source", *(f"{s}_all" for s in self.cell.states)}
        initial, errors = ({f"{d}{s}_0": s for s in self.cell.fed_back} for d in ("", "d_"))
        lines, starts = [], list(self.sizes)
        for k, name in enumerate(names):
            word = f"table[{k}]"
            if name in (*SIZES, *self.extra, *WORDS):
                lines.append(f"{name} = {word}")
            elif name in IN_MEMORY:
                lines.append(f"{name} = memory + {word}")
            elif name in ("scratch", "dA", "dRec") or name.endswith("_own"):
                lines.append(f"{name} = flat(memory + {word}, number)")
            elif name in in_kept:
                lines.append(f"{name} = flat(kept + {word}, number)")
            elif name in errors:
                d = f"d_{errors[name]}"
                lines.append(f"{d} = flat({word}, number) if {word} != 0 else {d}_own")
            else:
                lines.append(f"{name} = flat({word}, {kinds.get(name, 'number')})")
            if name in initial:
                starts += [f"{name}_apart = {self.wide(initial[name])} if {word} != 0 else 0"]
                starts += [f"{name} = {name} if {word} != 0 else zero  # every row of it"]
            if name in OPTIONAL or name.endswith("_end"):
                lines.append(f"{name}_given = {word} != 0")
            if name == "source":
                lines.append(f"{name}_given = {word} >= 0")
        lines += [f"M, Gx, Gy = last - first, {len(self.cell.input_gates)}, {len(self.cell.recurrent_gates)}"]
        lines += ["K, own = T * B, piece * scratch_size", "alone = 2 if B == 1 else 0  # no other row to agree with"]
        for name in ["zero", *(f"{s}_masked" for s in self.masked_rows())]:
            lines += [f"{name} = row(scratch, own, H)", "own += H"]
        if self.norm:
            lines += ["eps_ = number(real(eps))", "sum_row = row(scratch, own, H)", "own += H"]
            lines += [
                f"normal = row(scratch, own, H)  # of each gate: γ r + β, then r; {2 * len(self.cell.gates)} rows"
            ]
            lines += [f"own += {2 * len(self.cell.gates)} * H"]
        lines += ["bias = row(scratch, own, H)  # of every gate", "own += Gx * H"]
        lines += ["through = row(scratch, own, H)", "edge = address(scratch, own + M * H)"]
        return [*lines, *starts]

    def masked_rows(self) -> list[str]:
        """States whose fed-back value a mask multiplies: those of a local cell."""
        return [] if self.cell.dense else list(self.cell.fed_back)

    def before(self) -> list[str]:
        """What row b reads at step t from the step before."""
        cell = self.cell
        rows = {s: "out" if s == "y" else f"{s}_all" for s in cell.fed_back if s != "y" or cell.reads_y}
        lines = ["fresh = n == 0 or (reverse != 0 and lengths_given and t == lengths[b] - 1)"] if rows else []
        lines += ["blank = reset_given and reset[t * B + b] != 0"] if rows else []
        for s, array in rows.items():
            w = self.wide(s)
            lines.append(
                f"{s}_row = row(zero, 0, {w}) if blank else "
                f"(row({s}_0, b * {s}_0_apart, {w}) if fresh else row({array}, (back * B + b) * {w}, {w}))"
            )
        for s in self.masked_rows():
            lines += ["if mask_given:", f"    for j in range(H): {s}_masked[j] = {s}_row[j] * mask[b * H + j]"]
            lines += [f"    {s}_row = {s}_masked"]
        return lines

    def gates(self) -> list[str]:
        """The gates' rows of step t, row b."""
        cell = self.cell
        lines = ["at_a = (t_a * B + b) * Gx * H"]
        lines += [f"a_{g} = row(a, at_a + {k} * H, H)" for k, g in enumerate(cell.input_gates)]
        if self.own_rec:
            lines += [f"at_r = (t_r * B + b) * {len(cell.recurrent_gates)} * H"]
            lines += [f"u_{g} = row(rec, at_r + {k} * H, H)" for k, g in enumerate(cell.recurrent_gates)]
        for g in self.only_y:
            lines += [f"b_{g} = row(b_too, {cell.recurrent_gates.index(g)} * H, H) if b_too_given else zero"]
        for k, g in enumerate(cell.gates if self.norm else ()):
            lines += [f"for j in range(H): sum_row[j] = {' + '.join(f'{r}[j]' for r in self.raw_terms(g))}"]
            lines += [f"n_{g}, r_{g} = row(normal, {2 * k} * H, H), row(normal, {2 * k + 1} * H, H)"]
            lines += [f"gamma_{g}, beta_{g} = row(gamma, {k} * H, H), row(beta, {k} * H, H)"]
            lines += [f"scale_{g} = normalise(sum_row, gamma_{g}, beta_{g}, eps_, r_{g}, n_{g})"]
        return lines + [f"{p}_row = row({p}_all, 0, H)" for p in cell.params]

    def forward(self) -> str:
        cell, names = self.cell, self.forward_names()
        loop = ["t = T - 1 - n if reverse != 0 else n", "back = t + 1 if reverse != 0 else t - 1"]
        loop += NET.format(span=_text(SPAN)).splitlines()
        if cell.dense:
            own = {"rec": "rec", "t": "t_r", "G": "Gy", "add": 0}
            both = {"rec": "a", "t": "t_a", "G": "Gx", "add": 1}
            loop += RECURRENT.format(**(own if self.own_rec else both)).splitlines()
        body = ["out_row = row(out, (t * B + b) * H, H)", "if lengths_given and t >= lengths[b]:"]
        body += ["    for j in range(H): out_row[j] = number(0)", "    continue", *self.before(), *self.gates()]
        new = ["out_row", *(f"row({s}_all, (t * B + b) * {self.wide(s)}, {self.wide(s)})" for s in cell.states)]
        body += [f"units({', '.join(['H', *self.rows_in(), *new, *self.extra])})"]
        # lengths are checked at a layer's door, but not inside torch.compile: none gives no step, too many give T
        end = ["count = min(lengths[b], T) if lengths_given else T", "end = 0 if reverse != 0 else count - 1"]
        for s in cell.fed_back:
            w, array = self.wide(s), "out" if s == "y" else f"{s}_all"
            end += [f"last_row = row({array}, (end * B + b) * {w}, {w})"]
            end += [f"last_row = last_row if count > 0 else row({s}_0, b * {s}_0_apart, {w})"]
            end += [f"for j in range({w}): {s}_end[b * {w} + j] = last_row[j]"]
        rows = [*CLEAR, "for j in range(Gx * H): bias[j] = b_x[j] if b_x_given else number(0)"]
        for k, g in enumerate(cell.input_gates):
            if g in cell.recurrent_gates:
                rows += ["if b_too_given:", "    for j in range(H):"]
                rows += [f"        bias[{k} * H + j] += b_too[{cell.recurrent_gates.index(g)} * H + j]"]
        rows += ["low = 0", "for n in range(T):", *_indent(loop), "    for b in range(first, last):", *_indent(body, 2)]
        rows += ["for b in range(first, last):", *_indent(end)] if cell.fed_back else []
        lines = [*self.prologue(names), *_stage(PACK, self.packing(1, "")), *_stage(ROWS, rows)]
        return _function("forward", KERNEL_ARGUMENTS, lines, options="")

    def packing(self, transposed: int, condition: str) -> list[str]:
        """W and U in the order in which products read them."""
        lines = [f"{condition}call(pack, (PW, W, Gx * H, I, {transposed}))"]
        return lines + [f"call(pack, (PU, U, Gy * H, H, {transposed}))"] * self.cell.dense

    def backward(self) -> str:
        cell, names = self.cell, self.backward_names()
        both = {"dA": "Gx", **({"dRec": "Gy"} if self.own_rec else {})}
        rows = list(CLEAR)
        for s in cell.fed_back:
            w = self.wide(s)
            rows += [f"for j in range(first * {w}, last * {w}):"]
            rows += [f"    d_{s}[j] = d_{s}_end[j] if d_{s}_end_given else number(0)"]
        for name, G in {**{f"d_{p}_sum": 1 for p in cell.params}, **self.norm_sums()}.items():
            rows += [f"for j in range(first * {G} * H, last * {G} * H): {name}[j] = number(0)"]
        body = ["if lengths_given and t >= lengths[b]:"]
        for d, G in both.items():
            body += [f"    for j in range((t * B + b) * {G} * H, (t * B + b + 1) * {G} * H): {d}[j] = number(0)"]
        body += ["    continue", *self.before(), *self.gates()]
        body += [f"d_{g}_row = row(dA, at_a + {k} * H, H)" for k, g in enumerate(cell.input_gates)]
        recurrent = {g: f"row(dRec, at_r + {k} * H, H)" for k, g in enumerate(cell.recurrent_gates)}
        body += [f"d_{g}_row = {recurrent[g]}" for g in self.only_y]
        body += ["dOut_row = row(dOut, (t * B + b) * H, H) if dOut_given else zero"]
        given = [*self.rows_in(), "row(out, (t * B + b) * H, H)"]
        given += [f"row({s}_all, (t * B + b) * {self.wide(s)}, {self.wide(s)})" for s in cell.states] + ["dOut_row"]
        for o in cell.outputs:
            given += [f"row(d_{o}, b * {self.wide(o)}, {self.wide(o)})"] * (o != "y" or self.y_back)
        given += [f"d_{g}_row" for g in cell.gates] + [f"row(d_{p}_sum, b * H, H)" for p in cell.params]
        body += [f"units_back({', '.join(['H', *given, *self.extra])})"]
        for k, g in enumerate(cell.gates if self.norm else ()):
            sums = [f"row({d}, (b * {len(cell.gates)} + {k}) * H, H)" for d in ("dGamma", "dBeta")]
            body += [f"normalise_back(d_{g}_row, gamma_{g}, r_{g}, scale_{g}, {', '.join(sums)})"]
        for g in cell.recurrent_gates:
            if self.own_rec and g not in self.only_y:
                body += [f"into = {recurrent[g]}", f"for j in range(H): into[j] = d_{g}_row[j]"]
        for s in self.masked_rows():
            body += ["if mask_given:", f"    for j in range(H): d_{s}[b * H + j] *= mask[b * H + j]"]
        rows += ["for n in range(T - 1, -1, -1):", "    t = t_a = t_r = T - 1 - n if reverse != 0 else n"]
        rows += ["    back = t + 1 if reverse != 0 else t - 1", "    for b in range(first, last):", *_indent(body, 2)]
        if cell.dense:
            errors = {"d": "dRec", "G": "Gy"} if self.own_rec else {"d": "dA", "G": "Gx"}
            rows += _indent(BACK_THROUGH_U.format(**errors).splitlines())
        rows += _indent(BACK_THROUGH_W.format(span=_text(SPAN)).splitlines())
        if cell.fed_back:
            rows += ["    if reset_given:", "        for b in range(first, last):"]
            rows += ["            if reset[t * B + b] != 0 and (not lengths_given or t < lengths[b]):"]
            for s in cell.fed_back:
                w = self.wide(s)
                rows += _indent([f"for j in range(b * {w}, b * {w} + {w}): d_{s}[j] = number(0)"], 4)
        lines = [*self.prologue(names), *_stage(PACK, self.packing(0, "if dx_given: ")), *_stage(ROWS, rows)]
        lines += _stage(SUM_W, SUM_OF_W.format(db_too="0" if self.own_rec else "db_too").splitlines())
        if cell.dense:
            errors = {"d": "dRec", "db_too": "db_too"} if self.own_rec else {"d": "dA", "db_too": "0"}
            lines += _stage(SUM_U, [*SUM_OF_U.format(**errors).splitlines(), *(FIRST_STEP.splitlines() * self.own_rec)])
        return _function("backward", KERNEL_ARGUMENTS, lines, options="")

    def norm_sums(self) -> dict[str, int]:
        return dict.fromkeys(["dGamma", "dBeta"], len(self.cell.gates)) if self.norm else {}


KERNEL_ARGUMENTS = ["table", "first", "last", "piece"]
_print = Printer(number="number({})", powers={2: "square({})", 3: "cube({})"}).assignments


def _function_class() -> Any:
    import sympy

    return sympy.Function


def _symbol(name: str) -> Any:
    import sympy

    return sympy.Symbol(name, real=True)


def _indent(lines: Sequence[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def _stage(stage: int, lines: Sequence[str]) -> list[str]:
    return [f"if stage & {stage}:", *_indent(lines)]


def _text(lines: str) -> str:
    return "\n".join(_indent(lines.splitlines()))


def _function(
    name: str, arguments: list[str], lines: list[str], options: str = "@njit(**PLAIN, forceinline=True)"
) -> str:
    return "\n".join(["", *[options] * bool(options), f"def {name}({', '.join(arguments)}):", *_indent(lines), ""])
