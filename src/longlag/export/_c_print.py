"""Operations of torch as C statements on arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longlag.engines.recording import Operation
from longlag.export._c_elements import Elements, number
from longlag.export._c_loops import VARIABLES, Loops, broadcast, nested
from longlag.export._c_program import View
from longlag.export._c_tables import POINTWISE, SMALL_POWERS, known, plain_name
from longlag.export._check import ExportError

REALS = (torch.float32, torch.float64)


class Printer(Elements):
    """Prints a program's operations."""

    def lines(self, operations: Sequence[Operation]) -> list[str]:
        """The statements of a section."""
        loops = Loops()
        for op in operations:
            self._print(op, loops)
        loops.close()
        return loops.lines

    # --------------------------------------------------------------------------------------------- operations
    def _print(self, op: Operation, loops: Loops) -> None:
        name, given = plain_name(op.name), dict(op.arguments)
        if not known(op.name):
            raise ExportError(
                f"export: C has no code for torch's operation {op.name}; a layer must use operations on numbers, "
                "matrix products, sums and softmax (see longlag/export/_c_tables.py)"
            )
        written = [given[key] for key in op.written]
        target = next(t for t in (written or op.results) if isinstance(t, Tensor))
        if name in POINTWISE:
            expression = POINTWISE[name]
            if name == "pow.Tensor_Scalar" and given["exponent"] in SMALL_POWERS:
                expression = SMALL_POWERS[given["exponent"]].format("{self}")
            if name in ("div.Tensor", "pow.Tensor_Scalar") and not target.is_floating_point():
                raise ExportError(f"export: C has no code for {op.name} on integers")
            self._pointwise(loops, expression, target, given)
            return
        method = getattr(self, "_" + name.partition(".")[0].strip("_"))
        loops.add(*method(target, given))

    # ------------------------------------------------------------------------------------------------ products
    def _addmm(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        a, b, c = given["mat1"], given["mat2"], given["self"]
        beta, alpha = number(given["beta"], self.real), number(given["alpha"], self.real)
        return self._product(target, a, b, None if target is c else c, beta, alpha, keep=target is c)

    def _mm(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return self._product(target, given["self"], given["mat2"])

    def _mv(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return self._product(target.unsqueeze(-1), given["self"], given["vec"].unsqueeze(-1))

    def _dot(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return self._product(target.view(1, 1), given["self"].unsqueeze(0), given["tensor"].unsqueeze(-1))

    def _bmm(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return [
            line
            for b in range(len(target))
            for line in self._mm(target[b], {k: v[b] for k, v in given.items() if isinstance(v, Tensor)})
        ]

    def _baddbmm(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        lines = []
        for b in range(len(target)):
            at = {k: v[b] if isinstance(v, Tensor) else v for k, v in given.items()}
            keep = given["self"] is target
            beta, alpha = number(given["beta"], self.real), number(given["alpha"], self.real)
            lines += self._product(
                target[b], at["batch1"], at["batch2"], None if keep else at["self"], beta, alpha, keep
            )
        return lines

    def _product(
        self, target: Tensor, a: Tensor, b: Tensor, start: Tensor | None = None, beta: str = "1", alpha: str = "1",
        keep: bool = False,
    ) -> list[str]:  # fmt: skip
        """target = β start + α a b; ``keep``: start is target itself."""
        (M, K), N = a.shape, b.shape[1]
        to = self.program.view(target)
        at, left, right = (self._element(t, v, names) for t, v, names in (
            (target, to, "ij"), (a, self._read(a), "ik"), (b, self._read(b), "kj"),
        ))  # fmt: skip
        one = number(1.0, self.real)
        scale = "" if alpha in ("1", one) else f"{alpha} * "
        first = at if keep else "0"
        if start is not None:
            first = self._element(start, broadcast(self._read(start), (M, N)), "ij")
        if first != "0" and beta not in ("1", one):
            first = f"{beta} * {first}"
        if self._read(b).strides[1] == 1 or N == 1 or K == 1:  # along the rows of b
            lines = [] if keep and first == at else nested((M, N), [f"{at} = {first};"], "ij")
            body = [f"const real v = {scale}{left};", f"for (int j = 0; j < {N}; ++j) {at} += v * {right};"]
            return [*lines, *nested((M, K), body, "ik")]
        body = [
            f"real sum = {first};",
            f"for (int k = 0; k < {K}; ++k) sum += {scale}{left} * {right};",
            f"{at} = sum;",
        ]
        return nested((M, N), body, "ij")

    # ------------------------------------------------------------------------------------------ pieces, sums
    def _cat(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        lines, start, dim = [], 0, given["dim"]
        for piece in given["tensors"]:
            if piece.numel() == 0 and piece.dim() != target.dim():
                continue
            n = piece.shape[dim]
            lines += self.copy(target.narrow(dim, start, n), piece) if piece.numel() else []
            start += n
        return lines

    def _stack(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        pieces = zip(target.unbind(given["dim"]), given["tensors"])
        return [line for to, piece in pieces for line in self.copy(to, piece)]

    def _constant_pad_nd(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        inner, pads = target, given["pad"]
        for k in range(len(pads) // 2):
            dim = target.dim() - 1 - k
            inner = inner.narrow(dim, pads[2 * k], given["self"].shape[dim])
        return [*self._filled(target, given["value"]), *self.copy(inner, given["self"])]

    def _slice_backward(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        dim, start, end = given["dim"], given["start"], min(given["end"], target.shape[given["dim"]])
        inner = target.narrow(dim, start, end - start)
        return [
            *self._filled(target, 0),
            *self.copy(inner[(slice(None),) * dim + (slice(None, None, given["step"]),)], given["grad_output"]),
        ]

    def _eye(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return [*self._filled(target, 0), *self._filled(target.diagonal(), 1)]

    def _repeat_interleave(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        dim, n = given["dim"], given["repeats"]
        return self.copy(target.unflatten(dim, (-1, n)), given["self"].unsqueeze(dim + 1 if dim >= 0 else dim))

    def _sum(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        source, dims = given["self"], given.get("dim") or list(range(given["self"].dim()))
        return self._reduced(target, source, dims, "0", "sum += {0};", "sum")

    def _mean(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        source, dims = given["self"], given.get("dim") or list(range(given["self"].dim()))
        n = math.prod(source.shape[d] for d in dims)
        return self._reduced(target, source, dims, "0", "sum += {0};", f"sum / {n}")

    def _amax(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        source, dims = given["self"], given.get("dim") or list(range(given["self"].dim()))
        return self._reduced(target, source, dims, "-INFINITY", "if ({0} > sum) sum = {0};", "sum")

    def _var(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        source = given["self"]
        if list(given["dim"]) not in ([-1], [source.dim() - 1]):
            raise ExportError(
                f"export: C has no code for a variance over dimensions {given['dim']}, only over the last"
            )
        n, lost = source.shape[-1], 1 if given["correction"] is None else given["correction"]
        view, names = self._read(source), VARIABLES[: source.dim() - 1] + "p"
        x, over = self._element(source, view, names), f"for (int p = 0; p < {n}; ++p)"
        out = target.squeeze(-1) if given["keepdim"] else target
        to = self._element(out, self.program.view(out))
        body = ["real mean = 0, sum = 0;", f"{over} mean += {x} / {n};", f"{over} sum += ({x} - mean) * ({x} - mean);"]
        return _block(view.shape[:-1], [*body, f"{to} = sum / {n - lost};"])

    def _index(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        at = [(d, i) for d, i in enumerate(given["indices"]) if i is not None]
        if len(at) != 1 or at[0][1].dim() != 1:
            raise ExportError(
                "export: C has no code for indexing by several arrays, or by one of more than one dimension"
            )
        dim, chosen = at[0]
        names = VARIABLES[: target.dim()]
        where = [*names[:dim], self._element(chosen, self._read(chosen), names[dim]), *names[dim + 1 :]]
        source = self._element(given["self"], self._read(given["self"]), where)
        to = self._element(target, self.program.view(target), names)
        return nested(target.shape, [f"{to} = {source};"])

    def _reduced(
        self, target: Tensor, source: Tensor, dims: Sequence[int], start: str, each: str, end: str
    ) -> list[str]:
        dims = sorted(d % source.dim() for d in dims)
        rest = [d for d in range(source.dim()) if d not in dims]
        view = self._read(source)
        shape = [view.shape[d] for d in rest]
        if all(view.shape[d] == 1 for d in dims):
            return self.copy(target.reshape(shape), source.squeeze(dims))
        inner = [view.shape[d] for d in dims]
        names = VARIABLES[: len(rest)] + "pqrs"[: len(dims)]
        ordered = View(view.array, view.offset, (*shape, *inner), tuple(view.strides[d] for d in (*rest, *dims)))
        to = self.program.view(target.view(shape) if target.dim() != len(shape) else target)
        body = [f"real sum = {start};"]
        body += nested(inner, [each.format(self._element(source, ordered, names))], "pqrs")
        return _block(shape, [*body, f"{self._element(target, to)} = {end};"])

    def _softmax(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return self._by_rows(target, given["self"], given["dim"], "EXP({x} - most) / sum")

    def _log_softmax(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        return self._by_rows(target, given["self"], given["dim"], "{x} - most - LOG(sum)")

    def _by_rows(self, target: Tensor, source: Tensor, dim: int, value: str) -> list[str]:
        n, view = source.shape[dim], self._read(source.movedim(dim, -1))
        names = VARIABLES[: source.dim() - 1] + "p"
        x = self._element(source.movedim(dim, -1), view, names)
        to = self._element(target.movedim(dim, -1), self.program.view(target.movedim(dim, -1)), names)
        over = f"for (int p = 0; p < {n}; ++p)"
        body = ["real most = -INFINITY, sum = 0;", f"{over} if ({x} > most) most = {x};"]
        body += [f"{over} sum += EXP({x} - most);", f"{over} {to} = {value.format(x=x)};"]
        return _block(view.shape[:-1], body)

    def _native_layer_norm(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        x, n = given["input"], math.prod(given["normalized_shape"])
        rows = x.reshape(-1, n)
        view, to = self._read(rows), self.program.view(target.view(-1, n))
        element, out = self._element(rows, view, "ip"), self._element(target, to, "ip")
        scale, shift = given["weight"].view(-1), given["bias"].view(-1)
        over = f"for (int p = 0; p < {n}; ++p)"
        gamma, beta = (self._element(t, self._read(t), "p") for t in (scale, shift))
        body = ["real mean = 0, variance = 0;", f"{over} mean += {element} / {n};"]
        body += [f"{over} variance += ({element} - mean) * ({element} - mean) / {n};"]
        body += [f"const real r = 1 / SQRT(variance + {number(given['eps'], self.real)});"]
        return _block((len(rows),), [*body, f"{over} {out} = ({element} - mean) * r * {gamma} + {beta};"])

    def _argmax(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        source = given["self"].movedim(given["dim"], -1)
        view, to = self._read(source), self.program.view(target)
        names = VARIABLES[: source.dim() - 1]
        x, best = self._element(source, view, names + "p"), self._element(source, view, (*names, "most"))
        body = ["long most = 0;", f"for (int p = 1; p < {source.shape[-1]}; ++p) if ({x} > {best}) most = p;"]
        return _block(view.shape[:-1], [*body, f"{self._element(target, to)} = most;"])

    def _scatter(self, target: Tensor, given: dict[str, Any]) -> list[str]:
        at, dim = given["index"], given["dim"] % target.dim()
        to, view = self.program.view(target), self._read(at)
        names = list(VARIABLES[: at.dim()])
        where = [*names[:dim], self._element(at, view, names), *names[dim + 1 :]]
        value = number(given["value"], self.real)
        start = [] if given["self"] is target else self.copy(target, given["self"])
        return [*start, *nested(view.shape, [f"{self._element(target, to, where)} = {value};"])]


def _block(shape: Sequence[int], body: list[str]) -> list[str]:
    lines = nested(shape, body)
    return lines if len(lines) > len(body) else ["{", *(f"    {line}" for line in body), "}"]
