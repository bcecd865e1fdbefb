"""SymPy expressions printed as code. Engines choose how numbers, powers and calls look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Expression = Any  # sympy.Expr, whose own annotations are too wide to be of use

_SUM, _PRODUCT, _ATOM = 1, 2, 3  # how tightly a printed piece binds


@dataclass(frozen=True)
class Printer:
    """Prints the language of cells.

    Args:
        number: how a literal is written; ``"{}"`` in torch code, ``"f32({})"`` where the type matters.
        powers: how an integer power of something that is not a name is written, if not with ``**``.
    """

    number: str = "{}"
    powers: Mapping[int, str] = field(default_factory=dict)

    def __call__(self, expression: Expression) -> str:
        return self._print(expression)[0]

    def assignments(self, wanted: Mapping[str, Expression]) -> list[str]:
        """Lines ``name = code`` that compute what is wanted, common subexpressions once.

        An expression may use another one by its name: lines come in an order in which that works.
        """
        import sympy

        shared, results = sympy.cse(list(wanted.values()), symbols=sympy.numbered_symbols("_"), order="none")
        pending: dict[str, Expression] = {str(symbol): value for symbol, value in shared}
        pending |= dict(zip(wanted, results, strict=True))
        lines = []
        while pending:
            ready = next(
                name
                for name, value in pending.items()
                if not any(str(symbol) in pending and str(symbol) != name for symbol in value.free_symbols)
            )
            lines.append(f"{ready} = {self(pending.pop(ready))}")
        return lines

    def _print(self, e: Expression) -> tuple[str, int]:
        if e.is_Symbol:
            return str(e), _ATOM
        if e.is_Number:
            text = self.number.format(int(e) if e.is_Integer else repr(float(e)))
            return (text, _ATOM) if float(e) >= 0 else (f"({text})", _ATOM)
        if e.is_Add:
            return self._sum(e), _SUM
        if e.is_Mul:
            return self._product(e), _PRODUCT
        if e.is_Pow:
            return self._power(*e.as_base_exp())
        return f"{type(e).__name__}({', '.join(map(self, e.args))})", _ATOM

    def _sum(self, e: Expression) -> str:
        text = ""
        # positive terms first: "1 - s" rather than "-s + 1"
        for term in sorted(e.args, key=lambda term: term.could_extract_minus_sign()):
            if text and term.could_extract_minus_sign():
                text += f" - {self._bracket(-term, _PRODUCT)}"
            else:
                text += (" + " if text else "") + self._bracket(term, _PRODUCT)
        return text

    def _product(self, e: Expression) -> str:
        above, below = [], []
        for factor in e.args:
            base, exponent = factor.as_base_exp()
            if exponent.is_Number and exponent.is_negative:
                below.append(base**-exponent)
            else:
                above.append(factor)
        text = "*".join(self._bracket(factor, _PRODUCT) for factor in above) or self.number.format(1)
        return text + "".join(f"/{self._bracket(factor, _ATOM)}" for factor in below)

    def _power(self, base: Expression, exponent: Expression) -> tuple[str, int]:
        if exponent.is_negative:
            return f"{self.number.format(1)}/{self._bracket(base**-exponent, _ATOM)}", _PRODUCT
        if base.is_Symbol and exponent in (2, 3):  # no call to pow for the common cases
            return "*".join([str(base)] * int(exponent)), _PRODUCT
        if exponent.is_Integer and int(exponent) in self.powers:
            return self.powers[int(exponent)].format(self(base)), _ATOM
        return f"{self._bracket(base, _ATOM)}**{self._bracket(exponent, _ATOM)}", _PRODUCT

    def _bracket(self, e: Expression, at_least: int) -> str:
        text, binds = self._print(e)
        return text if binds >= at_least else f"({text})"


def function(name: str, arguments: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    """Source of ``def name(arguments): lines; return results`` (always a tuple)."""
    body = "\n".join(f"    {line}" for line in lines)
    return f"def {name}({', '.join(arguments)}):\n{body}\n    return {', '.join(results)},\n"
