"""A recording as one C99 file."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from longlag.export._c_elements import number
from longlag.export._c_loops import index, nested
from longlag.export._c_print import Printer
from longlag.export._c_program import Array, Program, View
from longlag.export._c_record import Recording

MATH = ("EXP", "LOG", "LOG1P", "EXPM1", "SQRT", "SIN", "COS", "TANH", "ATANH", "POW", "FABS", "ERF")
HELPERS = {
    "sigmoid": "static real sigmoid(real x) { return 1 / (1 + EXP(-x)); }",
    "softplus": "static real softplus(real x, real beta, real threshold)\n"
    "{\n    return x * beta > threshold ? x : LOG1P(EXP(x * beta)) / beta;\n}",
    "logaddexp": "static real logaddexp(real x, real y)\n{\n    return (x > y ? x : y) + LOG1P(EXP(-FABS(x - y)));\n}",
}
TYPES = {torch.bool: "unsigned char", torch.int64: "long"}
CODES = (
    "fine",
    "an input is NaN or infinite; nothing was changed",
    "the state is NaN or infinite: reset",
    "the loss is NaN or infinite; no weight was changed",
    "a gradient is NaN or infinite; no weight was changed",
)


class CFile:
    """Prints a recording. ``name`` begins the names of the file's type and functions."""

    def __init__(self, recording: Recording, name: str, title: str) -> None:
        self.r, self.name, self.title = recording, name, title
        self.program = Program(recording.sections, recording.inputs, recording.lasting, recording.wanted)
        self.printer = Printer(self.program, self._place, self._constant, recording.dtype)
        self._constants: dict[View, str] = {}
        self._used: dict[int, Array] = {}

    def text(self) -> str:
        """The file."""
        learns, r = bool(self.r.weights), self.r
        parts = {name: self.printer.lines(ops) for name, ops in self.program.sections.items()}
        parts |= {"keep": self._keep(), "out": self._copied("y", r.output)}
        x_fine, out = self._finite("x", r.inputs["x"].numel(), 1), self._call("keep")
        state = [line for s in r.state for line in self._finite(self._place_of(r.lasting[s]), r.lasting[s].numel(), 2)]
        first = [*x_fine, self._call("core", "x")]
        functions = [self._function("static void", "core", "const real *x", parts["core"])]
        functions.append(self._function("static void", "keep", "", parts["keep"]))
        if learns and (loss := r.loss) is not None and (norm := r.norm) is not None:
            functions.append(self._function("static void", "score", "const real *target", parts["score"]))
            functions.append(self._function("static void", "update", "", parts["update"]))
            target_fine = self._finite("target", r.inputs["target"].numel(), 1)
            checks = [f"if (!isfinite({self._scalar(v)})) return {k};" for v, k in ((loss, 3), (norm, 4))]
            body = [*x_fine, *target_fine, self._call("core", "x"), self._call("score", "target")]
            body += [
                *self._copied("y", r.output if r.scored is None else r.scored),
                out,
                *state,
                *checks,
                self._call("update"),
                "return 0;",
            ]
            functions.append(self._function("int", "learn", "const real *x, const real *target, real *y", body))
        body = [*first, *parts.get("predict", []), *parts["out"], out, *state, "return 0;"]
        functions.append(self._function("int", "step", "const real *x, real *y", body))
        functions.insert(0, self._function("void", "reset", "", self._reset()))
        if learns:
            functions.insert(1, self._function("void", "init", "", self._init()))
        body_text = "\n".join(functions)
        used = [text for name, text in HELPERS.items() if re.search(rf"\b{name}\(", body_text)]
        code = "\n".join([*used, "", *self._constant_lines(), *self._type(), body_text])
        return "\n".join([*self._head(), self._with_types(code)])

    def _with_types(self, code: str) -> str:
        """The code with C's names for numbers and functions; two files may be included in one program."""
        end = "f" if self.r.dtype == torch.float32 else ""
        code = re.sub(rf"\b({'|'.join(HELPERS)})\(", rf"{self.name}_\1(", code)
        code = re.sub(rf"\b({'|'.join(MATH)})\(", lambda found: f"{found[1].lower()}{end}(", code)
        return re.sub(r"\breal\b", "float" if end else "double", code)

    # ------------------------------------------------------------------------------------------------- pieces
    def _call(self, name: str, *arguments: str) -> str:
        return f"{self.name}_{name}({', '.join(('s', *arguments))});"

    def _function(self, kind: str, name: str, arguments: str, body: Sequence[str]) -> str:
        given = f"{self.name} *s" + (f", {arguments}" if arguments else "")
        text = "\n".join(body)
        names = ["s", *re.findall(r"\*(\w+)", arguments)]
        unused = [f"(void){v};" for v in names if not re.search(rf"\b{v}\b", text)]
        lines = [f"{kind} {self.name}_{name}({given})", "{", *(f"    {line}" for line in (*unused, *body)), "}", ""]
        return "\n".join(lines)

    def _head(self) -> list[str]:
        n, r = self.name, self.r
        lines = [self.title, "", "Written by longlag export. C99, no allocation, one stream per object.", ""]
        lines += [f"    {n} net; {n}_{'init' if r.weights else 'reset'}(&net); {n}_step(&net, x, y);", ""]
        sizes = f"x: {r.inputs['x'].numel()} numbers; y: {r.output.numel()}"
        if r.weights:
            sizes += f"; target: {r.inputs['target'].numel()}"
            lines.append(f"{n}_learn(&net, x, target, y) is a step and an update of the weights.")
            lines.append(f"{n}_init sets the weights as they were exported; {n}_reset starts a new sequence.")
        codes = CODES if r.weights else CODES[:3]
        lines += [sizes, "", "Returned:", *(f"{k}: {text}" for k, text in enumerate(codes))]
        comment = ["/*", *(f"   {line}".rstrip() for line in lines), "*/"]
        return [*comment, "#include <math.h>", ""]

    def _type(self) -> list[str]:
        arrays = sorted(self._used.values(), key=lambda a: (a.name is None, a.number))
        fields = [f"    {TYPES.get(a.dtype, 'real')} {_field(a)}[{a.size}];" for a in arrays]
        return ["typedef struct {", *(fields or ["    real nothing;"]), f"}} {self.name};", ""]

    def _constant_lines(self) -> list[str]:
        lines = []
        for view, name in self._constants.items():
            array = self.program.arrays[view.array]
            content = array.content if array.content is not None else self._lasting_content(array)
            values = content.as_strided(view.shape, view.strides, view.offset).reshape(-1).tolist()
            kind = TYPES.get(array.dtype, "real")
            texts = [str(int(v)) if kind != "real" else number(v, self.r.dtype).strip("()") for v in values]
            rows = [", ".join(texts[k : k + 8]) for k in range(0, len(texts), 8)]
            lines += [f"static const {kind} {name}[{len(texts)}] = {{", ",\n".join(f"    {row}" for row in rows), "};"]
        return [*lines, ""]

    def _lasting_content(self, array: Array) -> Tensor:
        return self.r.start[str(array.name)].detach()

    # ------------------------------------------------------------------------------------------------- memory
    def _place(self, array: Array) -> str:
        if array.name in self.r.inputs:
            return str(array.name)
        self._used[array.number] = array
        return f"s->{_field(array)}"

    def _place_of(self, tensor: Tensor) -> str:
        return self._place(self.program.array_of(tensor))

    def _constant(self, view: View) -> str:
        return self._constants.setdefault(view, f"{self.name}_c{len(self._constants)}")

    def _scalar(self, tensor: Tensor) -> str:
        return f"{self._place_of(tensor)}[{tensor.storage_offset()}]"

    def _copied(self, name: str, tensor: Tensor) -> list[str]:
        """Statements that copy a result to an argument."""
        tensor = tensor.detach().squeeze()
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
        array, view = self.program.array_of(tensor), self.program.view(tensor)
        at = "i" if tensor.numel() > 1 else "0"
        if array.constant:
            return nested(view.shape[-1:], [f"{name}[{at}] = {self._constant(view)}[{at}];"])
        return nested(view.shape, [f"{name}[{at}] = {self._place(array)}[{index(view, 'i')}];"])

    def _keep(self) -> list[str]:
        """Copy new values to what lasts; a value that would be overwritten before goes through a spare array."""
        found = [(old, new, self.program.array_of(old), self.program.array_of(new)) for old, new in self.r.after]
        pairs = [(old, new, b) for old, new, a, b in found if a is not b and self._reads(old)]
        targets = {self.program.array_of(old).number for old, _, _ in pairs}
        spares = {b.number: torch.empty_like(new) for _, new, b in pairs if b.number in targets}
        lines = [line for _, new, b in pairs if b.number in spares for line in self.printer.copy(spares[b.number], new)]
        for old, new, b in pairs:
            lines += self.printer.copy(old, spares.get(b.number, new))
        self._spares = spares  # their memory must not be used again
        return lines

    def _reads(self, tensor: Tensor) -> bool:
        """Whether some operation uses a lasting array, or the caller relies on it."""
        array = self.program.array_of(tensor)
        return array.number in self._used or str(array.name).startswith("state_")

    def _reset(self) -> list[str]:
        lines = []
        for name, value in self.r.rest.items():
            if value.numel() and self._reads(self.r.lasting[name]):
                place, flat = self._place_of(self.r.lasting[name]), value.reshape(-1)
                at = "i" if flat.numel() > 1 else "0"
                first = f"{place}[{at}] = {number(float(flat[0]), self.r.dtype)};"
                each = [f"{place}[{k}] = {number(float(v), self.r.dtype)};" for k, v in enumerate(flat)]
                lines += nested((flat.numel(),), [first]) if bool((flat == flat[0]).all()) else each
        return lines

    def _init(self) -> list[str]:
        lines = []
        for name in self.r.weights:
            tensor = self.r.lasting[name]
            if self._reads(tensor):
                n = tensor.numel()
                start = self._constant(View(self.program.array_of(tensor).number, 0, (n,), (1,)))
                at = "i" if n > 1 else "0"
                lines += nested((n,), [f"{self._place_of(tensor)}[{at}] = {start}[{at}];"])
        return [*lines, self._call("reset")]

    def _finite(self, place: str, n: int, code: int) -> list[str]:
        return nested((n,), [f"if (!isfinite({place}[{'i' if n > 1 else 0}])) return {code};"]) if n else []


def _field(array: Array) -> str:
    return f"v{array.number}" if array.name is None else re.sub(r"\W", "_", array.name)
